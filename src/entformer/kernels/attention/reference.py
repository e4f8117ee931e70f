"""Attention by plain dense operations: the definition the fused kernels are compared with, and the path for what they lack.

In: q (B,H,Lq,D), k (B,G,Lk,D), v (B,G,Lk,E), alpha (B,H) or None for ReLA, what may be attended, what is added to scores.
Out: output (B,H,Lq,E), the weights (B,H,Lq,Lk) before dropout, and the masked scores.

    scores  = scale q k^T + bias - slope |i + offset - j|,  -inf where a key may not be attended
    weights = entmax(scores, alpha)        (ReLA: max(scores, 0))
    output  = dropout(weights) v

What is masked does not exist: NaN or infinity in a key or value reaches no query that may not attend to it, nor any gradient.
kernels/finite.py has the products that keep it so.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from entformer.kernels.finite import masked, nan_where, products, weighted_sum

NormalizerFn = Callable[[Tensor], Tensor]  # scores (..., Lk) -> weights (..., Lk); -inf scores get no weight


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    normalizer_fn: NormalizerFn,
    *,
    mask: Tensor | None,
    key_mask: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
    scale: float,
    causal: bool,
    causal_offset: int,
    dropout: float,
    seed: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output in v's dtype; weights and scores in `dtype`, the arithmetic's."""
    group = q.shape[1] // max(k.shape[1], 1)
    keys = k.to(dtype).repeat_interleave(group, 1)  # (B, H, Lk, D)
    values = v.to(dtype).repeat_interleave(group, 1)
    query_at = torch.arange(q.shape[2], device=q.device)[:, None] + causal_offset  # (Lq, 1)
    key_at = torch.arange(k.shape[2], device=q.device)
    allowed = torch.ones((), dtype=torch.bool, device=q.device)
    if causal:
        allowed = allowed & (key_at <= query_at)
    if mask is not None:
        allowed = allowed & mask
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    scores = products(q.to(dtype) * scale, keys)  # (B, H, Lq, Lk)
    if bias is not None:
        scores = scores + bias.to(dtype)
        allowed = allowed & (bias.detach() != -math.inf)
    if slopes is not None:
        scores = scores - slopes.to(dtype)[:, :, None, None] * (query_at - key_at).abs()
    scores = masked(scores, allowed)
    weights = normalizer_fn(scores)
    if allowed.dim() > 0:  # a row of NaN has it where it may attend
        weights = torch.where(allowed, weights, 0.0)
    used = weights
    if dropout > 0.0:
        rescale = 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0
        kept = survivors(weights.shape, dropout, seed) | weights.detach().isnan()  # dropout does not hide NaN
        used = torch.where(kept, weights * rescale, 0.0)
    return weighted_sum(used, values).to(v.dtype), weights, scores


def rela(scores: Tensor) -> Tensor:
    """Rectified linear weights: they do not sum to one, and a row may have none. NaN makes its whole row NaN."""
    seen = torch.where(scores == -math.inf, 0.0, scores)
    broken = scores.detach().isnan().any(-1, keepdim=True)
    return torch.where(broken, seen * nan_where(broken), seen.relu())


def survivors(shape: torch.Size, dropout: float, seed: Tensor) -> Tensor:
    """Which weights (B,H,Lq,Lk) dropout keeps: the kernels' hash of (seed, position), so both drop the same ones."""
    position = torch.arange(1, math.prod(shape) + 1, device=seed.device, dtype=torch.int64)
    x = seed + position * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift(x, 31)
    uniform = _shift(x, 40).to(torch.float32) * 5.9604645e-8
    return (uniform >= torch.tensor(dropout, dtype=torch.float32, device=seed.device)).reshape(shape)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical, as for unsigned numbers


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
