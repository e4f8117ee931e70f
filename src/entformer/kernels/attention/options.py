"""Checks of the options of `attention` that shape scores and weights: window, soft-cap, sinks, packed sequences, sigmoid."""

import math
import operator
from typing import Any

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.kernels import checks
from entformer.kernels.attention.arguments import per_head
from entformer.kernels.attention.elementwise import ELEMENTWISE

_WINDOW = "window must be a pair (left, right) of integers of at least 0 or None, which is unlimited"


def window_of(window: Any) -> tuple[int | None, int | None]:
    """The limits of a window; None where it has none."""
    if window is None:
        return None, None
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise ArgumentError(f"{_WINDOW}, not {window!r}.")
    left, right = (_limit(side, window) for side in window)
    return left, right


def _limit(side: Any, window: Any) -> int | None:
    if side is None or isinstance(side, torch.SymInt):
        return side  # type: ignore[return-value]
    if torch.compiler.is_compiling() and isinstance(side, int):
        return side  # maybe symbolic: reading it would make a graph for each value
    try:
        number = -1 if isinstance(side, bool) else operator.index(side)
    except TypeError:
        number = -1
    if number < 0:
        raise ArgumentError(f"{_WINDOW}, not {tuple(window)}.")
    return min(number, checks.MOST_OFFSET)


def softcap_of(softcap: Any) -> float | None:
    """A positive number, or None for no soft-cap."""
    if softcap is None:
        return None
    number = checks.check_real("softcap", softcap)
    if not 0.0 < number < math.inf:
        raise ArgumentError(f"softcap={softcap} must be a positive number, or None for no soft-cap.")
    return number


def sinks_of(sinks: Tensor | None, q: Tensor, normalizer: str) -> Tensor | None:
    """The scores of the sinks, (B, H) in float32 (float64 for float64 queries)."""
    if sinks is None:
        return None
    if normalizer in ELEMENTWISE:
        raise ArgumentError(
            f"sinks need weights that sum to one, which normalizer={normalizer!r} does not give; leave them out."
        )
    found = per_head(sinks, q, "sinks", torch.float64 if q.dtype == torch.float64 else torch.float32)
    if not sinks.is_floating_point():
        raise ArgumentError(f"sinks must be a floating-point tensor, not {sinks.dtype}.")
    return found


def sigmoid_bias_of(sigmoid_bias: Any, normalizer: str) -> float | None:
    """The number given, or None for -log(number of keys)."""
    if sigmoid_bias is None:
        return None
    if normalizer != "sigmoid":
        raise ArgumentError(f"sigmoid_bias is for normalizer='sigmoid' alone, not for {normalizer!r}.")
    if isinstance(sigmoid_bias, Tensor):
        raise ArgumentError(
            "sigmoid_bias must be a number, not a tensor, which would get no gradient; pass a learned one as attn_mask."
        )
    number = checks.check_real("sigmoid_bias", sigmoid_bias)
    if not math.isfinite(number):
        raise ArgumentError(f"sigmoid_bias={sigmoid_bias} must be finite.")
    return number


def packed_lengths(
    cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, q: Tensor, k: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The boundaries of packed sequences as int32 tensors on the device of the query, or None each."""
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return None, None
    if cu_seqlens_q is None or cu_seqlens_k is None:
        missing = "cu_seqlens_q" if cu_seqlens_q is None else "cu_seqlens_k"
        raise ArgumentError(f"{missing} is missing: packed sequences need cu_seqlens_q and cu_seqlens_k.")
    for name, t, total in (("cu_seqlens_q", cu_seqlens_q, q.shape[2]), ("cu_seqlens_k", cu_seqlens_k, k.shape[2])):
        if not isinstance(t, Tensor) or t.dtype not in (torch.int32, torch.int64) or t.dim() != 1 or t.shape[0] == 0:
            raise ArgumentError(f"{name} must be an int32 tensor (sequences + 1,): where each sequence begins, and the end.")
        if checks.any_true((t[0] != 0) | (t[-1] != total) | (t.diff() < 0).any()):
            raise ArgumentError(f"{name} must begin with 0, never decrease and end with {total}, the length of the tensor.")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        counts = f"{cu_seqlens_q.shape[0] - 1} sequences and cu_seqlens_k {cu_seqlens_k.shape[0] - 1}"
        raise ArgumentError(f"cu_seqlens_q has {counts}; they must have equally many.")
    if q.shape[0] != 1:
        raise ArgumentError(
            "packed sequences lie one after the other in one batch entry, (1, heads, total length, size); the batch here is "
            f"{q.shape[0]}."
        )
    return cu_seqlens_q.to(q.device, torch.int32), cu_seqlens_k.to(q.device, torch.int32)
