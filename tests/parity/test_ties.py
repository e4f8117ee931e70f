"""Thousands of equal scores: float32 must not lose what they have in common.

In: rows of a few best scores and thousands of equal ones, some barely inside the support. Out: weights, and the output of
attention, as exact as for scores that differ, with weights that sum to one; the gradient of a weight that has barely entered.
"""

import math

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention.api import attention
from entformer.kernels.entmax.api import entmax

pytestmark = pytest.mark.usefixtures("poisoned_memory")

ALPHAS = [1.0, 1.05, 1.3, 1.5, 1.8, 2.0]


def below_two(n: int, gap: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Two scores of 0 and n equal ones at -gap."""
    return torch.cat([torch.zeros(2), torch.full((n,), -gap)]).to(dtype)


def gap_with_mass(n: int, alpha: float, mass: float) -> float:
    """How far below the best two n equal scores lie that share `mass` of the row."""
    best, each = (1.0 - mass) / 2.0, mass / n
    if alpha == 1.0:
        return math.log(best) - math.log(each)
    return (best ** (alpha - 1.0) - each ** (alpha - 1.0)) / (alpha - 1.0)


@pytest.mark.parametrize(("n", "mass"), [(1000, 0.25), (19998, 0.02), (19998, 0.9)])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_rows(alpha: float, n: int, mass: float, isa: str) -> None:
    x = below_two(n, gap_with_mass(n, alpha, mass)) + 0.3
    right = entmax(x.double(), alpha, impl="reference")
    ours = entmax(x, alpha, impl="cpu")
    # As many units of float32 as a row of scores that differ may be off by, for the best and for all the others together.
    torch.testing.assert_close(ours[:2].double(), right[:2], rtol=3e-6, atol=0.0)
    assert abs(ours[2:].double().sum().item() - right[2:].sum().item()) < 3e-6
    assert (ours[2:] == ours[2]).all()


@pytest.mark.parametrize("n", [512, 1000, 4000])
def test_equal_weights_added_to_a_large_one(n: int, isa: str) -> None:
    """Each of them is rounded alike when it is added to the same large sum; parts of the sum must be added up for themselves."""
    x = torch.cat([torch.zeros(1), torch.full((n,), -1.9493589997291565)])
    right = entmax(x.double(), 1.4999, impl="reference")
    torch.testing.assert_close(entmax(x, 1.4999, impl="cpu").double(), right, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("alpha", [1.0 + 1e-9, 1.0001, 1.1, 1.3, 1.4999, 1.5, 1.6])
@pytest.mark.parametrize("second", [0.0, -0.0312, -0.2])
def test_a_few_groups_of_equal_scores(second: float, alpha: float, isa: str) -> None:
    """A step of third order from the left may land where no weight is left: the solver must come back from there."""
    values = torch.tensor([0.0, second, -0.3671, -1.1718, -1.9762])
    for counts in ((12, 6, 6, 11, 30), (5, 5, 5, 5, 5), (3, 20, 1, 1, 200), (40, 1, 1, 40, 1), (12, 6, 6, 11, 900)):
        x = values.repeat_interleave(torch.tensor(counts)) + 1.4062
        right = entmax(x.double(), alpha, impl="reference")
        torch.testing.assert_close(entmax(x, alpha, impl="cpu").double(), right, rtol=1e-5, atol=1e-6)
        q, k = torch.ones(1, 1, 9, 1), x[None, None, :, None]
        out = attention(q, k, k, alpha=alpha, scale=1.0, impl="cpu")
        torch.testing.assert_close(out[0, 0, :, 0].double(), (right @ x.double()).expand(9), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_attention(alpha: float, queries: int, isa: str) -> None:
    n = 19998
    scores = below_two(n, gap_with_mass(n, alpha, 0.25))
    q, k = torch.ones(1, 1, queries, 1), scores[None, None, :, None]
    v = torch.stack([torch.ones(n + 2), (torch.arange(n + 2) < 2).float()], -1)[None, None]  # sums of all, and of the best two
    exponent = torch.full((1,), alpha, dtype=torch.float64, requires_grad=True)
    leaves = [k.requires_grad_(), v.requires_grad_(), exponent]
    answer = attention(q, k, v, alpha=exponent, scale=1.0, return_stats=True, return_support=True, impl="cpu")
    best = 2.0 * entmax(scores.double(), alpha, impl="reference")[0].item()
    torch.testing.assert_close(
        answer.output[0, 0].double(), torch.tensor([[1.0, best]]).double().expand(queries, 2), rtol=1e-5, atol=0.0
    )
    total = answer.support.weight.double().sum() / queries
    assert abs(total.item() - 1.0) < 3e-6
    # Of every column: what the queries gave to it.
    grads = torch.autograd.grad(answer.output, leaves, torch.ones_like(answer.output))
    weight = answer.support.weight[0].item()
    assert grads[1][0, 0, 0, 0].item() == pytest.approx(queries * weight, rel=1e-5)
    assert all(t.isfinite().all() for t in grads)


@pytest.mark.parametrize("saved", ["weights", "columns", "nothing"])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_backward_finds_the_same_weights_again(alpha: float, saved: str, isa: str) -> None:
    """A support that is stored, stored in part, or computed again: the sum over keys of dV is the sum of the weights."""
    n = {"weights": 30, "columns": 250, "nothing": 3000}[saved]
    scores = torch.cat(
        [below_two(n, gap_with_mass(n, alpha, 0.5)), torch.full((4 * n,), -1e3)]
    )  # sparse: the rest has no weight
    q, k = torch.ones(1, 1, 40, 1), scores[None, None, :, None]
    v = torch.ones(1, 1, len(scores), 8, requires_grad=True)
    out = attention(q, k, v, alpha=alpha, scale=1.0, impl="cpu")
    (grad_v,) = torch.autograd.grad(out, v, torch.ones_like(out))
    right = 40.0 * entmax(scores.double(), alpha, impl="reference")
    torch.testing.assert_close(grad_v[0, 0, :, 0].double(), right, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("alpha", [2.5, 3.5, 4.0])
@pytest.mark.parametrize("impl", ["reference", "cpu"])
def test_gradient_of_a_weight_that_barely_has_entered(impl: str, alpha: float) -> None:
    """w = p^(2 - alpha) is huge for it and all the others balance it; dS_i = w_i (g_i - delta) of the weights found."""
    e, third = alpha - 1.0, 1e-5
    p = torch.tensor([0.7, 0.3 - third, third], dtype=torch.float64)
    x = ((p**e - p[0] ** e) / e).requires_grad_()
    exponent = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    weights = entmax(x, exponent, impl=impl)
    got, got_alpha = torch.autograd.grad(weights, (x, exponent), grad)
    slope = weights.detach() ** (1.0 - e)
    right = slope * (grad - (slope * grad).sum() / slope.sum())
    torch.testing.assert_close(got[:2], right[:2], rtol=1e-6, atol=1e-6)
    assert got[2].item() == pytest.approx(-right[:2].sum().item(), rel=1e-4, abs=1e-4)
    assert abs(got_alpha.item()) < 10.0
