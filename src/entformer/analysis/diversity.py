"""How much the heads of a layer disagree. In: `LayerRows`. Out: a number for every query, (B, Lq)."""

import numpy as np

from entformer.analysis.density import entropy
from entformer.analysis.rows import Floats, Ints, LayerRows


def jensen_shannon(rows: LayerRows) -> Floats:
    """Generalised Jensen-Shannon divergence of the heads of a layer, base-adjusted (Correia et al. 2019, Eq. 11):

        JS_i = H( 1/H sum_h p^h_i ) - 1/H sum_h H(p^h_i),      H: Shannon entropy with logarithms to the base n_i

    so 0 <= JS <= 1; 0 when all heads agree. p^h_i are the shares of head h. A head without weight (ReLA) puts all of it on
    one more key, "nothing"; then the base is n_i + 1. NaN where a query sees one key only, and for padding.
    """
    live, nats = _live(rows)
    total = rows.heads
    base = np.where(live < total, rows.visible + 1, rows.visible)
    nothing = 1.0 - live / total
    # Entropy of the mean of the heads: sum of -(v/H) ln(v/H) over keys, and the same of what has gone to "nothing".
    mixed = np.log(total) * live / total - _sum_v_log_v(rows) / total - nothing * np.log(np.where(nothing > 0, nothing, 1.0))
    divergence = mixed - nats / total
    return _adjusted(divergence, base)


def jensen_shannon_of_live_heads(rows: LayerRows) -> Floats:
    """`jensen_shannon` of only those heads that have weight in the row; NaN where fewer than two have. (B, Lq)"""
    live, nats = _live(rows)
    some = np.maximum(live, 1)
    mixed = np.log(some) - _sum_v_log_v(rows) / some
    return np.where(live >= 2, _adjusted(mixed - nats / some, rows.visible), np.nan)


def _live(rows: LayerRows) -> tuple[Floats, Floats]:
    """How many heads have weight, and the sum of their entropies in nats, (B, Lq) each."""
    return (rows.count > 0).sum(1).astype(np.float64), np.nansum(entropy(rows), 1)


def _sum_v_log_v(rows: LayerRows) -> Floats:
    value = rows.mixture.value
    total = np.bincount(rows.mixture.row, value * np.log(value), rows.batch * rows.queries)
    return total.reshape(rows.batch, rows.queries).astype(np.float64)


def _adjusted(divergence: Floats, base: Floats | Ints) -> Floats:
    found: Floats = np.clip(divergence, 0.0, None) / np.log(np.maximum(base, 2))  # rounding may give -1e-17
    return np.where(base >= 2, found, np.nan)
