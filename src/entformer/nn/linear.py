"""Linear maps in float32, on AMD's processors by oneDNN.

    y = x W^T + b             x (..., in), W (out, in), b (out,) -> y (..., out)
    dx = dy W,   dW = dy^T x,   db = the sum of dy over rows

torch multiplies float32 matrices by MKL, which leaves AVX-512 unused on AMD's processors. oneDNN, which torch contains too and
torch.compile uses, takes half of its time there, with AVX2 nine tenths (`benchmarks/layers.py`). Elsewhere, and for anything
but large products of plain tensors in eager mode, these are torch's own functions.
"""

from collections.abc import Iterator
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
"""Multiply-adds from which oneDNN is used: below, autograd's call of Python costs what it gains."""

BLOCKS = (1024, 128)
"""Rows multiplied at a time; torch multiplies the rest. For each shape oneDNN compiles code, 0.2 ms, and keeps it, 1 MB."""

PART = 2**20
"""The most numbers of a product that is then copied or added: 4 MB."""


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
    if not checks.runs_once() or torch._C._is_any_autocast_enabled():
        return F.linear(x, weight, bias)
    fits = x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not fits or not _uses_onednn(x.numel() * weight.shape[0], *tensors):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _Linear.apply(rows, weight, bias) if needs_gradient(*tensors) else _map_blocks(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Computes a b, (rows, K) and (K, N) to (rows, N), without a gradient."""
    return _map_blocks(a, b.t(), None) if _uses_onednn(a.numel() * b.shape[1], a, b) else a @ b


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a^T b, (rows, M) and (rows, N) to (M, N), to `total`, without a gradient."""
    if not _uses_onednn(a.numel() * b.shape[1], a, b):
        if total.dtype == a.dtype:
            total.addmm_(a.t(), b)
        else:
            total += a.t() @ b
        return
    end, columns = 0, max(1, PART // b.shape[1])
    for at, end in _blocks(a.shape[0], BLOCKS):
        for first in range(0, a.shape[1], columns):
            part, of_a, of_b = total[first : first + columns], a[at:end, first : first + columns], b[at:end]
            if of_a.shape[1] <= of_b.shape[1]:  # torch copies the first of the two, transposed
                part += _onednn(of_a.t(), of_b.t())
            else:
                part += _onednn(of_b.t(), of_a.t()).t()
    if end < a.shape[0]:
        total.addmm_(a[end:].t(), b[end:])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _map_blocks(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        to_bias = grad.sum(0) if needs_bias else None
        batched = not checks.runs_eagerly() or torch._C._functorch.is_legacy_batchedtensor(grad)  # by is_grads_batched
        if torch.is_grad_enabled() or batched:  # second derivatives differentiate these lines
            return grad @ weight if needs_x else None, grad.t() @ x if needs_weight else None, to_bias
        to_x = multiply(grad, weight) if needs_x else None
        to_weight = None
        if needs_weight:
            to_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
            add_product(to_weight, grad, x)
        return to_x, to_weight, to_bias


def _blocks(rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yields where blocks of `sizes` rows, the larger first, begin and end. What is left is less than the smallest."""
    at = 0
    for size in sizes:
        for _ in range((rows - at) // size):
            yield at, at + size
            at += size


def _map_blocks(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (rows, K), weight (N, K) and bias (N,) to x weight^T + bias (rows, N)."""
    y, end = x.new_empty(x.shape[0], weight.shape[0]), 0
    sizes = tuple(size for size in BLOCKS if size * weight.shape[0] <= PART) or BLOCKS[-1:]
    for at, end in _blocks(x.shape[0], sizes):
        y[at:end] = _onednn(x[at:end], weight, bias)
    if end < x.shape[0]:
        y[end:] = F.linear(x[end:], weight, bias)
    return y


def _uses_onednn(multiply_adds: int, *tensors: Tensor) -> bool:
    if not checks.runs_once() or not _onednn_is_faster():
        return False
    if multiply_adds < SMALLEST or tensors[0].numel() < BLOCKS[-1] * tensors[0].shape[-1]:
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
