"""The torch operators behind `attention`: schemas, fake kernels and derivatives; batching rules: batching.py.

    entformer::attention(query (B,H,Lq,D), key (B,G,Lk,D), value (B,G,Lk,E), alpha (B,H), ...) ->
        output (B,H,Lq,E), row_max (B,H,Lq), threshold (B,H,Lq) float64, support_size (B,H,Lq) int32,
        entropy (B,H,Lq) or (0,), reserve (B,H,...) uint8
    entformer::attention_backward(grad_output, ...) -> grad_query, grad_key, grad_value, and (0,) or grad_alpha,
        grad_bias, grad_sinks (B,H), grad_slopes (B,H)
    entformer::attention_support(...) -> col_indices, values of the exact support in CSR order
    entformer::attention_support_backward(grad_values, ...) -> as attention_backward, without grad_value

output and the gradients of query, key and value have the memory order of these (`arguments.new_rows`).
The weights of a row are exp_e(score - row_max - threshold). `reserve` is memory that only the backward pass of the same
implementation reads. alpha is (B,H), or (H,) for all batches alike, float64 or float32, and so is its gradient. attn_mask is
boolean (B,H,Lq,Lk), expanded, True = may attend; key_mask (B,Lk) the same per key; alibi_slopes (B,H) float32; normalizer
"entmax" ("softmax", "entmax15", "sparsemax" where the caller knows alpha), "relu" or "sigmoid", whose weights are
sigmoid(score - threshold);
dropout_seed () int64, or (N,) where the batch is N batches one after the other (vmap): each is dropped as if it were alone with
its seed. The last arguments, which have defaults, are those of `arguments.Features`.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ImplUnavailable
from entformer.kernels.attention import cpu, reference_ops, triton
from entformer.kernels.attention.arguments import Call, Features, alpha_per_head, new_rows
from entformer.kernels.attention.batching import batched
from entformer.kernels.autograd import call_with_gradient, eager_form, needs_gradient, records_no_graph, without_graph
from entformer.kernels.checks import runs_once
from entformer.kernels.entmax.ops import until_kernels_load

_MASKS = "Tensor? attn_mask, Tensor? key_mask, Tensor? alibi_slopes"
_STATE = "Tensor row_max, Tensor threshold"
_HOW = "str normalizer, float scale, bool is_causal, SymInt causal_offset"
_FEATURES = (
    "Tensor? bias=None, Tensor? sinks=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? window_left=None, "
    "SymInt? window_right=None, float? softcap=None, float? sigmoid_bias=None"
)
_NEEDS = "bool needs_bias_grad=False, bool needs_sinks_grad=False, bool needs_slopes_grad=False"
_SCHEMAS = (
    f"attention(Tensor query, Tensor key, Tensor value, Tensor alpha, {_MASKS}, {_HOW}, float dropout_p, Tensor dropout_seed, "
    f"bool return_entropy, {_FEATURES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    f"attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor alpha, {_MASKS}, {_STATE}, "
    f"Tensor support_size, Tensor reserve, {_HOW}, float dropout_p, Tensor dropout_seed, bool needs_alpha_grad, {_FEATURES}, "
    f"{_NEEDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    f"attention_support(Tensor query, Tensor key, Tensor alpha, {_MASKS}, {_STATE}, Tensor crow_indices, {_HOW}, {_FEATURES}) "
    "-> (Tensor, Tensor)",
    f"attention_support_backward(Tensor grad_values, Tensor query, Tensor key, Tensor alpha, {_MASKS}, {_STATE}, "
    f"Tensor crow_indices, {_HOW}, {_FEATURES}, bool needs_alpha_grad=False, {_NEEDS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_library = torch.library.Library("entformer", "FRAGMENT")
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

attention = torch.ops.entformer.attention.default
attention_backward = torch.ops.entformer.attention_backward.default
attention_support = torch.ops.entformer.attention_support.default
attention_support_backward = torch.ops.entformer.attention_support_backward.default
_FORWARD_INPUTS = len(attention._schema.arguments)
_SUPPORT_INPUTS = len(attention_support._schema.arguments)


def _forward_shapes(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return_entropy = rest[10]
    rows = query.shape[:3]
    return (
        new_rows(query, value.shape[3]),
        query.new_empty(rows, dtype=torch.float32),
        query.new_empty(rows, dtype=torch.float64),
        query.new_empty(rows, dtype=torch.int32),
        query.new_empty(rows if return_entropy else (0,), dtype=torch.float32),
        query.new_empty(_reserve_shape(query, key, value, rest), dtype=torch.uint8),
    )


def _reserve_shape(query: Tensor, key: Tensor, value: Tensor, rest: tuple[Any, ...]) -> tuple[int, ...]:
    if query.device.type == triton.DEVICE:
        return triton.reserve_shape(query, key, value)
    is_packed = len(rest) > 13 and rest[13] is not None  # cu_seqlens_q
    return *query.shape[:3], cpu.reserve_bytes(key.shape[2], is_packed)


def _parameter_shapes(query: Tensor, alpha: Tensor, bias: Tensor | None, needs: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """Gradients to alpha, bias, sinks and slopes."""
    needs_alpha_grad, needs_bias_grad, needs_sinks_grad, needs_slopes_grad = needs
    heads, nothing = query.shape[:2], (0,)
    return (
        alpha.new_empty(alpha.shape if needs_alpha_grad else nothing),
        query.new_empty(bias.shape if needs_bias_grad and bias is not None else nothing, dtype=torch.float32),
        query.new_empty(heads if needs_sinks_grad else nothing, dtype=torch.float32),
        query.new_empty(heads if needs_slopes_grad else nothing, dtype=torch.float32),
    )


def _backward_shapes(grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    bias, needs = rest[15] if len(rest) > 15 else None, (rest[14], *_padded(rest[23:], 3, False))
    gradients = (new_rows(t, t.shape[3]) for t in (query, key, value))
    return *gradients, *_parameter_shapes(query, rest[0], bias, needs)


def _support_shapes(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return query.new_empty(size, dtype=torch.int32), query.new_empty(size, dtype=torch.float32)


def _support_backward_shapes(grad_values: Tensor, query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    gradients = _parameter_shapes(query, rest[0], rest[11] if len(rest) > 11 else None, _padded(rest[19:], 4, False))
    return new_rows(query, query.shape[3]), new_rows(key, key.shape[3]), *gradients


def _padded(values: tuple[Any, ...], length: int, default: Any = None) -> tuple[Any, ...]:
    """Arguments that a caller has left out get their default."""
    return (*values, *(default,) * (length - len(values)))


def _reference_forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    reserve = query.new_zeros(_reserve_shape(query, key, value, rest), dtype=torch.uint8)
    return *reference_ops.forward(query, key, value, *rest), reserve  # the size that the fake kernel gave to a saved program


# The C++ kernels register for the CPU, which takes precedence once they are loaded.
for _operator, _dense, _shapes, _ordered in (
    (attention, _reference_forward, _forward_shapes, 1),
    (attention_backward, reference_ops.backward, _backward_shapes, 3),
    (attention_support, reference_ops.support, _support_shapes, 0),
    (attention_support_backward, reference_ops.support_backward, _support_backward_shapes, 2),
):
    _library.impl(_operator, until_kernels_load(_operator, _dense, _ordered), "CompositeExplicitAutograd")
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
        bias: Tensor | None,
        sinks: Tensor | None,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
        window_left: int | None,
        window_right: int | None,
        softcap: float | None,
        sigmoid_bias: float | None,
    ) -> tuple[Tensor, ...]:
        tensors = (query, key, value, alpha, attn_mask, key_mask, alibi_slopes)
        how = (normalizer, scale, is_causal, causal_offset, dropout_p, dropout_seed, return_entropy)
        features = (bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias)
        outputs: tuple[Tensor, ...] = attention(*tensors, *how, *features)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tensors, how, dropout_seed = inputs[:7], inputs[7:12], inputs[12]
        features = Features(*inputs[14:])
        _output, row_max, threshold, support_size, entropy, reserve = output
        ctx.mark_non_differentiable(row_max, threshold, support_size, entropy, reserve)
        ctx.set_materialize_grads(False)  # else backward begins by filling zeros as large as the reserve
        ctx.save_for_backward(*tensors, row_max, threshold, support_size, reserve, dropout_seed, *features[:4])
        ctx.how, ctx.numbers = how, features[4:]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, *_others: Tensor | None) -> tuple[Any, ...]:
        if grad_output is None:
            return (None,) * len(ctx.needs_input_grad)
        needs_grad = _padded(ctx.needs_input_grad, _FORWARD_INPUTS, False)
        needs = (needs_grad[3], needs_grad[14], needs_grad[15], needs_grad[6])
        *of_inputs, of_alpha, of_bias, of_sinks, of_slopes = _gradients(ctx, grad_output, ctx.saved_tensors, needs)
        every = (*of_inputs, of_alpha, None, None, of_slopes, *(None,) * 7, of_bias, of_sinks, *(None,) * 6)
        return every[: len(ctx.needs_input_grad)]


def _gradients(ctx: Any, grad_output: Tensor, saved: tuple[Any, ...], needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The gradients to query, key, value, alpha, bias, sinks and slopes; the last four where they are needed."""
    inputs = (grad_output, *saved[:11], *ctx.how, saved[11], needs[0], *saved[12:], *ctx.numbers, *needs[1:])
    if records_no_graph(*inputs):
        grads = without_graph(attention_backward, *inputs)
    else:
        grads = AttentionBackwardFunction.apply(*inputs)  # type: ignore[no-untyped-call]
    return *grads[:3], *(g if n else None for g, n in zip(grads[3:], needs, strict=True))


