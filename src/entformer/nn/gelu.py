"""The gate of a feed-forward layer in few passes on the CPU, in eager mode: x, y (..., d) to gelu(x) * y.

GELU is the approximation by tanh, here by a sigmoid, since torch's tanh is slow:

    gelu(x) = x s,   s = sigmoid(w),   w = x (K + C x^2)          K = 2 sqrt(2 / pi),   C = 0.044715 K
    gelu'(x) = s (1 + (1 - s) x w'),   w' = K + 3 C x^2

It takes about half of torch's time.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.kernels.checks import traced_by_jit, transform_active

__all__ = ["gated_gelu"]

K = 2.0 * math.sqrt(2.0 / math.pi)
C = 0.044715 * K


def gated_gelu(x: Tensor, y: Tensor) -> Tensor:
    """Returns gelu(x, approximate="tanh") * y."""
    plain = type(x) is type(y) is Tensor and x.device.type == "cpu" and x.dtype == y.dtype == torch.float32
    if not plain or torch.compiler.is_compiling() or transform_active() or traced_by_jit():
        return F.gelu(x, approximate="tanh") * y
    if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
        return _gate(x).mul_(x).mul_(y)
    found: Tensor = _GatedGelu.apply(x, y)  # type: ignore[no-untyped-call]
    return found


def _gate(x: Tensor) -> Tensor:
    return (x * x).mul_(C).add_(K).mul_(x).sigmoid_()


class _GatedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        gate = _gate(x)
        ctx.save_for_backward(x, y, gate)
        return (x * gate).mul_(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y, gate = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative will be asked for
            to_x: Tensor = torch.ops.aten.gelu_backward(grad * y, x, approximate="tanh")
            return to_x, grad * F.gelu(x, approximate="tanh")
        slope = (x * x).mul_(3.0 * C).add_(K).mul_(x)  # x w'
        slope.addcmul_(slope, gate, value=-1.0).add_(1.0).mul_(gate).mul_(y).mul_(grad)
        return slope, (gate * x).mul_(grad)
