"""`nn.gelu.gelu_tanh` is torch's GELU by tanh: values, gradients and second gradients, in eager mode and transforms."""

import pytest
import torch
from torch.nn import functional as F

from entformer.nn.gelu import gelu_tanh


def torchs(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7), (), (0, 4)])
def test_equals_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, grad = (3.0 * torch.randn(shape, dtype=dtype)).requires_grad_(), torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(gelu_tanh(x), torchs(x))
    torch.testing.assert_close(gelu_tanh(x.detach()), torchs(x.detach()))
    (own,), (other,) = (torch.autograd.grad(f(x), x, grad) for f in (gelu_tanh, torchs))
    torch.testing.assert_close(
        own, other, rtol=1e-5 if dtype == torch.float32 else None, atol=2e-6 if dtype == torch.float32 else None
    )


def test_far_from_zero_halves_of_a_matrix_and_extremes() -> None:
    both = torch.linspace(-40.0, 40.0, 4002).view(-1, 2).requires_grad_()
    x = both.chunk(2, -1)[1]  # not contiguous
    torch.testing.assert_close(gelu_tanh(x), torchs(x))
    own, other = (torch.autograd.grad(f(both.chunk(2, -1)[1]).sum(), both)[0] for f in (gelu_tanh, torchs))
    torch.testing.assert_close(own, other, rtol=1e-5, atol=2e-6)
    extreme = torch.tensor([1e19, -1e19, torch.inf, -torch.inf, torch.nan])
    torch.testing.assert_close(gelu_tanh(extreme), torchs(extreme), equal_nan=True)


def test_second_gradients() -> None:
    x = torch.randn(5, requires_grad=True)

    def second(function: object) -> torch.Tensor:
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)  # type: ignore[operator]
        found: torch.Tensor = torch.autograd.grad(first.square().sum(), x)[0]
        return found

    torch.testing.assert_close(second(gelu_tanh), second(torchs))


def test_transforms() -> None:
    x = torch.randn(4, 3)
    for transform in (
        lambda f: torch.func.vmap(torch.func.grad(lambda row: f(row).sum()))(x),
        lambda f: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f: torch.jit.trace(f, x)(x),
        lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")(x),
    ):
        torch.testing.assert_close(transform(gelu_tanh), transform(torchs))
