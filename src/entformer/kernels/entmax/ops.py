"""The torch operators behind `entmax`: schemas, shapes for the tracer, derivatives, batching and autocast rules.

    entformer::entmax_forward(scores (..., n), alpha (...)) -> weights (..., n)
    entformer::entmax_backward(weights, alpha, grad_weights, needs_alpha_grad) -> grad_scores (..., n), grad_alpha (...) or (0,)

alpha is float64, one value per row. The CPU kernels come from `cpu_ops.cpp` when `kernels.native` loads it; everywhere else
the reference serves. Backward needs the weights only, so nothing but the output is kept between the passes.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels.checks import transform_active
from entformer.kernels.entmax import reference
from entformer.kernels.registry import resolve

_library = torch.library.Library("entformer", "FRAGMENT")
_library.define("entmax_forward(Tensor scores, Tensor alpha) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    "entmax_backward(Tensor weights, Tensor alpha, Tensor grad_weights, bool needs_alpha_grad) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)

entmax_forward = torch.ops.entformer.entmax_forward.default
entmax_backward = torch.ops.entformer.entmax_backward.default


def _rows_shape(scores: Tensor, alpha: Tensor) -> Tensor:
    return scores.new_empty(scores.shape)


def _backward_shape(weights: Tensor, alpha: Tensor, grad_weights: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
    rows = weights.shape[:-1] if needs_alpha_grad else (0,)
    return weights.new_empty(weights.shape), weights.new_empty(rows, dtype=torch.float64)


def _rows_without_kernel(scores: Tensor, alpha: Tensor) -> Tensor:
    """entmax_forward before the C++ kernels are loaded, as in a process that runs a saved program; loads them."""
    if resolve("auto", scores.device.type) == "cpu":
        weights: Tensor = entmax_forward(scores, alpha)
        return weights
    return reference.entmax_forward(scores, alpha).contiguous()  # as the shape function has it


def _backward_without_kernel(
    weights: Tensor, alpha: Tensor, grad_weights: Tensor, needs_alpha_grad: bool
) -> tuple[Tensor, Tensor]:
    if resolve("auto", weights.device.type) == "cpu":
        grads: tuple[Tensor, Tensor] = entmax_backward(weights, alpha, grad_weights, needs_alpha_grad)
        return grads
    grad_scores, grad_alpha = reference.entmax_backward(weights, alpha, grad_weights, needs_alpha_grad)
    return grad_scores.contiguous(), grad_alpha.double().contiguous()


# The C++ kernels register for the CPU, which takes precedence once they are loaded.
_library.impl("entmax_forward", _rows_without_kernel, "CompositeExplicitAutograd")
_library.impl("entmax_backward", _backward_without_kernel, "CompositeExplicitAutograd")
torch.library.register_fake("entformer::entmax_forward", _rows_shape, lib=_library)
torch.library.register_fake("entformer::entmax_backward", _backward_shape, lib=_library)


# ---- derivatives -------------------------------------------------------------------------------------------------------
# torch.func asks for autograd.Functions, torch.library for the same two rules under the operators' names: one text serves both.


class RowsFunction(torch.autograd.Function):
    """entmax_forward with its gradient; backward needs the weights and alpha only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        weights: Tensor = entmax_forward(scores, alpha)
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])
        ctx.set_materialize_grads(False)  # a loss that has no gradient for the weights must not pay for one

    @staticmethod
    def backward(ctx: Any, grad_weights: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if grad_weights is None:
            return None, None
        weights, alpha = ctx.saved_tensors
        needs_alpha_grad = ctx.needs_input_grad[1]
        grad_scores, grad_alpha = RowsBackwardFunction.apply(weights, alpha, grad_weights, needs_alpha_grad)  # type: ignore[no-untyped-call]
        return grad_scores, grad_alpha if needs_alpha_grad else None


class RowsBackwardFunction(torch.autograd.Function):
    """entmax_backward; its own gradient differentiates the readable closed form in (weights, alpha, grad)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, alpha: Tensor, grad_weights: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
        grads: tuple[Tensor, Tensor] = entmax_backward(weights, alpha, grad_weights, needs_alpha_grad)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.needs_alpha_grad = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_scores: Tensor, grad_alpha: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        def closed_form(weights: Tensor, alpha: Tensor, grad_weights: Tensor) -> tuple[Tensor, Tensor]:
            return reference.entmax_backward(weights, alpha, grad_weights, ctx.needs_alpha_grad)

        pull_back = torch.func.vjp(closed_form, *ctx.saved_tensors)[1]
        return *pull_back((grad_scores, grad_alpha)), None


for _name, _rule in (("entmax_forward", RowsFunction), ("entmax_backward", RowsBackwardFunction)):
    torch.library.register_autograd(f"entformer::{_name}", _rule.backward, setup_context=_rule.setup_context, lib=_library)


def entmax_with_gradient(scores: Tensor, alpha: Tensor) -> Tensor:
    """entmax_forward as callers use it: the Function, which torch.func needs, or where nothing differentiates the operator.

    The operator can be saved by torch.jit; a Python Function cannot.
    """
    rows = entmax_forward if plain_operator_suffices(scores, alpha) else RowsFunction.apply
    weights: Tensor = rows(scores, alpha)  # type: ignore[no-untyped-call]
    return weights


def plain_operator_suffices(*tensors: Tensor) -> bool:
    """Whether no gradient is recorded and no transform of torch.func is active."""
    if torch.compiler.is_compiling() or transform_active():
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


# ---- vmap: a batch is only more rows -----------------------------------------------------------------------------------


def _batch_first(batch_size: int, tensor: Tensor, batch_dim: int | None) -> Tensor:
    return tensor.expand(batch_size, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)


def _rows_batched(info: Any, in_dims: tuple[int | None, ...], scores: Tensor, alpha: Tensor) -> tuple[Tensor, int]:
    tensors = (_batch_first(info.batch_size, t, d) for t, d in zip((scores, alpha), in_dims, strict=True))
    return entmax_forward(*tensors), 0


def _backward_batched(
    info: Any, in_dims: tuple[int | None, ...], weights: Tensor, alpha: Tensor, grad: Tensor, needs_alpha_grad: bool
) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
    tensors = (_batch_first(info.batch_size, t, d) for t, d in zip((weights, alpha, grad), in_dims[:3], strict=True))
    return entmax_backward(*tensors, needs_alpha_grad), (0, 0 if needs_alpha_grad else None)


torch.library.register_vmap("entformer::entmax_forward", _rows_batched, lib=_library)
torch.library.register_vmap("entformer::entmax_backward", _backward_batched, lib=_library)