class EagerAttention(torch.autograd.Function):
    """The same for eager code, where torch handles every argument one by one: only those that can have a gradient are such.

    alpha is the caller's tensor, whose values `inputs`, those of the operator, have in its form. What the operator returns
    beside its first output has no gradient and goes into `others`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Tensor | None,
        bias: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
        inputs: tuple[Any, ...],
        others: list[Tensor],
    ) -> Tensor:
        output: Tensor
        output, *others[:] = without_graph(attention, *inputs)
        row_max, threshold, support_size, _entropy, reserve = others
        tensors = (query, key, value, *inputs[3:6], alibi_slopes, row_max, threshold, support_size, reserve, inputs[12])
        ctx.save_for_backward(*tensors, bias, sinks, *inputs[16:18])
        ctx.alpha, ctx.how, ctx.numbers = alpha, inputs[7:12], inputs[18:]  # alpha's values, or itself, are saved above
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_output is None:
            return (None,) * 9
        alpha, saved = ctx.alpha, ctx.saved_tensors
        if alpha is not None and torch.is_grad_enabled():  # a second derivative is recorded
            saved = (*saved[:3], alpha_per_head(alpha, saved[0]), *saved[4:])
        *grads, of_alpha, of_bias, of_sinks, of_slopes = _gradients(ctx, grad_output, saved, ctx.needs_input_grad[3:7])
        if of_alpha is not None and of_alpha.shape != alpha.shape:
            one_per_head = alpha.shape == of_alpha.shape[1:]  # the rule; sum_to_size takes longer
            of_alpha = of_alpha.sum(0) if one_per_head else of_alpha.sum_to_size(alpha.shape)
        if of_alpha is not None and of_alpha.dtype != alpha.dtype:
            of_alpha = of_alpha.to(alpha)
        return *grads, of_alpha, of_bias, of_sinks, of_slopes, None, None


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
        bias: Tensor | None,
        sinks: Tensor | None,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
        window_left: int | None,
        window_right: int | None,
        softcap: float | None,
        sigmoid_bias: float | None,
        needs_bias_grad: bool,
        needs_sinks_grad: bool,
        needs_slopes_grad: bool,
    ) -> tuple[Tensor, ...]:
        saved = (alpha, attn_mask, key_mask, alibi_slopes, row_max, threshold, support_size, reserve)
        how = (normalizer, scale, is_causal, causal_offset, dropout_p, dropout_seed, needs_alpha_grad)
        features = (bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias)
        needs = (needs_bias_grad, needs_sinks_grad, needs_slopes_grad)
        grads: tuple[Tensor, ...] = attention_backward(grad_output, query, key, value, *saved, *how, *features, *needs)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Any, ...]:
        raise ImplUnavailable("fused attention has no second derivatives; use impl='reference' where you need them.")


class SupportFunction(torch.autograd.Function):
    """attention_support with the gradient of its values."""

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        alpha: Tensor,
        attn_mask: Tensor | None,
        key_mask: Tensor | None,
        alibi_slopes: Tensor | None,
        row_max: Tensor,
        threshold: Tensor,
        crow_indices: Tensor,
        normalizer: str,
        scale: float,
        is_causal: bool,
        causal_offset: int,
        bias: Tensor | None,
        sinks: Tensor | None,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
        window_left: int | None,
        window_right: int | None,
        softcap: float | None,
        sigmoid_bias: float | None,
    ) -> tuple[Tensor, Tensor]:
        tensors = (query, key, alpha, attn_mask, key_mask, alibi_slopes, row_max, threshold, crow_indices)
        how = (normalizer, scale, is_causal, causal_offset)
        features = (bias, sinks, cu_seqlens_q, cu_seqlens_k, window_left, window_right, softcap, sigmoid_bias)
        col_indices, values = attention_support(*tensors, *how, *features)
        return col_indices, values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        features = Features(*inputs[13:])
        ctx.mark_non_differentiable(output[0])
        ctx.save_for_backward(*inputs[:9], *features[:4])
        ctx.how, ctx.numbers = inputs[9:13], features[4:]

    @staticmethod
    def backward(ctx: Any, _grad_columns: Tensor | None, grad_values: Tensor) -> tuple[Any, ...]:
        needs_grad = _padded(ctx.needs_input_grad, _SUPPORT_INPUTS, False)
        needs = (needs_grad[2], needs_grad[13], needs_grad[14], needs_grad[5])  # alpha, bias, sinks, slopes
        tensors, features = ctx.saved_tensors[:9], ctx.saved_tensors[9:]
        grads = attention_support_backward(grad_values.contiguous(), *tensors, *ctx.how, *features, *ctx.numbers, *needs)
        of_alpha, of_bias, of_sinks, of_slopes = (g if n else None for g, n in zip(grads[2:], needs, strict=True))
        every = (*grads[:2], of_alpha, None, None, of_slopes, *(None,) * 7, of_bias, of_sinks, *(None,) * 6)
        return every[: len(ctx.needs_input_grad)]


for _name, _rule in (
    ("attention", AttentionFunction),
    ("attention_backward", AttentionBackwardFunction),
    ("attention_support", SupportFunction),
):
    torch.library.register_autograd(f"entformer::{_name}", _rule.backward, setup_context=_rule.setup_context, lib=_library)


_EagerSupport = eager_form(attention_support, SupportFunction)


def attention_once(call: Call, alpha: float | Tensor, return_entropy: bool) -> tuple[Tensor, ...]:
    """The operator `attention` with its gradient, that of alpha to `alpha`, for calls that run once (`checks.runs_once`)."""
    inputs: tuple[Any, ...] = (*call[:-1], return_entropy, *call.features)
    differentiable = (*call[:3], alpha if isinstance(alpha, Tensor) else None, *call.features[:2], call.alibi_slopes)
    if not needs_gradient(*differentiable):
        return tuple(without_graph(attention, *inputs))
    others: list[Tensor] = []
    output = EagerAttention.apply(*differentiable, inputs, others)  # type: ignore[no-untyped-call]
    return output, *others


def attention_with_gradient(call: Call, alpha: float | Tensor, return_entropy: bool) -> tuple[Tensor, ...]:
    """The operator `attention` with its gradient. That of alpha goes to `alpha` if the call runs once, else to `call.alpha`."""
    if runs_once():
        return attention_once(call, alpha, return_entropy)
    inputs: tuple[Any, ...] = (*call[:-1], return_entropy, *call.features)
    if records_no_graph(*inputs):
        return tuple(without_graph(attention, *inputs))  # which torch.jit can save, unlike a Function
    if torch.compiler.is_compiling():
        # The tracer records requires_grad when a tensor is made; torch.func.grad marks its inputs afterwards. Views are made.
        inputs = tuple(value.view_as(value) if isinstance(value, Tensor) else value for value in inputs)
    return tuple(AttentionFunction.apply(*inputs))  # type: ignore[no-untyped-call]


def support_with_gradient(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The operator `attention_support` with its gradient."""
    col_indices, values = call_with_gradient(attention_support, SupportFunction, _EagerSupport, inputs)
    return col_indices, values


torch.library.register_vmap("entformer::attention", batched(attention), lib=_library)
torch.library.register_vmap("entformer::attention_backward", batched(attention_backward), lib=_library)
