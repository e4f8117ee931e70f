"""The torch operators behind `attention`: schemas, shapes for the tracer and derivatives. Letters as in cpu_kernel.h.

    attention_forward(q (B,H,Lq,D), k (B,G,Lk,D), v (B,G,Lk,E), alpha (B,H), ...) ->
        out (B,H,Lq,E), state (B,H,Lq,3) [row maximum, lam, what float32 cannot hold of lam], count (B,H,Lq),
        entropy (B,H,Lq) or (0,),
        kept (B,H,Lq,room) uint8: the support of rows where it fits in `room` bytes, for backward
    attention_backward(...) -> grad_q, grad_k, grad_v, grad_alpha (B,H) or (0,)
    attention_support(...) -> columns, weights of the exact support in CSR order

mask is boolean (B,H,Lq,Lk), expanded, True = may attend; key_mask (B,Lk) the same per key; slopes (B,H) float32; seed () int64,
or (N,) where the batch is N batches one after the other (vmap): each is dropped as if it were alone with its seed.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ImplUnavailable
from entformer.kernels.attention import fallback
from entformer.kernels.entmax.ops import plain_operator_suffices
from entformer.kernels.registry import resolve

_COMMON = "Tensor? mask, Tensor? key_mask, Tensor? slopes"
_HOW = "float scale, bool rela, bool causal, SymInt causal_offset"

_library = torch.library.Library("entformer", "FRAGMENT")
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, Tensor alpha, {_COMMON}, {_HOW}, float dropout, Tensor seed, "
    "bool return_entropy, SymInt room) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor alpha, {_COMMON}, Tensor state, Tensor count, "
    f"Tensor kept, {_HOW}, float dropout, Tensor seed, bool needs_alpha_grad) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"attention_support(Tensor q, Tensor k, Tensor alpha, {_COMMON}, Tensor state, Tensor crow, {_HOW}) -> (Tensor, Tensor)",
    tags=_tags,
)

attention_forward = torch.ops.entformer.attention_forward.default
attention_backward = torch.ops.entformer.attention_backward.default
attention_support = torch.ops.entformer.attention_support.default


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return_entropy, room = rest[-2:]
    rows = q.shape[:3]
    return (
        q.new_empty((*rows, v.shape[3])),
        q.new_empty((*rows, 3), dtype=torch.float32),
        q.new_empty(rows, dtype=torch.int32),
        q.new_empty(rows if return_entropy else (0,), dtype=torch.float32),
        q.new_empty((*rows, room), dtype=torch.uint8),
    )


def _backward_shapes(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    grad_alpha = q.new_empty(q.shape[:2] if rest[-1] else (0,), dtype=torch.float64)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_alpha


def _support_shapes(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return q.new_empty(size, dtype=torch.int32), q.new_empty(size, dtype=torch.float32)


def _until_kernels_load(operator: Any, dense: Any) -> Any:
    """The operator before the C++ kernels are loaded, as when a saved program runs: loads them, or computes without them."""

    def run(first: Tensor, *rest: Any) -> Any:
        if resolve("auto", first.device.type) == "cpu":
            return operator(first, *rest)
        return tuple(t.contiguous() for t in dense(first, *rest))  # as the shape functions have it

    return run


# The C++ kernels register for the CPU, which takes precedence once they are loaded.
for _operator, _dense in (
    (attention_forward, fallback.forward),
    (attention_backward, fallback.backward),
    (attention_support, fallback.support),
):
    _library.impl(_operator, _until_kernels_load(_operator, _dense), "CompositeExplicitAutograd")
torch.library.register_fake("entformer::attention_forward", _forward_shapes, lib=_library)
torch.library.register_fake("entformer::attention_backward", _backward_shapes, lib=_library)
torch.library.register_fake("entformer::attention_support", _support_shapes, lib=_library)


class AttentionFunction(torch.autograd.Function):
    """attention_forward with its gradient; the tensors kept are the inputs, two numbers a row and the short supports."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # named one by one: torch.compile takes the first of *inputs for a context
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
        how = (scale, rela, causal, causal_offset, dropout, seed, return_entropy, room)
        outputs: tuple[Tensor, ...] = attention_forward(q, k, v, alpha, mask, key_mask, slopes, *how)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, alpha, mask, key_mask, slopes, *how, dropout, seed, _want_entropy, _room = inputs
        _out, state, count, entropy, kept = output
        ctx.mark_non_differentiable(state, count, entropy, kept)
        ctx.set_materialize_grads(False)  # else backward begins by filling zeros as large as the supports
        ctx.save_for_backward(q, k, v, alpha, mask, key_mask, slopes, state, count, kept, seed)
        ctx.how = (*how, dropout)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, *_others: Tensor | None) -> tuple[Any, ...]:
        if grad_out is None:
            return (None,) * 15
        *tensors, seed = ctx.saved_tensors
        needs_alpha_grad = ctx.needs_input_grad[3]
        grads = AttentionBackwardFunction.apply(grad_out, *tensors, *ctx.how, seed, needs_alpha_grad)  # type: ignore[no-untyped-call]
        return *grads[:3], grads[3] if needs_alpha_grad else None, *([None] * 11)


