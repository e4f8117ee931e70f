"""Arguments and results of the mappings as users of softmax and of the `entmax` package expect them."""

import math

import pytest
import torch
from torch import Tensor

import entformer as ef
from entformer import budget_bisect, entmax_bisect, normmax_bisect, sparsemax

INF = math.inf


@pytest.mark.parametrize("alpha", [1, 1.0, torch.tensor(1), torch.tensor([[1.0], [1.0]])], ids=str)
def test_normmax_at_one_is_the_argmax(alpha: float | Tensor) -> None:
    x = torch.tensor([[0.3, 0.0, -2.0, 0.2], [1.0, 1.0, -INF, 0.0]], requires_grad=True)
    weights = normmax_bisect(x, alpha)
    assert weights.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    assert (torch.autograd.grad(weights.square().sum(), x)[0] == 0.0).all()
    loss = ef.normmax_bisect_loss(x[:1], torch.tensor([1]), alpha if isinstance(alpha, int | float) else 1)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(loss, torch.tensor([0.3]))
    assert grad[0].tolist() == [1.0, -1.0, 0.0, 0.0]


def test_integer_tensors_are_parameters() -> None:
    x = torch.tensor([[0.3, 0.0, -2.0, 0.2], [1.0, 1.0, -1.0, 0.0]])
    assert torch.equal(normmax_bisect(x, torch.tensor(2)), normmax_bisect(x, 2.0))
    assert torch.equal(budget_bisect(x, torch.tensor([[1], [2]])), budget_bisect(x, torch.tensor([[1.0], [2.0]])))
    assert torch.equal(entmax_bisect(x, torch.tensor(2)), entmax_bisect(x, 2.0))
    assert torch.equal(ef.entmax_loss(x, torch.tensor([0, 1]), torch.tensor(2)), ef.entmax_loss(x, torch.tensor([0, 1]), 2.0))
    assert torch.equal(sparsemax(x, -1, torch.tensor(2)), sparsemax(x))  # type: ignore[call-overload]


@pytest.mark.parametrize("dim", [0, 1, -2, 2])
@pytest.mark.parametrize(
    "name",
    [
        *("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"),
        *("entmax", "log_entmax", "entmax_support"),
    ],
)
def test_results_are_contiguous_along_any_dimension(name: str, dim: int) -> None:
    """As those of softmax, on which callers use `.view`."""
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    assert torch.softmax(x, dim).is_contiguous()
    assert getattr(ef, name)(x, dim=dim).is_contiguous()
