"""The operators of `ops.py` by dense operations: they run where there are no kernels and a saved program calls the operators.

Gradients are the closed forms that the kernels use (docs/mathematics.md); the state of the rows and the reserve are not read.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels.attention import reference
from entformer.kernels.attention.arguments import Call, Features, new_rows, with_alpha_per_head
from entformer.kernels.attention.elementwise import BY_OPERATOR
from entformer.kernels.attention.reference import Dense
from entformer.kernels.entmax import reference as entmax_reference
from entformer.kernels.registry import dense_dtype


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Computes `entformer::attention` but for its reserve."""
    return_entropy = arguments[13]
    call = with_alpha_per_head(Call._make((*arguments[:13], Features(*arguments[14:]))))
    dense = _dense(call)
    row_max, threshold, support_size, entropy = reference.row_state(call, dense)
    output, entropy = _in_order(call.query, dense.output), entropy if return_entropy else entropy.new_empty(0)
    return output, row_max, threshold.double(), support_size, entropy


def backward(grad_output: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Computes `entformer::attention_backward`."""
    tensors, how, needs_alpha_grad = arguments[:7], arguments[11:17], arguments[17]
    features, needs = Features(*arguments[18:26]), (needs_alpha_grad, *_padded(arguments[26:], 3))
    call = with_alpha_per_head(Call._make((*tensors, *how, features)))
    dense = _dense(call._replace(dropout_p=0.0))
    group = call.query.shape[1] // max(call.key.shape[1], 1)
    g = grad_output.to(dense.weights.dtype)
    v = call.value.to(g.dtype).repeat_interleave(group, 1)
    used, grad_weights = dense.weights, g @ v.transpose(-1, -2)
    if call.dropout_p > 0.0:
        kept = reference.keep_mask(used.shape, call.dropout_p, call.dropout_seed)
        used, grad_weights = (torch.where(kept, t / (1.0 - call.dropout_p), 0.0) for t in (used, grad_weights))
    grad_value = used.transpose(-1, -2) @ g
    if group > 1:
        grad_value = grad_value.unflatten(1, (-1, group)).sum(2)
    grad_query, grad_key, *others = _gradients(call, tensors[3], dense, grad_weights, needs)
    return grad_query, grad_key, _in_order(call.value, grad_value), *others


def support(query: Tensor, key: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Computes `entformer::attention_support`."""
    dense = _dense(_support_call(query, key, arguments))
    return reference.to_csr(dense.weights)[1:]


def support_backward(grad_values: Tensor, query: Tensor, key: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Computes `entformer::attention_support_backward`."""
    call = _support_call(query, key, arguments[:19])
    dense = _dense(call)
    grad_weights = torch.zeros_like(dense.weights)
    grad_weights[dense.weights > 0.0] = grad_values.to(grad_weights.dtype)
    return _gradients(call, arguments[0], dense, grad_weights, _padded(arguments[19:], 4))


def _support_call(query: Tensor, key: Tensor, arguments: tuple[Any, ...]) -> Call:
    alpha, *masks, row_max, _threshold, _crow = arguments[:7]
    features = Features(*arguments[11:])
    return with_alpha_per_head(Call._make((query, key, key, alpha, *masks, *arguments[7:11], 0.0, row_max, features)))


def _in_order(like: Tensor, rows: Tensor) -> Tensor:
    return new_rows(like, rows.shape[3]).copy_(rows)


def _padded(needs: tuple[bool, ...], length: int) -> tuple[bool, ...]:
    return (*needs, *(False,) * (length - len(needs)))  # torch leaves out trailing arguments that have their default


def _dense(call: Call) -> Dense:
    def normalizer_fn(scores: Tensor) -> Tensor:
        if entry := BY_OPERATOR.get(call.normalizer):
            return entry.weights(scores, call.features.sigmoid_bias)
        return entmax_reference.entmax(scores, call.alpha[:, :, None])

    return reference.dense_attention(call, normalizer_fn, dense_dtype(call.query.dtype, call.query.device.type, exact=False))


def _gradients(call: Call, alpha: Tensor, dense: Dense, grad_weights: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """From dL/dweights: the gradients to query, key, `alpha` as given, bias, sinks and slopes; (0,) for what is not needed."""
    query, key, more = call.query, call.key, call.features
    needs_alpha_grad, needs_bias_grad, needs_sinks_grad, needs_slopes_grad = needs
    weights, nothing = dense.with_sinks, query.new_zeros(0, dtype=torch.float32)
    grad_alpha, grad_bias, grad_sinks, grad_slopes = nothing.to(alpha.dtype), nothing, nothing, nothing
    if more.sinks is not None:
        grad_weights = torch.cat([grad_weights, torch.zeros_like(grad_weights[..., :1])], -1)
    if entry := BY_OPERATOR.get(call.normalizer):
        grad_scores = grad_weights * entry.slope(weights)
    else:
        row_alpha = call.alpha[:, :, None].expand(weights.shape[:-1])
        grad_scores, of_rows = entmax_reference.entmax_backward(grad_weights, weights, row_alpha, needs_alpha_grad)
        grad_alpha = of_rows.sum(-1).sum_to_size(alpha.shape).to(alpha.dtype) if needs_alpha_grad else grad_alpha
    if needs_alpha_grad and call.normalizer != "entmax":
        grad_alpha = torch.zeros_like(alpha)
    grad_scores = torch.where(weights > 0.0, grad_scores, 0.0)
    if more.sinks is not None:
        grad_sinks = grad_scores[..., -1].sum(-1).to(more.sinks.dtype) if needs_sinks_grad else nothing
        grad_scores = grad_scores[..., :-1]
    if needs_bias_grad and more.bias is not None:
        grad_bias = grad_scores.sum_to_size(more.bias.shape).to(more.bias.dtype)
    if needs_slopes_grad and call.alibi_slopes is not None:
        grad_slopes = -(grad_scores * dense.parts.distance.abs()).sum((-1, -2)).to(call.alibi_slopes.dtype)
    if dense.parts.cap_slope is not None:
        grad_scores = grad_scores * dense.parts.cap_slope
    q, group = query.to(grad_scores.dtype), query.shape[1] // max(key.shape[1], 1)
    grad_query = call.scale * (grad_scores @ key.to(q.dtype).repeat_interleave(group, 1))
    grad_key = call.scale * (grad_scores.transpose(-1, -2) @ q)
    if group > 1:
        grad_key = grad_key.unflatten(1, (-1, group)).sum(2)
    return _in_order(query, grad_query), _in_order(key, grad_key), grad_alpha, grad_bias, grad_sinks, grad_slopes
