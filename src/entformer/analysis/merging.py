"""Heads that join the pieces of a word. In: `LayerRows` of self-attention, the words. Out: a score per word and head."""

import numpy as np

from entformer.analysis.rows import Floats, Ints, LayerRows


def merging_scores(rows: LayerRows, words: Ints) -> tuple[Floats, Ints]:
    """The subword-merging score of every cluster of pieces (Correia et al. 2019, section 5.2):

        score_C = max over i in C of sum over j in C, j != i of share_ij          |C| >= 2
        score_C = share_ii                                                        C = {i}

    `words` (B, L): the number of the cluster each piece is in, pieces of a cluster side by side, -1 for none (BOS, EOS,
    padding). Out: scores (H, clusters) in reading order, and the sizes of the clusters (clusters,).
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
        return np.zeros((rows.heads, 0)), sizes
    key = rows.sentence_query - rows.query + rows.col  # b * L + j of each entry; Lq = Lk = L in self-attention
    together = run[rows.sentence_query] == run[key]
    together &= (rows.query != rows.col) | (sizes[run[key]] == 1)
    inside = rows.per_row(rows.share, together)  # (B, H, L)
    most = np.maximum.reduceat(inside.transpose(1, 0, 2).reshape(rows.heads, batch * length), starts, axis=1)
    of_words = flat[starts] >= 0
    return most[:, of_words], sizes[of_words]
