"""Linear maps in float32, on AMD's processors by oneDNN.

    y = x W^T + b             x (..., in), W (out, in), b (out,) -> y (..., out)
    dx = dy W,   dW = dy^T x,   db = the sum of dy over rows

torch multiplies float32 matrices by MKL, which leaves AVX-512 unused on AMD's processors. oneDNN, which torch contains too and
torch.compile uses, takes half of its time there, with AVX2 nine tenths (`benchmarks/layers.py`). Elsewhere, and for anything
but large products of plain tensors in eager mode, these are torch's own functions.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.kernels import checks
from entformer.kernels.autograd import needs_gradient
from entformer.nn.execution_mode import traced_as_leaf

__all__ = ["Linear", "add_product", "linear", "multiply"]

SMALLEST = 2**23
"""Multiply-adds from which oneDNN is used: it prepares every new shape for 0.2 ms, and autograd calls Python."""

PART = 2**22
"""Numbers of a product that are there before they are added to others."""


class Linear(nn.Linear):
    """torch.nn.Linear, faster in float32 on AMD's processors."""

    @classmethod
    def sharing(cls, module: nn.Linear) -> "Linear":
        """Returns a module with the parameters of `module`, not copied."""
        made = cls(module.in_features, module.out_features, module.bias is not None, device="meta")
        made.weight, made.bias = module.weight, module.bias
        return made

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear for x (..., in), weight (out, in) and bias (out,)."""
    fits = x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not fits or not _uses_onednn(x.numel() * weight.shape[0], *tensors) or torch._C._is_any_autocast_enabled():
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _Linear.apply(rows, weight, bias) if needs_gradient(*tensors) else _onednn(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Computes a b, (M, K) and (K, N) to (M, N), without a gradient."""
    if not _uses_onednn(a.numel() * b.shape[1], a, b):
        return a @ b
    if a.is_contiguous() or a.numel() <= b.numel():  # else torch copies the first of the two
        return _onednn(a, b.t())
    return _onednn(b.t(), a).t()


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a b to `total` (M, N), without a gradient."""
    if total.dtype == a.dtype and not _uses_onednn(a.numel() * b.shape[1], a, b):
        total.addmm_(a, b)
        return
    rows = max(1, PART // b.shape[1])
    for at in range(0, a.shape[0], rows):
        total[at : at + rows] += multiply(a[at : at + rows], b)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        product = torch.mm if torch.is_grad_enabled() else multiply  # second derivatives differentiate these lines
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        to_x = product(grad, weight) if needs_x else None
        to_weight = product(grad.t(), x) if needs_weight else None
        return to_x, to_weight, grad.sum(0) if needs_bias else None


def _uses_onednn(multiply_adds: int, *tensors: Tensor) -> bool:
    if multiply_adds < SMALLEST or not (_onednn_is_faster() and checks.runs_once()):
        return False
    for t in tensors:
        if (
            type(t) not in (Tensor, nn.Parameter)
            or not t.is_cpu
            or t.dtype is not torch.float32
            or t.layout is not torch.strided
        ):
            return False
    return torch._C._get_mkldnn_enabled() and torch._C._len_torch_dispatch_stack() == 0


@cache
def _onednn_is_faster() -> bool:
    """Whether this is a processor of AMD and torch has both libraries."""
    available = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every torch since 2.10
    return available and str(capabilities.get("cpu_name")).startswith("AMD")


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a (M, K), b (N, K) and bias (N,) to a b^T + bias (M, N)."""
    b = b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()  # a thousand times slower with gaps between rows
    bias = None if bias is None else bias.contiguous()  # one with strides is misread
    y: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return y
