"""Attention by plain dense operations: the definition the kernels are compared with, and the path for what they lack.

    scores  = cap(scale q k^T) + bias - slope |i + offset - j|,  -inf where a key may not be attended;  cap(s) = c tanh(s / c)
    weights = entmax((scores, sink), alpha) without the last       (or an elementwise function, elementwise.py)
    output  = dropout(weights) v

What is masked does not exist: NaN or infinity in a key, value or bias reaches no query that may not attend to it, nor any
gradient. kernels/finite.py has the products that keep it so. The operators' own functions are in reference_ops.py.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.kernels.attention.arguments import EXCLUDED, Call
from entformer.kernels.attention.elementwise import BY_OPERATOR
from entformer.kernels.finite import masked, nan_where, products, weighted_sum


class RowState(NamedTuple):
    """What describes the weights of each row, (B, H, Lq) each."""

    row_max: Tensor  # float32
    threshold: Tensor  # float64: weights are exp_e(score - row_max - threshold)
    support_size: Tensor  # int32
    entropy: Tensor  # float32


class Scores(NamedTuple):
    """The scores of a call and what their gradients need; everything broadcasts to (B, H, Lq, Lk)."""

    masked: Tensor  # (B, H, Lq, Lk), -inf where a key may not be attended
    allowed: Tensor  # which pairs may attend
    distance: Tensor  # i + offset - j
    cap_slope: Tensor | None  # the derivative of the soft-cap, or None without one


class Dense(NamedTuple):
    """The result of `dense_attention`."""

    output: Tensor  # (B, H, Lq, E), in the dtype of the values
    weights: Tensor  # (B, H, Lq, Lk), before dropout
    with_sinks: Tensor  # the weights with that of the sink as the last column, if there are sinks
    scores: Tensor  # of `with_sinks`
    parts: Scores


def scores(call: Call, dtype: torch.dtype) -> Scores:
    """Returns the masked scores in `dtype`."""
    query, key, more = call.query, call.key, call.features
    keys = key.to(dtype).repeat_interleave(query.shape[1] // max(key.shape[1], 1), 1)  # (B, H, Lk, D)
    distance, allowed = _positions(call)
    right = more.window_right
    if call.is_causal:
        right = 0 if right is None else min(right, 0)
    if right is not None:
        allowed = allowed & (distance >= -right)
    if more.window_left is not None:
        allowed = allowed & (distance <= more.window_left)
    if call.attn_mask is not None:
        allowed = allowed & call.attn_mask
    if call.key_mask is not None:
        allowed = allowed & call.key_mask[:, None, None, :]
    hidden = None if more.bias is None else more.bias.detach() <= EXCLUDED
    if hidden is not None:
        allowed = allowed & ~hidden
    found = products(query.to(dtype) * call.scale, keys)
    cap_slope = None
    if more.softcap is not None:
        bounded = torch.tanh(torch.where(allowed, found, 0.0) / more.softcap)  # the derivative at NaN is NaN, masked or not
        cap_slope = 1.0 - bounded.detach().square()
        found = more.softcap * bounded
    if more.bias is not None and hidden is not None:
        found = found + more.bias.masked_fill(hidden, 0.0).to(dtype)
    if call.alibi_slopes is not None:
        found = found - call.alibi_slopes.to(dtype)[:, :, None, None] * distance.abs()
    return Scores(masked(found, allowed), allowed, distance, cap_slope)


def _positions(call: Call) -> tuple[Tensor, Tensor]:
    """i + offset - j, (Lq, Lk), positions counted from the beginning of their sequence; and which pairs are in one sequence."""
    device, more = call.query.device, call.features
    query_at, key_at = (torch.arange(t.shape[2], device=device) for t in (call.query, call.key))
    together = torch.ones((), dtype=torch.bool, device=device)
    if more.cu_seqlens_q is not None and more.cu_seqlens_k is not None:
        of_query, query_at = _in_sequence(more.cu_seqlens_q, query_at)
        of_key, key_at = _in_sequence(more.cu_seqlens_k, key_at)
        together = of_query[:, None] == of_key
    return query_at[:, None] + call.causal_offset - key_at, together


def _in_sequence(cu_seqlens: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Which sequence each position is in, and where in it."""
    begins = cu_seqlens.long()
    sequence = torch.searchsorted(begins[1:], at, right=True)
    return sequence, at - begins[sequence]


