"""Heads that attend to the other pieces of a word: scores per word and head."""

from typing import NamedTuple

import numpy as np

from entformer.analysis.rows import Bools, Floats, Ints, LayerRows, once_per_batch
from entformer.analysis.words import Marks


class Merging(NamedTuple):
    """Scores of clusters of pieces, in reading order."""

    rest: Floats  # (H, clusters) weight on the other pieces
    with_self: Floats  # (H, clusters) weight on all pieces, itself included
    sizes: Ints  # (clusters,)


@once_per_batch
def merging_scores(rows: LayerRows, marks: Marks) -> Merging:
    """Computes the subword-merging score of every cluster of pieces (Correia et al. 2019, section 5.2, "BPE-merging head"):

        rest_C = max over i in C of sum over j in C, j != i of p_ij           |C| >= 2
        rest_C = p_ii                                                         C = {i}
        with_self_C = max over i in C of sum over j in C of p_ij

    A head with equal weights on the k pieces of a word has rest (k - 1) / k and with_self 1; one that attends
    to the piece itself only has 0 and 1.
    """
    words = marks.words  # (B, L), pieces of a cluster side by side
    flat = words.ravel()  # (B * L,)
    batch, length = words.shape
    # A new run begins where the number changes, and at every sentence.
    begins = np.ones(flat.shape, dtype=np.bool_)
    begins[1:] = flat[1:] != flat[:-1]
    begins[::length] = True
    starts = np.flatnonzero(begins)
    sizes = np.diff(np.append(starts, len(flat)))
    run = np.cumsum(begins) - 1  # (B * L,) the run of each token
    if len(flat) == 0:
        return Merging(np.zeros((rows.heads, 0)), np.zeros((rows.heads, 0)), sizes)
    key = rows.sentence_query - rows.query + rows.col  # b * L + j of each entry; Lq = Lk = L in self-attention
    together = run[rows.sentence_query] == run[key]
    others = together & ((rows.query != rows.col) | (sizes[run[key]] == 1))
    of_words = flat[starts] >= 0

    def most(where: Bools) -> Floats:
        inside = rows.per_row(rows.normalized, where).transpose(1, 0, 2).reshape(rows.heads, batch * length)
        found: Floats = np.maximum.reduceat(inside, starts, axis=1)[:, of_words]
        return found

    return Merging(most(others), most(together), sizes[of_words])
