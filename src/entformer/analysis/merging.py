"""Heads that join the pieces of a word. In: `LayerRows` of self-attention, the words. Out: scores per word and head."""

from typing import NamedTuple

import numpy as np

from entformer.analysis.rows import Bools, Floats, Ints, LayerRows


class Merging(NamedTuple):
    """Scores of clusters of pieces, in reading order."""

    rest: Floats  # (H, clusters) mass on the other pieces
    with_self: Floats  # (H, clusters) mass on all pieces, itself included
    sizes: Ints  # (clusters,)


def merging_scores(rows: LayerRows, words: Ints) -> Merging:
    """The subword-merging score of every cluster of pieces (Correia et al. 2019, section 5.2, "BPE-merging head"):

        rest_C = max over i in C of sum over j in C, j != i of share_ij           |C| >= 2
        rest_C = share_ii                                                         C = {i}
        with_self_C = max over i in C of sum over j in C of share_ij

    A head that spreads its weight evenly over the k pieces of a word has rest (k - 1) / k and with_self 1; one that looks only
    at the piece itself has 0 and 1.

    `words` (B, L): the number of the cluster each piece is in, pieces of a cluster side by side, -1 for none (BOS, EOS,
    padding).
    """
    flat = words.ravel()  # (B * L,)
    batch, length = words.shape
    # A new run begins where the number changes, and at every sentence.
    begins = np.ones(flat.shape, dtype=np.bool_)
    begins[1:] = flat[1:] != flat[:-1]
    begins[::length] = True
    starts = np.flatnonzero(begins)
    sizes = np.diff(np.append(starts, len(flat)))
    run = np.cumsum(begins) - 1  # (B * L,) the run each place is in
    if len(flat) == 0:
        return Merging(np.zeros((rows.heads, 0)), np.zeros((rows.heads, 0)), sizes)
    key = rows.sentence_query - rows.query + rows.col  # b * L + j of each entry; Lq = Lk = L in self-attention
    together = run[rows.sentence_query] == run[key]
    others = together & ((rows.query != rows.col) | (sizes[run[key]] == 1))
    of_words = flat[starts] >= 0

    def most(where: Bools) -> Floats:
        inside = rows.per_row(rows.share, where).transpose(1, 0, 2).reshape(rows.heads, batch * length)
        found: Floats = np.maximum.reduceat(inside, starts, axis=1)[:, of_words]
        return found

    return Merging(most(others), most(together), sizes[of_words])
