"""The torch operators behind `attention`: schemas, fake kernels, derivatives and batching rules.

    entformer::attention(query (B,H,Lq,D), key (B,G,Lk,D), value (B,G,Lk,E), alpha (B,H), ...) ->
        output (B,H,Lq,E), row_max (B,H,Lq), threshold (B,H,Lq) float64, support_size (B,H,Lq) int32,
        entropy (B,H,Lq) or (0,), reserve (B,H,...) uint8
    entformer::attention_backward(grad_output, ...) -> grad_query, grad_key, grad_value, grad_alpha (B,H) or (0,)
    entformer::attention_support(...) -> col_indices, values of the exact support in CSR order

The weights of a row are exp_e(score - row_max - threshold). `reserve` is memory that only the backward pass of the same
implementation reads. attn_mask is boolean (B,H,Lq,Lk), expanded, True = may attend; key_mask (B,Lk) the same per key;
alibi_slopes (B,H) float32; normalizer "entmax" or "relu"; dropout_seed () int64, or (N,) where the batch is N batches one
after the other (vmap): each is dropped as if it were alone with its seed.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ImplUnavailable
from entformer.kernels.attention import cpu, reference, triton
from entformer.kernels.entmax.ops import plain_operator_suffices, until_kernels_load

_MASKS = "Tensor? attn_mask, Tensor? key_mask, Tensor? alibi_slopes"
_STATE = "Tensor row_max, Tensor threshold"
_HOW = "str normalizer, float scale, bool is_causal, SymInt causal_offset"
_SCHEMAS = (
    f"attention(Tensor query, Tensor key, Tensor value, Tensor alpha, {_MASKS}, {_HOW}, float dropout_p, Tensor dropout_seed, "
    "bool return_entropy) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    f"attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor alpha, {_MASKS}, {_STATE}, "
    f"Tensor support_size, Tensor reserve, {_HOW}, float dropout_p, Tensor dropout_seed, bool needs_alpha_grad) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    f"attention_support(Tensor query, Tensor key, Tensor alpha, {_MASKS}, {_STATE}, Tensor crow_indices, {_HOW}) "
    "-> (Tensor, Tensor)",
)
_library = torch.library.Library("entformer", "FRAGMENT")
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

attention = torch.ops.entformer.attention.default
attention_backward = torch.ops.entformer.attention_backward.default
attention_support = torch.ops.entformer.attention_support.default


def _forward_shapes(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return_entropy = rest[-1]
    rows = query.shape[:3]
    return (
        query.new_empty((*rows, value.shape[3])),
        query.new_empty(rows, dtype=torch.float32),
        query.new_empty(rows, dtype=torch.float64),
        query.new_empty(rows, dtype=torch.int32),
        query.new_empty(rows if return_entropy else (0,), dtype=torch.float32),
        query.new_empty(_reserve_shape(query, key, value), dtype=torch.uint8),
    )


def _reserve_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    if query.device.type == triton.DEVICE:
        return triton.reserve_shape(query, key, value)
    return *query.shape[:3], cpu.reserve_bytes(key.shape[2])


def _backward_shapes(grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    grad_alpha = query.new_empty(query.shape[:2] if rest[-1] else (0,), dtype=torch.float64)
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape), grad_alpha


def _support_shapes(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return query.new_empty(size, dtype=torch.int32), query.new_empty(size, dtype=torch.float32)


def _reference_forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    reserve = query.new_zeros(_reserve_shape(query, key, value), dtype=torch.uint8)
    return *reference.forward(query, key, value, *rest), reserve  # the size that the fake kernel gave to a saved program


# The C++ kernels register for the CPU, which takes precedence once they are loaded.
for _operator, _dense, _shapes in (
    (attention, _reference_forward, _forward_shapes),
    (attention_backward, reference.backward, _backward_shapes),
    (attention_support, reference.support, _support_shapes),
):
    _library.impl(_operator, until_kernels_load(_operator, _dense), "CompositeExplicitAutograd")
    torch.library.register_fake(_operator._schema.name, _shapes, lib=_library)
triton.register()


class AttentionFunction(torch.autograd.Function):
    """attention with its gradient; saves the inputs, the state of the rows and the reserve."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # named one by one: torch.compile takes the first of *inputs for a context
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Tensor,
        attn_mask: Tensor | None,
        key_mask: Tensor | None,
        alibi_slopes: Tensor | None,
        normalizer: str,
        scale: float,
        is_causal: bool,
        causal_offset: int,
        dropout_p: float,
        dropout_seed: Tensor,
        return_entropy: bool,
    ) -> tuple[Tensor, ...]:
        how = (normalizer, scale, is_causal, causal_offset, dropout_p, dropout_seed, return_entropy)
        outputs: tuple[Tensor, ...] = attention(query, key, value, alpha, attn_mask, key_mask, alibi_slopes, *how)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, normalizer, scale, is_causal, causal_offset, dropout_p, dropout_seed, _return_entropy = inputs
        _output, row_max, threshold, support_size, entropy, reserve = output
        ctx.mark_non_differentiable(row_max, threshold, support_size, entropy, reserve)
        ctx.set_materialize_grads(False)  # else backward begins by filling zeros as large as the reserve
        ctx.save_for_backward(*tensors, row_max, threshold, support_size, reserve, dropout_seed)
        ctx.how = (normalizer, scale, is_causal, causal_offset, dropout_p)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, *_others: Tensor | None) -> tuple[Any, ...]:
        if grad_output is None:
            return (None,) * 14
        *tensors, dropout_seed = ctx.saved_tensors
        needs_alpha_grad = ctx.needs_input_grad[3]
        inputs = (grad_output, *tensors, *ctx.how, dropout_seed, needs_alpha_grad)
        grads = AttentionBackwardFunction.apply(*inputs)  # type: ignore[no-untyped-call]
        return *grads[:3], grads[3] if needs_alpha_grad else None, *([None] * 10)


