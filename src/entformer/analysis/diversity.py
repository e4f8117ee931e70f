"""How much the heads of a layer disagree. In: `LayerRows`. Out: a number for every query, (B, Lq), in two bases."""

from typing import NamedTuple

import numpy as np

from entformer.analysis.density import entropy
from entformer.analysis.rows import Floats, Ints, LayerRows


class Divergence(NamedTuple):
    """One divergence, (B, Lq) each, as a share of two different maxima."""

    by_keys: Floats
    """Logarithms to the base of the number of keys: what the paper does ("the dimension of p")."""
    by_heads: Floats
    """Logarithms to the base of the number of heads: 1 when no two heads share a key, however many keys there are."""


def jensen_shannon(rows: LayerRows) -> Divergence:
    """Generalized Jensen-Shannon divergence of the heads of a layer, base-adjusted (Correia et al. 2019, Eq. 11 and Fig. 6):

        JS_i = [ H( 1/H sum_h p^h_i ) - 1/H sum_h H(p^h_i) ] / ln b        H: Shannon entropy in nats

    with b = n_i, the keys query i may see, or b = H, the heads. In nats JS is at most ln min(n_i, H), so both are from 0 (all
    heads agree) to 1. p^h_i are the shares of head h. A head without weight (ReLA) puts all of it on one more key, "nothing";
    then b is n_i + 1. NaN where a query sees one key only, for padding, and by heads where there is only one.
    """
    live, nats = _live(rows)
    total = rows.heads
    nothing = 1.0 - live / total
    # Entropy of the mean of the heads: sum of -(v/H) ln(v/H) over keys, and the same of what has gone to "nothing".
    mixed = np.log(total) * live / total - _sum_v_log_v(rows) / total - nothing * np.log(np.where(nothing > 0, nothing, 1.0))
    keys = np.where(live < total, rows.visible + 1, rows.visible)
    return _adjusted(mixed - nats / total, keys, np.where(keys >= 2, total, 1))


def jensen_shannon_of_live_heads(rows: LayerRows) -> Divergence:
    """`jensen_shannon` of only those heads that have weight in the row; NaN where fewer than two have."""
    live, nats = _live(rows)
    some = np.maximum(live, 1)
    mixed = np.log(some) - _sum_v_log_v(rows) / some
    keys = np.where(live >= 2, rows.visible, 1)
    return _adjusted(mixed - nats / some, keys, np.where(keys >= 2, live, 1))


def _live(rows: LayerRows) -> tuple[Floats, Floats]:
    """How many heads have weight, and the sum of their entropies in nats, (B, Lq) each."""
    return (rows.count > 0).sum(1).astype(np.float64), np.nansum(entropy(rows), 1)


def _sum_v_log_v(rows: LayerRows) -> Floats:
    value = rows.mixture.value
    total = np.bincount(rows.mixture.row, value * np.log(value), rows.batch * rows.queries)
    return total.reshape(rows.batch, rows.queries).astype(np.float64)


def _adjusted(divergence: Floats, keys: Floats | Ints, heads: Floats | Ints) -> Divergence:
    nats = np.clip(divergence, 0.0, None)  # rounding may give -1e-17
    return Divergence(*(np.where(base >= 2, nats / np.log(np.maximum(base, 2)), np.nan) for base in (keys, heads)))
