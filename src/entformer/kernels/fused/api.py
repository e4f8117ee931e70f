"""The door to the training kernels. In: scores and classes, or a tensor to drop from. Out: losses, or what is left.

Dropout: torch draws a random number per element and stores the mask. Here one number of torch's generator seeds a hash of the
element's place, so the mask costs next to nothing, is the same on any number of threads, and is drawn again in backward
instead of being stored; and what is left is added to the residual in the same pass. `torch.manual_seed` repeats a run.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.kernels.checks import transform_active
from entformer.kernels.fused import ops, reference
from entformer.kernels.registry import resolve

_DTYPES = (torch.float32, torch.bfloat16)


def cross_entropy_(scores: Tensor, target: Tensor, smoothing: float, differentiate: bool) -> Tensor:
    """Label-smoothed cross entropy of contiguous scores (rows, V), which become their gradient if `differentiate`.

    Out: (rows, 3): the smoothed loss, -ln p of the target, and 1 where the target has the best score.
    """
    served = scores.dtype in _DTYPES and scores.is_cpu and resolve("auto", scores.device.type) == "cpu"
    sums: Tensor = (ops if served else reference).cross_entropy_(scores, target, smoothing, differentiate)
    return sums


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """x with a share p of its elements zero and the others divided by 1 - p, plus `residual` of the same shape."""
    if not 0.0 <= p < 1.0:
        raise ArgumentError(f"dropout={p} must be at least 0 and below 1.")
    if residual is not None and residual.shape != x.shape:
        raise ArgumentError(f"the residual has shape {tuple(residual.shape)}, what is added to it {tuple(x.shape)}.")
    dtypes = (x.dtype, x.dtype if residual is None else residual.dtype)
    eager = not torch.compiler.is_compiling() and not transform_active()  # torch's own dropout has rules for transforms
    if p > 0.0 and eager and all(dtype in _DTYPES for dtype in dtypes) and resolve("auto", x.device.type) == "cpu" and x.is_cpu:
        seed = torch.randint(2**62, (), dtype=torch.int64, device=x.device)
        return _Dropout.apply(x, residual, seed, p)  # type: ignore[no-any-return,no-untyped-call]
    dropped = torch.nn.functional.dropout(x, p)
    return dropped if residual is None else residual + dropped


class _Dropout(torch.autograd.Function):
    """Backward is dropout of the gradient with the same seed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, seed: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.p = p
        ctx.narrow = x.dtype == torch.bfloat16
        out: Tensor = ops.dropout(
            x,
            residual,
            seed,
            p,
            ctx.narrow and (residual is None or residual.dtype == x.dtype),
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (seed,) = ctx.saved_tensors
        to_x = _DropoutBackward.apply(grad, seed, ctx.p, ctx.narrow) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        return to_x, grad if ctx.needs_input_grad[1] else None, None, None


class _DropoutBackward(torch.autograd.Function):
    """The same mask again: linear, so its own derivative is itself once more."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, seed: Tensor, p: float, narrow: bool) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.p = p
        ctx.narrow = grad.dtype == torch.bfloat16
        out: Tensor = ops.dropout(grad, None, seed, p, narrow)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (seed,) = ctx.saved_tensors
        again = _DropoutBackward.apply(grad, seed, ctx.p, ctx.narrow)  # type: ignore[no-untyped-call]
        return again, None, None, None
