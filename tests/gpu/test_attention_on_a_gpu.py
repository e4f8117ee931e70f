"""The Triton kernels on a GPU, against the reference: `pytest -m gpu`. Not run by `make test`, which has no GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention.api import attention
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import resolve

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]

# A rounding of the products, of the weights and of the result: 2^-8 each in bfloat16, 2^-11 in float16; tf32 is not used.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (100, 20)},
    "sinks and soft-cap": {"softcap": 5.0},
    "dropout": {"dropout_p": 0.2},
}


def run(impl: str, dtype: torch.dtype, size: int, alpha: Any, how: dict[str, Any]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    leaves = [torch.randn(2, h, n, size, generator=generator).to(dtype) for h, n in ((4, 300), (2, 517), (2, 517))]
    exact = impl == "reference"
    leaves = [t.cuda().to(torch.float64 if exact else dtype).requires_grad_() for t in leaves]
    parameters = [alpha.cuda().clone().requires_grad_()] if isinstance(alpha, Tensor) else []
    torch.manual_seed(0)
    out = attention(*leaves, alpha=parameters[0] if parameters else alpha, enable_gqa=True, impl=impl, **how)  # type: ignore[arg-type]
    assert isinstance(out, Tensor)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).cuda().to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [*leaves, *parameters], grad)]


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("alpha", [1.5, 2.0, torch.tensor([1.0, 1.25, 1.5, 1.9])], ids=["1.5", "2", "learned"])
@pytest.mark.parametrize("size", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_output_and_gradients(dtype: torch.dtype, size: int, alpha: Any, name: str) -> None:
    for ours, right in zip(*(run(impl, dtype, size, alpha, HOW[name]) for impl in ("triton", "reference")), strict=True):
        error = (ours.double() - right.double()).abs().max() / right.abs().max()
        assert float(error) < TOLERANCE[dtype]


def test_auto_takes_triton() -> None:
    assert resolve("auto", "cuda") == "triton"


def test_two_runs_give_the_same_bits() -> None:
    alpha = torch.tensor([1.0, 1.25, 1.5, 1.9])
    for first, second in zip(*(run("triton", torch.bfloat16, 64, alpha, {"is_causal": True}) for _ in range(2)), strict=True):
        assert torch.equal(first, second)


def test_the_host_does_not_wait() -> None:
    q = torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    attention(q, q, q, impl="triton")  # compiles
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        out = attention(q, q, q, alpha=1.5, is_causal=True, impl="triton")
        assert isinstance(out, Tensor)
        out.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("n", [7, 1000, 9000])
def test_rows(n: int) -> None:
    x = torch.randn(5, n, generator=torch.Generator().manual_seed(0))
    ours = entmax(x.cuda(), 1.4, impl="triton")
    torch.testing.assert_close(ours.cpu(), entmax(x, 1.4, impl="reference"), rtol=1e-4, atol=1e-6)
