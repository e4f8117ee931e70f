"""The torch operators behind `attention`: schemas, shapes for the tracer and derivatives. Letters as in cpu_kernel.h.

    flash_forward(q (B,H,Lq,D), k (B,G,Lk,D), v (B,G,Lk,E), alpha (B,H), ...) ->
        out (B,H,Lq,E), state (B,H,Lq,2) [row maximum, lam], count (B,H,Lq), entropy (B,H,Lq) or (0,),
        columns and weights (B,H,Lq,kept): the support of rows that have at most `kept` entries, for backward
    flash_backward(...) -> grad_q, grad_k, grad_v, grad_alpha (B,H) or (0,)
    flash_support(...) -> columns, weights of the exact support in CSR order

mask is boolean (B,H,Lq,Lk), expanded, True = may attend; key_mask (B,Lk) the same per key; slopes (B,H) float32.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ImplUnavailable

_COMMON = "Tensor? mask, Tensor? key_mask, Tensor? slopes"
_HOW = "float scale, bool rela, bool causal, SymInt causal_offset"

_library = torch.library.Library("entformer", "FRAGMENT")
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(
    f"flash_forward(Tensor q, Tensor k, Tensor v, Tensor alpha, {_COMMON}, {_HOW}, float dropout, Tensor seed, "
    "bool want_entropy, int kept) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"flash_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor alpha, {_COMMON}, Tensor state, Tensor count, "
    f"Tensor columns, Tensor weights, {_HOW}, float dropout, Tensor seed, bool want_alpha) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"flash_support(Tensor q, Tensor k, Tensor alpha, {_COMMON}, Tensor state, Tensor crow, {_HOW}) -> (Tensor, Tensor)",
    tags=_tags,
)

flash_forward = torch.ops.entformer.flash_forward.default
flash_backward = torch.ops.entformer.flash_backward.default
flash_support = torch.ops.entformer.flash_support.default


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    want_entropy, kept = rest[-2:]
    rows = q.shape[:3]
    return (
        q.new_empty((*rows, v.shape[3])),
        q.new_empty((*rows, 2), dtype=torch.float32),
        q.new_empty(rows, dtype=torch.int32),
        q.new_empty(rows if want_entropy else (0,), dtype=torch.float32),
        q.new_empty((*rows, kept), dtype=torch.int32),
        q.new_empty((*rows, kept), dtype=torch.float32),
    )


def _backward_shapes(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    grad_alpha = q.new_empty(q.shape[:2] if rest[-1] else (0,), dtype=torch.float64)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_alpha


def _support_shapes(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return q.new_empty(size, dtype=torch.int32), q.new_empty(size, dtype=torch.float32)


torch.library.register_fake("entformer::flash_forward", _forward_shapes, lib=_library)
torch.library.register_fake("entformer::flash_backward", _backward_shapes, lib=_library)
torch.library.register_fake("entformer::flash_support", _support_shapes, lib=_library)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, alpha, mask, key_mask, slopes, *how, dropout, seed, _want_entropy, _kept = inputs
    _out, state, count, _entropy, columns, weights = output
    ctx.mark_non_differentiable(state, count, _entropy, columns, weights)
    ctx.save_for_backward(q, k, v, alpha, mask, key_mask, slopes, state, count, columns, weights, seed)
    ctx.how = (*how, dropout)


def _gradient(ctx: Any, grad_out: Tensor, *_others: Tensor) -> tuple[Any, ...]:
    *tensors, seed = ctx.saved_tensors
    *how, dropout = ctx.how
    want_alpha = ctx.needs_input_grad[3]
    grads = flash_backward(grad_out, *tensors, *how, dropout, seed, want_alpha)
    grad_q, grad_k, grad_v, grad_alpha = grads
    return grad_q, grad_k, grad_v, grad_alpha if want_alpha else None, *([None] * 11)


def _no_second_gradient(ctx: Any, *_grads: Tensor) -> tuple[Any, ...]:
    raise ImplUnavailable("fused attention has no second derivatives; use impl='reference' where you need them.")


torch.library.register_autograd("entformer::flash_forward", _gradient, setup_context=_keep, lib=_library)
torch.library.register_autograd("entformer::flash_backward", _no_second_gradient, lib=_library)
