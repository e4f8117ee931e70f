"""GELU in the approximation by tanh, faster in eager mode on the CPU, where torch's tanh is slow: by a sigmoid.

    gelu(x) = x s,   s = sigmoid(w),   w = x (K + C x^2)          K = 2 sqrt(2 / pi),   C = 0.044715 K
    dx = dy s (1 + (1 - s) x w'),      w' = K + 3 C x^2

Half of torch's time, forward and backward.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.kernels.checks import traced_by_jit, transform_active

__all__ = ["gelu_tanh"]

K = 2.0 * math.sqrt(2.0 / math.pi)
C = 0.044715 * K


def gelu_tanh(x: Tensor) -> Tensor:
    """Returns torch.nn.functional.gelu(x, approximate="tanh")."""
    plain = type(x) is Tensor and x.device.type == "cpu" and x.dtype == torch.float32
    if not plain or torch.compiler.is_compiling() or transform_active() or traced_by_jit():
        return F.gelu(x, approximate="tanh")
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _gate(x).mul_(x)
    y: Tensor = _GeluTanh.apply(x)  # type: ignore[no-untyped-call]
    return y


def _gate(x: Tensor) -> Tensor:
    return (x * x).mul_(C).add_(K).mul_(x).sigmoid_()


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = _gate(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative will be asked for
            gradient: Tensor = torch.ops.aten.gelu_backward(grad, x, approximate="tanh")
            return gradient
        slope = (x * x).mul_(3.0 * C).add_(K).mul_(x)  # x w'
        return slope.addcmul_(slope, gate, value=-1.0).add_(1.0).mul_(gate).mul_(grad)