class AttentionBackwardFunction(torch.autograd.Function):
    """attention_backward, which has no gradient of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        grad_output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Tensor,
        attn_mask: Tensor | None,
        key_mask: Tensor | None,
        alibi_slopes: Tensor | None,
        row_max: Tensor,
        threshold: Tensor,
        support_size: Tensor,
        reserve: Tensor,
        normalizer: str,
        scale: float,
        is_causal: bool,
        causal_offset: int,
        dropout_p: float,
        dropout_seed: Tensor,
        needs_alpha_grad: bool,
    ) -> tuple[Tensor, ...]:
        saved = (alpha, attn_mask, key_mask, alibi_slopes, row_max, threshold, support_size, reserve)
        how = (normalizer, scale, is_causal, causal_offset, dropout_p, dropout_seed, needs_alpha_grad)
        grads: tuple[Tensor, ...] = attention_backward(grad_output, query, key, value, *saved, *how)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Any, ...]:
        raise ImplUnavailable("fused attention has no second derivatives; use impl='reference' where you need them.")


for _name, _rule in (("attention", AttentionFunction), ("attention_backward", AttentionBackwardFunction)):
    torch.library.register_autograd(f"entformer::{_name}", _rule.backward, setup_context=_rule.setup_context, lib=_library)


def attention_with_gradient(*inputs: Any) -> tuple[Tensor, ...]:
    """Calls the autograd Function, which torch.func needs, or the operator where nothing is differentiated."""
    if torch.compiler.is_compiling():
        # The tracer records requires_grad when a tensor is made; torch.func.grad marks its inputs afterwards. Views are made.
        inputs = tuple(value.view_as(value) if isinstance(value, Tensor) else value for value in inputs)
    plain = plain_operator_suffices(*(value for value in inputs if isinstance(value, Tensor)))
    return tuple(attention(*inputs) if plain else AttentionFunction.apply(*inputs))  # type: ignore[no-untyped-call]


# ---- vmap: the mapped dimension becomes part of the batch --------------------------------------------------------------


def _batched(operator: Any) -> Any:
    """The vmap rule of `operator`: tensors (N, B, ...) -> (N * B, ...), N seeds, and back; the seed is the last but one."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        folded = []
        for index, (value, dim) in enumerate(zip(inputs, in_dims, strict=True)):
            if isinstance(value, Tensor):
                value = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
                value = value.reshape(-1) if index == len(inputs) - 2 else value.flatten(0, 1)
            folded.append(value)
        outputs = operator(*folded)
        empty = [output.dim() == 1 for output in outputs]  # an output that was not requested has shape (0,)
        mapped = tuple(o if e else o.unflatten(0, (info.batch_size, -1)) for o, e in zip(outputs, empty, strict=True))
        return mapped, tuple(None if e else 0 for e in empty)

    return rule


torch.library.register_vmap("entformer::attention", _batched(attention), lib=_library)
torch.library.register_vmap("entformer::attention_backward", _batched(attention_backward), lib=_library)
