"""What a hook of attention gets to see. In: nothing; out: the record `MultiheadAttention.hook` is called with."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from entformer.kernels.attention.api import RowStats, Support
from entformer.nn.masks import Masks

__all__ = ["AttentionTrace", "Watcher"]


class AttentionTrace(NamedTuple):
    """One call of one attention layer: numbers without gradients. Masks here say True = may attend."""

    support: Support  # the exact non-zero weights, before dropout, rows in order (B, H, Lq)
    stats: RowStats  # (B, H, Lq) each
    query: Tensor  # (B, H, Lq, D), scaled and turned as the kernel saw it
    key: Tensor  # (B, H, Lk, D), all that the queries could see, those of a cache too
    masks: Masks
    causal: bool  # query i sees keys j <= i + offset
    offset: int


Watcher = Callable[[AttentionTrace], None]
