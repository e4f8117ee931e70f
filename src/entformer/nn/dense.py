"""Attention by any mapping of rows, for mappings without a fused kernel. In: q, k, v (B, H, L, D) and a mapping.

    weights = mapping(scale q k^T + bias - slope |i + offset - j|)       mapping: scores (B, H, queries, Lk) -> weights

Out: an `Attention`, as from the fused kernels. The mapping sees -inf where a key may not be attended. Weights it puts there
do not count, and rows without keys give zeros. What a masked key or value holds, NaN included, reaches nothing. A mapping with
`uses_positions` is handed i + offset - j, (rows, Lk), as well. Where no gradient is wanted queries go in blocks, so that a long
sequence needs memory for a block of rows, not for L x L.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.kernels import finite
from entformer.kernels.attention.api import Attention, RowStats, Support
from entformer.nn.masks import Masks

__all__ = ["NormalizerFn", "mapped_attention", "mapped_weights"]

NormalizerFn = Callable[..., Tensor]
BLOCK = 1 << 24  # scores held at a time where no gradient is wanted


def mapped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    normalizer_fn: NormalizerFn,
    masks: Masks,
    *,
    is_causal: bool,
    offset: int,
    slopes: Tensor | None = None,
    dropout: float = 0.0,
    trace: bool = False,
) -> Attention:
    """Query i stands at i + offset; `trace`: return the statistics and the support too (c, which a mapping lacks, is NaN)."""
    batch, heads, queries, _ = q.shape
    free = not torch.compiler.is_compiling()  # a compiled graph has all rows in one block, whatever their number
    free = free and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
    rows = max(1, BLOCK // max(batch * heads * k.shape[2], 1)) if free else queries
    blocks = []
    for start in range(0, max(queries, 1), rows) if free else (0,):
        end = min(start + rows, queries)
        weights = _weights(q[:, :, start:end], k, normalizer_fn, masks, start, offset, is_causal, slopes)
        out = finite.weighted_sum(F.dropout(weights, dropout), v.to(weights.dtype)).to(v.dtype)
        blocks.append((out, weights.detach()))
        if not trace:
            blocks[-1] = (blocks[-1][0], weights[:0])
    out = torch.cat([out for out, _ in blocks], 2)
    if not trace:
        return Attention(out, None, None)
    weights = torch.cat([weights for _, weights in blocks], 2)
    count = (weights != 0.0).sum(-1, dtype=torch.int32)
    crow = F.pad(count.flatten().cumsum(0), (1, 0))
    support = Support(crow, weights.nonzero()[:, -1].to(torch.int32), weights[weights != 0.0])
    entropy = torch.special.entr(weights.clamp(min=0.0)).sum(-1)
    return Attention(out, RowStats(count, entropy, torch.full_like(entropy, math.nan)), support)


def mapped_weights(
    q: Tensor,
    k: Tensor,
    normalizer_fn: NormalizerFn,
    masks: Masks,
    *,
    is_causal: bool,
    offset: int,
    slopes: Tensor | None = None,
) -> Tensor:
    """The weights alone, (B, H, Lq, Lk), differentiable in q, k, the bias and whatever the mapping learns."""
    return _weights(q, k, normalizer_fn, masks, 0, offset, is_causal, slopes)


def _weights(
    q: Tensor,
    k: Tensor,
    normalizer_fn: NormalizerFn,
    masks: Masks,
    start: int,
    offset: int,
    is_causal: bool,
    slopes: Tensor | None,
) -> Tensor:
    """Weights (B, H, rows, Lk) of the queries from number `start` on, in at least float32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    has_autocast = torch.amp.is_autocast_available(q.device.type)
    with torch.autocast(q.device.type, enabled=False) if has_autocast else nullcontext():
        scores = finite.products(q.to(dtype) / math.sqrt(max(q.shape[-1], 1)), k.to(dtype))
        query_at = torch.arange(start, start + q.shape[2], device=q.device)[:, None] + offset
        key_at = torch.arange(k.shape[2], device=q.device)
        if slopes is not None:
            scores = scores - slopes.to(dtype)[:, None, None] * (query_at - key_at).abs()
        if masks.bias is not None:
            scores = scores + _rows_of(masks.bias, start, q.shape[2]).to(dtype)
        allowed = scores.detach() != -math.inf  # NaN is not masked: it should show
        if masks.bias is not None:
            allowed = allowed & (_rows_of(masks.bias.detach(), start, q.shape[2]) != -math.inf)
        if is_causal:
            allowed = allowed & (key_at <= query_at)
        if masks.pairs is not None:
            allowed = allowed & _rows_of(masks.pairs, start, q.shape[2])
        if masks.keys is not None:
            allowed = allowed & masks.keys[:, None, None, :]
        # A row without keys is shown as zeros, so that no NaN comes back through the mapping's gradient.
        somewhere = allowed.any(-1, keepdim=True)
        shown = finite.masked(scores, allowed).masked_fill(~somewhere, 0.0)
        weights = (
            normalizer_fn(shown, query_at - key_at) if getattr(normalizer_fn, "uses_positions", False) else normalizer_fn(shown)
        )
        if not isinstance(weights, Tensor) or weights.shape != scores.shape:
            found = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ArgumentError(f"the mapping must give weights of its scores' shape {tuple(scores.shape)}, not {found}.")
        return weights.masked_fill(~allowed, 0.0)


def _rows_of(mask: Tensor, start: int, count: int) -> Tensor:
    return mask if mask.shape[2] == 1 else mask[:, :, start : start + count]
