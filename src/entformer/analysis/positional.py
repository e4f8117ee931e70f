"""Heads that attend to a fixed position: a number per sentence and head, (B, H).

Queries that see one key only have no choice and are skipped; a sentence without any other query is NaN. The number of a head
is the median over sentences (`streaming.py`).
"""

import numpy as np

from entformer.analysis.rows import Bools, Floats, Ints, LayerRows

OFFSETS = (-1, 0, 1)


def positional_confidence(rows: LayerRows, offset: int) -> Floats:
    """Computes the mean normalized weight on the token at an offset (Correia et al. 2019, section 5.2; -1: previous token):

    confidence = mean over i of p_{i, i + offset},      i with a visible key at i + offset and n_i > 1
    """
    key = np.arange(rows.queries) + offset  # (Lq,)
    counted = (rows.visible > 1) & (key >= 0) & (key < rows.visible)  # (B, Lq); a causal query sees keys 0 to i
    return _mean_weight(rows, rows.col == rows.query + offset, counted)


def first_key_weight(rows: LayerRows) -> Floats:
    """Computes the mean normalized weight on the first key: mean over i of p_{i, 0}. Idle heads often attend to it."""
    return _mean_weight(rows, rows.col == 0, rows.visible > 1)


def last_key_weight(rows: LayerRows) -> Floats:
    """Computes the mean normalized weight on the last key, the end of the sentence: mean over i of p_{i, n - 1}.

    Only queries that see the last key count.
    """
    last = np.repeat(rows.key_lengths - 1, rows.heads)[rows.head_of_sentence]
    return _mean_weight(rows, rows.col == last, (rows.visible > 1) & (rows.visible == rows.key_lengths[:, None]))


def repeated_token_weight(rows: LayerRows, offset: int) -> Floats:
    """Computes the mean normalized weight on other occurrences of the query's token, or `offset` keys after them:

    mean over i of sum over j of p_ij,      j with token_{j - offset} = token_i and j - offset != i

    over the queries that may attend to such a key. offset 0: duplicate-token heads; 1: induction heads, which attend to what
    followed the same token before.
    """
    if rows.tokens is None:
        raise ValueError("repeated tokens need the ids of the tokens")
    tokens = rows.tokens[:, : rows.queries]
    earlier = rows.col - offset
    sentence = rows.sentence_query // rows.queries
    same = tokens[sentence, np.maximum(earlier, 0)] == tokens[sentence, rows.query]
    hit = same & (earlier >= 0) & (earlier != rows.query)
    return _mean_weight(rows, hit, _may_repeat(rows, tokens, offset))


def _may_repeat(rows: LayerRows, tokens: Ints, offset: int) -> Bools:
    """Returns which queries may attend to a key `offset` after another occurrence of their token, (B, Lq)."""
    found = np.zeros(tokens.shape, np.bool_)
    for b, length in enumerate(rows.query_lengths.tolist()):
        _, first, inverse = np.unique(tokens[b, :length], return_index=True, return_inverse=True)
        places = np.arange(length)
        last = np.full(len(first), -1)
        if not rows.causal:  # later occurrences that have such a key
            np.maximum.at(last, inverse[: length - offset], places[: length - offset])
        found[b, :length] = (first[inverse] < places) | (last[inverse] > places)
    return found


def _mean_weight(rows: LayerRows, hit: Bools, counted: Bools) -> Floats:
    """Computes the mean over the queries `counted` (B, Lq) of the weight of the entries `hit` (nnz,)."""
    if not counted[rows.real].all():
        hit = hit & counted.ravel()[rows.sentence_query]
    queries = counted.sum(1)[:, None]  # (B, 1)
    return np.where(queries > 0, rows.per_head(rows.normalized, hit) / np.maximum(queries, 1), np.nan)
