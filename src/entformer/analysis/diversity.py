"""How much the heads of a layer differ: a number per query, (B, Lq), in two bases."""

from typing import NamedTuple

import numpy as np

from entformer.analysis.density import entropy
from entformer.analysis.rows import Floats, LayerRows, once_per_batch


class Divergence(NamedTuple):
    """One divergence, (B, Lq) each, divided by two different maxima."""

    by_keys: Floats
    """Logarithms to the base of the number of keys: what the paper does ("the dimension of p")."""
    by_heads: Floats
    """Logarithms to the base of the number of heads: 1 when no two heads attend to the same key, for any number of keys."""


@once_per_batch
def jensen_shannon(rows: LayerRows) -> Divergence:
    """Computes the base-adjusted Jensen-Shannon divergence of a layer's heads (Correia et al. 2019, Eq. 11 and Fig. 6):

        JS_i = [ H( 1/H sum_h p^h_i ) - 1/H sum_h H(p^h_i) ] / ln b        H: Shannon entropy in nats

    with b = n_i, the keys query i may see, or b = H, the heads. In nats JS is at most ln min(n_i, H), so both are from 0 (all
    heads agree) to 1. p^h_i are the normalized weights of head h. A head whose weights are all 0 (ReLA) counts as one that
    attends to one more key only, "nothing"; then b is n_i + 1. NaN where a query sees one key only, for padding, and by heads
    where there is only one.
    """
    total = rows.heads
    live = (rows.count > 0).sum(1)  # heads with a nonzero weight, (B, Lq)
    nothing = 1.0 - live / total
    # Entropy of the mean of the heads: sum of -(v/H) ln(v/H) over keys, and the same for "nothing".
    value = rows.mixture.value
    sums = np.bincount(rows.mixture.row, value * np.log(value), rows.batch * rows.queries).reshape(live.shape)
    mixed = np.log(total) * live / total - sums / total - nothing * np.log(np.where(nothing > 0, nothing, 1.0))
    nats = np.clip(mixed - np.nansum(entropy(rows), 1) / total, 0.0, None)  # rounding may give -1e-17
    keys = np.where(live < total, rows.visible + 1, rows.visible)
    bases = keys, np.where(keys >= 2, total, 1)
    return Divergence(*(np.where(base >= 2, nats / np.log(np.maximum(base, 2)), np.nan) for base in bases))
