"""`nn.gelu.gated_gelu` is torch's GELU by tanh times the other half: values, gradients, second gradients, transforms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.nn.gelu import gated_gelu


def ours(both: Tensor) -> Tensor:
    return gated_gelu(*both.chunk(2, -1))


def composed(both: Tensor) -> Tensor:
    x, y = both.chunk(2, -1)
    return F.gelu(x, approximate="tanh") * y


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7, 14), (2,), (0, 4), (5, 0)])
def test_equals_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    both = (3.0 * torch.randn(shape, dtype=dtype)).requires_grad_()
    torch.testing.assert_close(ours(both), composed(both))
    torch.testing.assert_close(ours(both.detach()), composed(both.detach()))
    grad = torch.randn_like(composed(both))
    (own,), (other,) = (torch.autograd.grad(f(both), both, grad) for f in (ours, composed))
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(own, other, **close)


def test_far_from_zero_other_layouts_and_extremes() -> None:
    x = torch.linspace(-40.0, 40.0, 4001)
    both = torch.stack([x, torch.randn(4001)]).t().requires_grad_()  # columns, not rows, are contiguous
    torch.testing.assert_close(ours(both), composed(both))
    own, other = (torch.autograd.grad(f(both).sum(), both)[0] for f in (ours, composed))
    torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    extreme = torch.tensor([1e19, -1e19, torch.inf, -torch.inf, torch.nan])
    pair = torch.stack([extreme, torch.ones(5)], 1)
    torch.testing.assert_close(ours(pair), composed(pair), equal_nan=True)


def test_second_gradients() -> None:
    both = torch.randn(3, 6, requires_grad=True)

    def second(function: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(function(both).square().sum(), both, create_graph=True)
        return torch.autograd.grad(first.square().sum(), both)[0]

    torch.testing.assert_close(second(ours), second(composed))


TRANSFORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda row: f(row).sum()))(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "trace": lambda f, x: torch.jit.trace(f, x)(x),  # type: ignore[no-untyped-call]
    "compile": lambda f, x: torch.compile(f, fullgraph=True, backend="aot_eager")(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    x = torch.randn(4, 6)
    torch.testing.assert_close(TRANSFORMS[name](ours, x), TRANSFORMS[name](composed, x))
