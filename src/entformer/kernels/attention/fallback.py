"""The operators of attention by dense arithmetic, for saved programs in a process that cannot build the C++ kernels.

Shapes are those of `ops`; `kept` is not used. What is computed is the definition in `reference`, with its closed-form
gradient, in float32 (float64 for float64 inputs).
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels.attention import reference
from entformer.kernels.entmax import reference as rows
from entformer.kernels.registry import dense_dtype


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    mask: Tensor | None,
    key_mask: Tensor | None,
    slopes: Tensor | None,
    scale: float,
    rela: bool,
    causal: bool,
    causal_offset: int,
    dropout: float,
    seed: Tensor,
    return_entropy: bool,
    room: int,
) -> tuple[Tensor, ...]:
    """As `attention_forward`."""
    masks = (mask, key_mask, slopes)
    out, weights, scores = _dense(q, k, v, alpha, masks, scale, rela, causal, causal_offset, dropout, seed)
    count = (weights > 0).sum(-1, dtype=torch.int32)
    entropy = torch.special.entr(weights).sum(-1).float() if return_entropy else q.new_empty(0, dtype=torch.float32)
    state = q.new_zeros((*q.shape[:3], 3), dtype=torch.float32)
    if k.shape[2] > 0:
        best, at = weights.max(-1)
        e = alpha[:, :, None] - 1.0
        log_best = torch.where(best > 0, best, 1.0).to(e.dtype).log()
        near = e.abs() < 1e-12
        deformed_log = torch.where(near, log_best, torch.expm1(e * log_best) / torch.where(near, 1.0, e))
        lam = -deformed_log
        rest = lam - lam.float()  # what float32 cannot hold of it
        state = torch.stack([scores.gather(-1, at[..., None]).squeeze(-1).float(), lam.float(), rest.float()], -1)
    return out, state, count, entropy, q.new_zeros((*q.shape[:3], room), dtype=torch.uint8)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    mask: Tensor | None,
    key_mask: Tensor | None,
    slopes: Tensor | None,
    state: Tensor,
    count: Tensor,
    kept: Tensor,
    scale: float,
    rela: bool,
    causal: bool,
    causal_offset: int,
    dropout: float,
    seed: Tensor,
    needs_alpha_grad: bool,
) -> tuple[Tensor, ...]:
    """As `attention_backward`."""
    masks = (mask, key_mask, slopes)
    _, weights, scores = _dense(q, k, v, alpha, masks, scale, rela, causal, causal_offset, 0.0, seed)
    dtype, group = weights.dtype, q.shape[1] // max(k.shape[1], 1)
    wide_q, wide_grad = q.to(dtype), grad_out.to(dtype)
    wide_k, wide_v = (t.to(dtype).repeat_interleave(group, 1) for t in (k, v))
    used, grad_weights = weights, wide_grad @ wide_v.transpose(-1, -2)
    if dropout > 0.0:
        kept_weights = reference.survivors(weights.shape, dropout, seed)
        used, grad_weights = (torch.where(kept_weights, t / (1.0 - dropout), 0.0) for t in (weights, grad_weights))
    if rela:
        grad_scores, grad_alpha = torch.where(scores > 0.0, grad_weights, 0.0), None
    else:
        row_alpha = alpha[:, :, None].expand(weights.shape[:-1])
        grad_scores, grad_alpha = rows.entmax_backward(weights, row_alpha, grad_weights, needs_alpha_grad)
    grad_scores = torch.where(weights > 0.0, grad_scores, 0.0)
    grad_q = scale * (grad_scores @ wide_k)
    grad_k = scale * (grad_scores.transpose(-1, -2) @ wide_q)
    grad_v = used.transpose(-1, -2) @ wide_grad
    grad_k, grad_v = (t.unflatten(1, (-1, group)).sum(2) if group > 1 else t for t in (grad_k, grad_v))
    nothing = q.new_zeros(q.shape[:2] if needs_alpha_grad else (0,), dtype=torch.float64)
    to_alpha = nothing if grad_alpha is None or not needs_alpha_grad else grad_alpha.sum(-1).double()
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), to_alpha


def support(
    q: Tensor,
    k: Tensor,
    alpha: Tensor,
    mask: Tensor | None,
    key_mask: Tensor | None,
    slopes: Tensor | None,
    state: Tensor,
    crow: Tensor,
    scale: float,
    rela: bool,
    causal: bool,
    causal_offset: int,
) -> tuple[Tensor, Tensor]:
    """As `attention_support`."""
    masks = (mask, key_mask, slopes)
    weights = _dense(q, k, k, alpha, masks, scale, rela, causal, causal_offset, 0.0, state)[1].flatten(0, -2)
    inside = weights > 0
    return inside.nonzero()[:, 1].to(torch.int32), weights[inside].float()


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    masks: tuple[Tensor | None, ...],
    scale: float,
    rela: bool,
    causal: bool,
    causal_offset: int,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    def normalizer_fn(scores: Tensor) -> Tensor:
        return reference.rela(scores) if rela else rows.entmax_forward(scores, alpha[:, :, None])

    how: dict[str, Any] = {"scale": scale, "causal": causal, "causal_offset": causal_offset, "dropout": dropout, "seed": seed}
    mask, key_mask, slopes = masks
    dtype = dense_dtype(q.dtype, q.device.type, exact=False)
    return reference.attention(
        q, k, v, normalizer_fn, mask=mask, key_mask=key_mask, bias=None, slopes=slopes, dtype=dtype, **how
    )
