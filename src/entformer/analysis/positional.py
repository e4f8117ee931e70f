"""Heads that look at a fixed place. In: `LayerRows` of self-attention. Out: a number for every sentence and head, (B, H).

A sentence says nothing about a head when no query has a choice: queries that see one key only are left out, and a sentence
without any query left is NaN. The number of a head is the median over sentences (`streaming.py`).
"""

import numpy as np

from entformer.analysis.rows import Bools, Floats, LayerRows

OFFSETS = (-1, 0, 1)


def positional_confidence(rows: LayerRows, offset: int) -> Floats:
    """The mean share of the token `offset` places away (Correia et al. 2019, section 5.2; -1 is the previous token):

    confidence = mean over i of share_{i, i + offset},      i with a visible key at i + offset and n_i > 1
    """
    place = np.arange(rows.queries) + offset  # (Lq,)
    last = rows.visible  # a causal query sees keys 0 to i: n_i of them, as any other
    asked = (rows.visible > 1) & (place >= 0) & (place < last)  # (B, Lq)
    return _mean_share(rows, rows.col == rows.query + offset, asked)


def first_key_share(rows: LayerRows) -> Floats:
    """The mean share of the first key: mean over i of share_{i, 0}. Heads with nothing to say often rest there."""
    return _mean_share(rows, rows.col == 0, rows.visible > 1)


def last_key_share(rows: LayerRows) -> Floats:
    """The mean share of the last key, which is the end of the sentence: mean over i of share_{i, n - 1}, n the key's length.

    Only queries that see the last key count.
    """
    last = np.repeat(rows.key_lengths - 1, rows.heads)[rows.head_of_sentence]
    return _mean_share(rows, rows.col == last, (rows.visible > 1) & (rows.visible == rows.key_lengths[:, None]))


def _mean_share(rows: LayerRows, hit: Bools, asked: Bools) -> Floats:
    """The mean over the queries `asked` (B, Lq) of the share of the entries `hit` (nnz,)."""
    if not asked[rows.real].all():
        hit = hit & asked.ravel()[rows.sentence_query]
    queries = asked.sum(1)[:, None]  # (B, 1)
    return np.where(queries > 0, rows.per_head(rows.share, hit) / np.maximum(queries, 1), np.nan)
