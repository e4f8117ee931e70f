"""Calls an operator with its gradient in the cheapest form that the context allows.

torch binds the arguments of an autograd.Function with `setup_context` by name at every call, and the autograd kernel that
torch.library generates for an operator is Python too: for the 22 arguments of attention, forward and backward, 0.2 ms a call,
as much as the attention of a short sentence. Only torch.func and torch.compile need those forms.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels import checks


def without_graph(operator: Any, *inputs: Any) -> Any:
    """Calls the operator below the autograd kernel, which would only pass the call on where no gradient is recorded."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*inputs)


def records_no_graph(*tensors: Any) -> bool:
    """Whether `without_graph` suffices for these inputs."""
    return checks.runs_eagerly() and not needs_gradient(*tensors)


def needs_gradient(*tensors: Any) -> bool:
    """Whether autograd records what is computed from these inputs."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def eager_form(operator: Any, function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """`function`, which has `setup_context` and the gradient of `operator`, in the form with a context for `forward`."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = without_graph(operator, *inputs)
            function.setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(function.backward)

    return Eager


def call_with_gradient(
    operator: Any, function: type[torch.autograd.Function], eager: type[torch.autograd.Function], inputs: tuple[Any, ...]
) -> Any:
    """Calls the operator with its gradient; `eager` is its `eager_form`."""
    if not checks.runs_eagerly():
        return function.apply(*inputs)
    if not needs_gradient(*inputs):
        return without_graph(operator, *inputs)  # which torch.jit can save, unlike a Function
    return eager.apply(*inputs)