class AttentionBackwardFunction(torch.autograd.Function):
    """attention_backward, which has no gradient of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
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
        saved = (alpha, mask, key_mask, slopes, state, count, kept)
        how = (scale, rela, causal, causal_offset, dropout, seed, needs_alpha_grad)
        grads: tuple[Tensor, ...] = attention_backward(grad_out, q, k, v, *saved, *how)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Any, ...]:
        raise ImplUnavailable("fused attention has no second derivatives; use impl='reference' where you need them.")


for _name, _rule in (("attention_forward", AttentionFunction), ("attention_backward", AttentionBackwardFunction)):
    torch.library.register_autograd(f"entformer::{_name}", _rule.backward, setup_context=_rule.setup_context, lib=_library)


def forward_with_gradient(*inputs: Any) -> tuple[Tensor, ...]:
    """Calls the autograd Function, which torch.func needs, or the operator where nothing is differentiated."""
    if torch.compiler.is_compiling():
        # The tracer records requires_grad when a tensor is made; torch.func.grad marks its inputs afterwards. Views are made.
        inputs = tuple(value.view_as(value) if isinstance(value, Tensor) else value for value in inputs)
    plain = plain_operator_suffices(*(value for value in inputs if isinstance(value, Tensor)))
    return tuple(attention_forward(*inputs) if plain else AttentionFunction.apply(*inputs))  # type: ignore[no-untyped-call]


# ---- vmap: the mapped dimension becomes part of the batch --------------------------------------------------------------


def _folded(info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...], seed_at: int) -> list[Any]:
    """Every tensor (N, B, ...) -> (N * B, ...); N seeds, equal ones where all samples share one; numbers as they are."""

    def fold(at: int, value: Any, batch_dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        first = value.expand(info.batch_size, *value.shape) if batch_dim is None else value.movedim(batch_dim, 0)
        if at == seed_at % len(inputs):
            return first.reshape(-1)
        return first.flatten(0, 1)

    return [fold(at, value, dim) for at, (value, dim) in enumerate(zip(inputs, in_dims, strict=True))]


def _unfolded(info: Any, outputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    empty = [output.dim() == 1 for output in outputs]  # an output nobody asked for has shape (0,)
    mapped = tuple(o if e else o.unflatten(0, (info.batch_size, -1)) for o, e in zip(outputs, empty, strict=True))
    return mapped, tuple(None if e else 0 for e in empty)


def _forward_batched(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _unfolded(info, attention_forward(*_folded(info, in_dims, inputs, seed_at=-3)))


def _backward_batched(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _unfolded(info, attention_backward(*_folded(info, in_dims, inputs, seed_at=-2)))


torch.library.register_vmap("entformer::attention_forward", _forward_batched, lib=_library)
torch.library.register_vmap("entformer::attention_backward", _backward_batched, lib=_library)