def dense_attention(call: Call, normalizer_fn: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Dense:
    """Computes attention in `dtype`, differentiable in every tensor. `normalizer_fn` gives scores of -inf no weight."""
    query, value, sinks = call.query, call.value, call.features.sinks
    values = value.to(dtype).repeat_interleave(query.shape[1] // max(value.shape[1], 1), 1)
    parts = scores(call, dtype)
    found = parts.masked
    if sinks is not None:
        sink = sinks.to(dtype) + nan_where(sinks.detach() == math.inf)
        found = torch.cat([found, sink[:, :, None, None].expand(*found.shape[:3], 1)], -1)
    with_sinks = normalizer_fn(found)
    weights = with_sinks if sinks is None else with_sinks[..., :-1]
    if parts.allowed.dim() > 0:  # a row of NaN has it where it may attend
        weights = torch.where(parts.allowed, weights, 0.0)
    used = weights
    if call.dropout_p > 0.0:
        inv_keep_prob = 1.0 / (1.0 - call.dropout_p) if call.dropout_p < 1.0 else 0.0
        kept = keep_mask(weights.shape, call.dropout_p, call.dropout_seed) | weights.detach().isnan()  # dropout hides no NaN
        used = torch.where(kept, weights * inv_keep_prob, 0.0)
    if sinks is None:
        with_sinks = weights
    return Dense(weighted_sum(used, values).to(value.dtype), weights, with_sinks, found, parts)


def row_state(call: Call, dense: Dense) -> RowState:
    """Returns the state of each row."""
    weights, alpha = dense.weights, call.alpha
    seen, found = dense.with_sinks, dense.scores
    if seen.shape[-1] == 0:
        nothing = torch.zeros(weights.shape[:-1], device=weights.device)
        return RowState(nothing - math.inf, nothing.to(alpha.dtype), nothing.to(torch.int32), nothing)
    size = (weights > 0).sum(-1, dtype=torch.int32)
    entropy = -torch.where(weights > 0, weights * weights.clamp(min=1e-300).log(), 0.0).sum(-1)
    largest, index = seen.max(-1)
    e = alpha[:, :, None] - 1.0
    log_largest = torch.where(largest > 0, largest, 1.0).to(e.dtype).log()
    near = e.abs() < 1e-12
    threshold = -torch.where(near, log_largest, torch.expm1(e * log_largest) / torch.where(near, 1.0, e))
    if entry := BY_OPERATOR.get(call.normalizer):
        threshold = entry.threshold(found, call.features.sigmoid_bias)
    at_largest = found.gather(-1, index[..., None]).squeeze(-1)
    return RowState(at_largest.float(), threshold, size, entropy.float())


def to_csr(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the nonzero weights of all rows (..., Lk) as crow_indices, col_indices (int32) and values (float32)."""
    rows = weights.flatten(0, -2)
    inside = rows.detach() > 0
    return F.pad(inside.sum(-1).cumsum(0), (1, 0)), inside.nonzero()[:, 1].to(torch.int32), rows[inside].float()


def keep_mask(shape: torch.Size, dropout_p: float, seed: Tensor) -> Tensor:
    """Which weights (B,H,Lq,Lk) dropout keeps: the hash of `csrc/rng.h`, so both drop the same ones."""
    position = torch.arange(1, math.prod(shape) + 1, device=seed.device, dtype=torch.int64)
    x = seed + position * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift(x, 31)
    uniform = _shift(x, 40).to(torch.float32) * 5.9604645e-8
    return (uniform >= torch.tensor(dropout_p, dtype=torch.float32, device=seed.device)).reshape(shape)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical, as for unsigned numbers


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
