"""The gate of a feed-forward layer in few passes on the CPU, in eager mode: both (..., 2 d) to gelu(x) * y (..., d).

x and y are the two halves of `both`; GELU is the approximation by tanh, here by a sigmoid, since torch's tanh is slow:

    gelu(x) = x s,   s = sigmoid(w),   w = x (K + C x^2)          K = 2 sqrt(2 / pi),   C = 0.044715 K
    gelu'(x) = s (1 + (1 - s) x w'),   w' = K + 3 C x^2

Backward writes the gradients of both halves into one tensor. The gate takes less than half of torch's time.
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


def gated_gelu(both: Tensor) -> Tensor:
    """Returns gelu(x, approximate="tanh") * y of x, y = both.chunk(2, -1)."""
    plain = type(both) is Tensor and both.device.type == "cpu" and both.dtype == torch.float32
    if not plain or torch.compiler.is_compiling() or transform_active() or traced_by_jit():
        x, y = both.chunk(2, -1)
        return F.gelu(x, approximate="tanh") * y
    if not (torch.is_grad_enabled() and both.requires_grad):
        x, y = both.chunk(2, -1)
        return _gate(x).mul_(x).mul_(y)
    found: Tensor = _GatedGelu.apply(both)  # type: ignore[no-untyped-call]
    return found


def _gate(x: Tensor) -> Tensor:
    return (x * x).mul_(C).add_(K).mul_(x).sigmoid_()


class _GatedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        x, y = both.chunk(2, -1)
        gate = _gate(x)
        ctx.save_for_backward(both, gate)
        return (x * gate).mul_(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        both, gate = ctx.saved_tensors
        x, y = both.chunk(2, -1)
        if torch.is_grad_enabled():  # a second derivative will be asked for
            to_x: Tensor = torch.ops.aten.gelu_backward(grad * y, x, approximate="tanh")
            return torch.cat([to_x, grad * F.gelu(x, approximate="tanh")], -1)
        slope = (x * x).mul_(3.0 * C).add_(K).mul_(x)  # x w'
        slope.addcmul_(slope, gate, value=-1.0).add_(1.0).mul_(gate).mul_(y)
        found = torch.empty_like(both)
        first, second = found.chunk(2, -1)
        torch.mul(slope, grad, out=first)
        torch.mul(gate * x, grad, out=second)
        return found
