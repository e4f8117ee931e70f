"""RMSNorm in fewer passes over the states on the CPU, where torch composes it of elementwise operations.

    y  = g x r,   r = 1 / sqrt(mean(x^2) + eps)                       x (..., d), g (d,), r (..., 1)
    dx = r (g dy) - x r^3 mean(g dy x),   dg = sum(dy x r)            both need the product dy x

Half of torch's time or less, forward and backward.
"""

from typing import Any

import torch
from torch import Tensor, nn

from entformer.kernels.autograd import records_no_graph
from entformer.kernels.checks import traced_by_jit
from entformer.nn.execution_mode import traced_as_leaf

__all__ = ["RMSNorm"]


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm over the last dimension, faster in eager mode on the CPU."""

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        gain: Tensor | None = self.weight
        plain = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
        if not plain or gain is None or gain.dtype != x.dtype or gain.shape != x.shape[-1:]:
            return super().forward(x)
        if torch.compiler.is_compiling() or traced_by_jit():
            return super().forward(x)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        if records_no_graph(x, gain):
            return _RMSNorm.forward(x, gain, eps)[0]
        y: Tensor = _RMSNorm.apply(x, gain, eps)[0]  # type: ignore[no-untyped-call]
        return y


class _RMSNorm(torch.autograd.Function):
    """y and r; gradients of `r` make second derivatives right, which differentiate `backward`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square().div_(x.shape[-1]).add_(eps).rsqrt_()
        return x * r * gain, r

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        x, gain, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gain, output[1])
        ctx.save_for_forward(x, gain, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_r: Tensor | None) -> tuple[Tensor | None, ...]:
        x, gain, r = ctx.saved_tensors
        if grad is None:
            return None if grad_r is None else x * (grad_r * r.pow(3) / -x.shape[-1]), None, None
        with torch.autocast("cpu", enabled=False):
            product = grad * x
            along = product @ gain[:, None]
            along = (along if grad_r is None else along + grad_r) * (r.pow(3) / -x.shape[-1])
            to_gain = (product * r).reshape(-1, x.shape[-1]).sum(0)
        return torch.addcmul(grad * gain * r, x, along), to_gain, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dgain: Tensor | None, _: None) -> tuple[Tensor, Tensor]:
        x, gain, r = ctx.saved_tensors
        dx = torch.zeros_like(x) if dx is None else dx
        dr = -r.pow(3) * (x * dx).mean(-1, keepdim=True)
        dy = gain * (dx * r + x * dr)
        return dy if dgain is None else dy + dgain * x * r, dr
