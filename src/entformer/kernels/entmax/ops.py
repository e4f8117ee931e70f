"""The torch operators behind `entmax`: schemas, fake kernels, derivatives and batching rules.

    entformer::entmax(scores (..., n), alpha (...)) -> weights (..., n)
    entformer::entmax_backward(grad_output, output, alpha, needs_alpha_grad) -> grad_scores (..., n), grad_alpha (...) or (0,)

alpha is float64, one value per row. `csrc/bindings.cpp` registers the CPU kernels when `kernels.native` loads it, and
`triton.register` those for GPUs; where there are none, the reference implementation runs. Backward needs the weights only, so
nothing but the output is saved.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels.autograd import call_with_gradient, eager_form, records_no_graph, without_graph
from entformer.kernels.entmax import reference, triton
from entformer.kernels.registry import resolve

_library = torch.library.Library("entformer", "FRAGMENT")
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define("entmax(Tensor scores, Tensor alpha) -> Tensor", tags=_tags)
_library.define(
    "entmax_backward(Tensor grad_output, Tensor output, Tensor alpha, bool needs_alpha_grad) -> (Tensor, Tensor)", tags=_tags
)

entmax = torch.ops.entformer.entmax.default
entmax_backward = torch.ops.entformer.entmax_backward.default


def _entmax_shape(scores: Tensor, alpha: Tensor) -> Tensor:
    return scores.new_empty(scores.shape)


def _backward_shape(grad_output: Tensor, output: Tensor, alpha: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
    rows = output.shape[:-1] if needs_alpha_grad else (0,)
    return output.new_empty(output.shape), output.new_empty(rows, dtype=torch.float64)


def until_kernels_load(operator: Any, implementation: Any, ordered: int = 0) -> Any:
    """The operator before C++ kernels are loaded, as when a saved program runs: loads them, or runs `implementation`.

    Results are contiguous, as the fake kernels say, but for the first `ordered`, whose memory order is the implementation's.
    """

    def run(first: Tensor, *rest: Any) -> Any:
        if resolve("auto", first.device.type) == "cpu":
            return operator(first, *rest)
        found = implementation(first, *rest)
        if isinstance(found, Tensor):
            return found.contiguous()
        return *found[:ordered], *(t.contiguous() for t in found[ordered:])

    return run


def _reference_backward(*inputs: Any) -> tuple[Tensor, Tensor]:
    grad_scores, grad_alpha = reference.entmax_backward(*inputs)
    return grad_scores, grad_alpha.double()


# The C++ kernels register for the CPU, which takes precedence once they are loaded.
_library.impl("entmax", until_kernels_load(entmax, reference.entmax), "CompositeExplicitAutograd")
_library.impl("entmax_backward", until_kernels_load(entmax_backward, _reference_backward), "CompositeExplicitAutograd")
torch.library.register_fake("entformer::entmax", _entmax_shape, lib=_library)
torch.library.register_fake("entformer::entmax_backward", _backward_shape, lib=_library)
triton.register()


# ---- derivatives -------------------------------------------------------------------------------------------------------
# torch.func needs autograd.Functions, torch.library the same two rules under the operators' names: both use these classes.


class EntmaxFunction(torch.autograd.Function):
    """entmax with its gradient; backward needs the weights and alpha only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        weights: Tensor = entmax(scores, alpha)
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])
        ctx.set_materialize_grads(False)  # a loss that has no gradient for the weights must not pay for one

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if grad_output is None:
            return None, None
        needs_alpha_grad = ctx.needs_input_grad[1]
        inputs = (grad_output, *ctx.saved_tensors, needs_alpha_grad)
        if records_no_graph(*inputs):
            grad_scores, grad_alpha = without_graph(entmax_backward, *inputs)
        else:
            grad_scores, grad_alpha = EntmaxBackwardFunction.apply(*inputs)  # type: ignore[no-untyped-call]
        return grad_scores, grad_alpha if needs_alpha_grad else None


class EntmaxBackwardFunction(torch.autograd.Function):
    """entmax_backward; its own gradient differentiates the closed form of the reference in (grad, weights, alpha)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad_output: Tensor, output: Tensor, alpha: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
        grads: tuple[Tensor, Tensor] = entmax_backward(grad_output, output, alpha, needs_alpha_grad)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.needs_alpha_grad = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_scores: Tensor, grad_alpha: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        def closed_form(grad: Tensor, weights: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
            return reference.entmax_backward(grad, weights, alpha, ctx.needs_alpha_grad)

        pull_back = torch.func.vjp(closed_form, *ctx.saved_tensors)[1]
        return *pull_back((grad_scores, grad_alpha)), None


for _name, _rule in (("entmax", EntmaxFunction), ("entmax_backward", EntmaxBackwardFunction)):
    torch.library.register_autograd(f"entformer::{_name}", _rule.backward, setup_context=_rule.setup_context, lib=_library)


_EagerFunction = eager_form(entmax, EntmaxFunction)


def entmax_with_gradient(scores: Tensor, alpha: Tensor) -> Tensor:
    """The operator `entmax` with its gradient."""
    weights: Tensor = call_with_gradient(entmax, EntmaxFunction, _EagerFunction, (scores, alpha))
    return weights


# ---- vmap: a batch is only more rows -----------------------------------------------------------------------------------


def _batch_first(batch_size: int, tensor: Tensor, batch_dim: int | None) -> Tensor:
    return tensor.expand(batch_size, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)


def _entmax_batched(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
    return entmax(*(_batch_first(info.batch_size, t, d) for t, d in zip(tensors, in_dims, strict=True))), 0


def _backward_batched(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, tuple[int, int | None]]:
    *tensors, needs_alpha_grad = inputs
    batched = (_batch_first(info.batch_size, t, d) for t, d in zip(tensors, in_dims, strict=False))
    return entmax_backward(*batched, needs_alpha_grad), (0, 0 if needs_alpha_grad else None)


torch.library.register_vmap("entformer::entmax", _entmax_batched, lib=_library)
torch.library.register_vmap("entformer::entmax_backward", _backward_batched, lib=_library)
