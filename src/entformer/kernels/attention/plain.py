"""Calls of `attention` as models make them most: equal batch and heads, on the CPU, no options but a mask of keys.

    query (B, H, Lq, D), key (B, H, Lk, D), value (B, H, Lk, E), alpha a number or (H,), key_mask (B, Lk) -> output, or None

Softmax that torch's own kernel computes (sdpa.py) takes this way too. The checks and conversions of the general way (api.py)
take as long as the attention of a short sentence: forward and backward of (1, 1, 4, 16) with a learned alpha 158 us, here 87
(SDPA 40). In a model, whose layers have used the caches meanwhile, Python takes several times as long: so this way does as
little as it can, and has an autograd function of its own.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.kernels import checks
from entformer.kernels.attention import ops, sdpa
from entformer.kernels.attention.arguments import NO_FEATURES, alpha_per_head, laid_out_like, no_dropout, scale_of
from entformer.kernels.autograd import without_graph
from entformer.kernels.registry import kernels_loaded

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
    alpha: float | Tensor,
    key_mask: Tensor | None,
) -> Tensor | None:
    """The output of a plain call; None for any other, and for every mistake, which the general way describes."""
    if not type(query) is type(key) is type(value) is Tensor or not checks.runs_once() or torch._C._is_any_autocast_enabled():
        return None
    dtype = query.dtype
    for t in (query, key, value):
        if t.layout is not torch.strided or t.is_nested or not t.is_cpu or t.dtype is not dtype:
            return None
    of_query, of_key, of_value = query.shape, key.shape, value.shape
    if not len(of_query) == len(of_key) == len(of_value) == 4:
        return None
    batch, heads, _, size = of_query
    keys = of_key[2]
    if dtype not in DTYPES or keys == 0 or of_key != (batch, heads, keys, size) or of_value[:3] != of_key[:3]:
        return None
    if key_mask is not None:
        if type(key_mask) is not Tensor or key_mask.layout is not torch.strided or key_mask.is_nested or not key_mask.is_cpu:
            return None
        if key_mask.dtype is not torch.bool or key_mask.shape != (batch, keys):
            return None
    if scale is None:
        scale = scale_of(None, size)
    elif type(scale) is not float:
        return None
    if type(alpha) is float:
        if alpha == 1.0 and key_mask is None and kernels_loaded() and sdpa.suits_plain(query, key, value, is_causal):
            return laid_out_like(query, F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale))
        if not 1.0 < alpha < math.inf:
            return None
        rows = alpha_per_head(alpha, query)
    elif isinstance(alpha, Tensor) and type(alpha) in (Tensor, nn.Parameter) and torch._C._len_torch_dispatch_stack() == 0:
        rows = alpha
        if rows.shape != (heads,) or not rows.is_cpu or rows.dtype not in (torch.float32, torch.float64):
            return None
        for number in rows.tolist():
            if not 1.0 <= number < math.inf:
                return None
    else:
        return None
    if not kernels_loaded():
        return None
    output: Tensor
    how = ("entmax", scale, is_causal, 0, 0.0, no_dropout())
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad or rows.requires_grad):
        output = _PlainAttention.apply(query, key, value, rows, key_mask, how)  # type: ignore[no-untyped-call]
    else:
        output = without_graph(ops.attention, query, key, value, rows, None, key_mask, None, *how, False)[0]
    return output


class _PlainAttention(torch.autograd.Function):
    """The operator and its gradient. The arguments that it does not pass have defaults."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, key_mask: Tensor | None, how: tuple[Any, ...]
    ) -> Tensor:
        output: Tensor
        output, row_max, threshold, support_size, _entropy, reserve = without_graph(
            ops.attention, query, key, value, alpha, None, key_mask, None, *how, False
        )
        ctx.save_for_backward(query, key, value, alpha, key_mask, row_max, threshold, support_size, reserve)
        ctx.how = how
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, alpha, key_mask, *state = ctx.saved_tensors
        needs_alpha = ctx.needs_input_grad[3]
        inputs = (grad_output, query, key, value, alpha, None, key_mask, None, *state, *ctx.how, needs_alpha)
        if checks.runs_eagerly() and not torch.is_grad_enabled():
            grads = without_graph(ops.attention_backward, *inputs)
        else:
            grads = ops.AttentionBackwardFunction.apply(*inputs, *NO_FEATURES, *(False,) * 3)  # type: ignore[no-untyped-call]
        return *grads[:3], grads[3] if needs_alpha else None, None, None
