"""The record that `MultiheadAttention.hook` receives."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from entformer.kernels.attention.api import RowStats, Support
from entformer.nn.masks import Masks

__all__ = ["AttentionHook", "AttentionTrace"]


class AttentionTrace(NamedTuple):
    """One call of one attention layer, without gradients. Masks: True = may attend."""

    support: Support  # the exact nonzero weights, before dropout, rows in order (B, H, Lq)
    stats: RowStats  # (B, H, Lq) each
    query: Tensor  # (B, H, Lq, D), scaled and rotated as the kernel receives it
    key: Tensor  # (B, H, Lk, D), those of a cache included
    masks: Masks
    causal: bool  # query i attends to keys j <= i + offset
    offset: int
    alphas: Tensor | None = None  # (H,); None for ReLA and others that have none


AttentionHook = Callable[[AttentionTrace], None]
