"""Attention by plain dense operations: the definition the kernels are compared with, and the path for what they lack.

    scores  = scale q k^T + bias - slope |i + offset - j|,  -inf where a key may not be attended
    weights = entmax(scores, alpha)        (ReLA: max(scores, 0))
    output  = dropout(weights) v

What is masked does not exist: NaN or infinity in a key or value reaches no query that may not attend to it, nor any gradient.
kernels/finite.py has the products that keep it so. `forward`, `backward` and `support` have the signatures of the operators
(ops.py); they run where the C++ kernels cannot be built and a saved program calls the operators.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.kernels.entmax import reference as entmax_reference
from entformer.kernels.finite import masked, nan_where, products, weighted_sum
from entformer.kernels.registry import dense_dtype

NormalizerFn = Callable[[Tensor], Tensor]  # scores (..., Lk) -> weights (..., Lk); -inf scores get no weight


class RowState(NamedTuple):
    """What describes the weights of each row, (B, H, Lq) each."""

    row_max: Tensor  # float32
    threshold: Tensor  # float64: weights are exp_e(score - row_max - threshold)
    support_size: Tensor  # int32
    entropy: Tensor  # float32


def scores(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float,
    is_causal: bool = False,
    causal_offset: int = 0,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Returns the masked scores (B, H, Lq, Lk) in `dtype`, and which pairs may attend, broadcastable to them."""
    keys = key.to(dtype).repeat_interleave(query.shape[1] // max(key.shape[1], 1), 1)  # (B, H, Lk, D)
    query_at = torch.arange(query.shape[2], device=query.device)[:, None] + causal_offset  # (Lq, 1)
    key_at = torch.arange(key.shape[2], device=query.device)
    allowed = torch.ones((), dtype=torch.bool, device=query.device)
    if is_causal:
        allowed = allowed & (key_at <= query_at)
    if attn_mask is not None:
        allowed = allowed & attn_mask
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    found = products(query.to(dtype) * scale, keys)
    if bias is not None:
        found = found + bias.to(dtype)
        allowed = allowed & (bias.detach() != -math.inf)
    if alibi_slopes is not None:
        found = found - alibi_slopes.to(dtype)[:, :, None, None] * (query_at - key_at).abs()
    return masked(found, allowed), allowed


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    normalizer_fn: NormalizerFn,
    *,
    dropout_p: float,
    dropout_seed: Tensor,
    dtype: torch.dtype,
    **how: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output in the dtype of `value`, the weights before dropout and the scores in `dtype`; `how`: see `scores`."""
    values = value.to(dtype).repeat_interleave(query.shape[1] // max(key.shape[1], 1), 1)
    masked_scores, allowed = scores(query, key, dtype=dtype, **how)
    weights = normalizer_fn(masked_scores)
    if allowed.dim() > 0:  # a row of NaN has it where it may attend
        weights = torch.where(allowed, weights, 0.0)
    used = weights
    if dropout_p > 0.0:
        inv_keep_prob = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
        kept = keep_mask(weights.shape, dropout_p, dropout_seed) | weights.detach().isnan()  # dropout does not hide NaN
        used = torch.where(kept, weights * inv_keep_prob, 0.0)
    return weighted_sum(used, values).to(value.dtype), weights, masked_scores


def relu_weights(scores: Tensor) -> Tensor:
    """Rectified linear weights: they do not sum to one, and a row may have none. NaN makes its whole row NaN."""
    seen = torch.where(scores == -math.inf, 0.0, scores)
    broken = scores.detach().isnan().any(-1, keepdim=True)
    return torch.where(broken, seen * nan_where(broken), seen.relu())


def row_state(weights: Tensor, scores: Tensor, alpha: Tensor) -> RowState:
    """Returns the state of each row from its weights and scores (B, H, Lq, Lk) and alpha (B, H)."""
    if weights.shape[-1] == 0:
        nothing = torch.zeros(weights.shape[:-1], device=weights.device)
        return RowState(nothing - math.inf, nothing.to(alpha.dtype), nothing.to(torch.int32), nothing)
    largest, index = weights.max(-1)
    e = alpha[:, :, None] - 1.0
    log_largest = torch.where(largest > 0, largest, 1.0).to(e.dtype).log()
    near = e.abs() < 1e-12
    deformed_log = torch.where(near, log_largest, torch.expm1(e * log_largest) / torch.where(near, 1.0, e))
    entropy = -torch.where(weights > 0, weights * weights.clamp(min=1e-300).log(), 0.0).sum(-1)
    at_largest = scores.gather(-1, index[..., None]).squeeze(-1)
    return RowState(at_largest.float(), -deformed_log, (weights > 0).sum(-1, dtype=torch.int32), entropy.float())


def to_csr(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the nonzero weights of all rows (..., Lk) as crow_indices, col_indices (int32) and values (float32)."""
    rows = weights.flatten(0, -2)
    inside = rows > 0
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


# ---- the operators ------------------------------------------------------------------------------------------------------


def _dense(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, masks: Any, how: Any, dropout_p: float, seed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, weights and scores of an operator's arguments."""
    normalizer, scale, is_causal, causal_offset = how

    def normalizer_fn(scores: Tensor) -> Tensor:
        return relu_weights(scores) if normalizer == "relu" else entmax_reference.entmax(scores, alpha[:, :, None])

    return dense_attention(
        query,
        key,
        value,
        normalizer_fn,
        **dict(zip(("attn_mask", "key_mask", "alibi_slopes"), masks, strict=True)),
        scale=scale,
        is_causal=is_causal,
        causal_offset=causal_offset,
        dropout_p=dropout_p,
        dropout_seed=seed,
        dtype=dense_dtype(query.dtype, query.device.type, exact=False),
    )


def forward(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Computes `entformer::attention` but for its reserve."""
    *masks, normalizer, scale, is_causal, causal_offset, dropout_p, seed, return_entropy = rest
    how = (normalizer, scale, is_causal, causal_offset)
    output, weights, masked_scores = _dense(query, key, value, alpha, masks, how, dropout_p, seed)
    row_max, threshold, support_size, entropy = row_state(weights, masked_scores, alpha)
    return output, row_max, threshold.double(), support_size, entropy if return_entropy else entropy.new_empty(0)


def backward(grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Computes `entformer::attention_backward` by the closed-form gradient; the state of the rows is not read."""
    *masks, _, _, _, _, normalizer, scale, is_causal, causal_offset, dropout_p, seed, needs_alpha_grad = rest
    how = (normalizer, scale, is_causal, causal_offset)
    _, weights, masked_scores = _dense(query, key, value, alpha, masks, how, 0.0, seed)
    dtype, group = weights.dtype, query.shape[1] // max(key.shape[1], 1)
    q, g = query.to(dtype), grad_output.to(dtype)
    k, v = (t.to(dtype).repeat_interleave(group, 1) for t in (key, value))
    used, grad_weights = weights, g @ v.transpose(-1, -2)
    if dropout_p > 0.0:
        kept = keep_mask(weights.shape, dropout_p, seed)
        used, grad_weights = (torch.where(kept, t / (1.0 - dropout_p), 0.0) for t in (weights, grad_weights))
    grad_alpha = query.new_zeros(query.shape[:2] if needs_alpha_grad else (0,), dtype=torch.float64)
    if normalizer == "relu":
        grad_scores = torch.where(masked_scores > 0.0, grad_weights, 0.0)
    else:
        row_alpha = alpha[:, :, None].expand(weights.shape[:-1])
        grad_scores, of_rows = entmax_reference.entmax_backward(grad_weights, weights, row_alpha, needs_alpha_grad)
        grad_alpha = of_rows.sum(-1).double() if needs_alpha_grad else grad_alpha
    grad_scores = torch.where(weights > 0.0, grad_scores, 0.0)
    grad_query = scale * (grad_scores @ k)
    grad_key = scale * (grad_scores.transpose(-1, -2) @ q)
    grad_value = used.transpose(-1, -2) @ g
    grad_key, grad_value = (t.unflatten(1, (-1, group)).sum(2) if group > 1 else t for t in (grad_key, grad_value))
    return grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype), grad_alpha


def support(query: Tensor, key: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Computes `entformer::attention_support`; the state of the rows is not read."""
    *masks, row_max, _threshold, _crow_indices, normalizer, scale, is_causal, causal_offset = rest
    how = (normalizer, scale, is_causal, causal_offset)
    return to_csr(_dense(query, key, key, alpha, masks, how, 0.0, row_max)[1])[1:]
