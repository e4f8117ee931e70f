"""Normmax, budget, log_entmax and the support, and the properties that all functions of `functional.py` share."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from entformer.errors import ArgumentError
from entformer.functional import (
    budget_bisect,
    entmax,
    entmax15,
    entmax_support,
    log_entmax,
    normmax_bisect,
    sparsemax,
)

Function = Callable[..., Tensor]
INF, NAN = math.inf, math.nan
EVERY: list[Function] = [sparsemax, entmax15, normmax_bisect, budget_bisect]
OURS: list[Function] = [normmax_bisect, budget_bisect]  # the two with a solver of their own
every = pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
ours = pytest.mark.parametrize("function", OURS, ids=lambda f: f.__name__)
TIGHT = 1e-12  # float64 arithmetic on rows of moderate size: a few thousand roundings


def rows(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mass(function: Function) -> float:
    """What a row sums to by default."""
    return 2.0 if function is budget_bisect else 1.0


# ---- properties of every function ------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((3, 5), 0), ((2, 3, 4), -2), ((2, 3, 4), 0), ((1, 6, 1), 1)])
def test_rows_of_any_dimension(function: Function, shape: tuple[int, ...], dim: int) -> None:
    x = rows(*shape)
    weights = function(x, dim=dim)
    last = function(x.movedim(dim, -1).contiguous())
    torch.testing.assert_close(weights, last.movedim(-1, dim), rtol=0.0, atol=TIGHT)
    torch.testing.assert_close(weights.sum(dim), torch.full_like(weights.sum(dim), mass(function)), rtol=0.0, atol=TIGHT)
    assert (weights >= 0.0).all()
    assert (weights <= 1.0 + TIGHT).all()


@every
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_empty_tensors(function: Function, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    weights = function(x)
    assert weights.shape == x.shape
    weights.sum().backward()
    assert x.grad is not None


@every
def test_a_single_number_is_a_row_of_one(function: Function) -> None:
    assert function(torch.tensor(-3.0)).item() == 1.0
    assert function(torch.full((4, 1), -3.0)).tolist() == [[1.0]] * 4


@every
def test_mask_is_the_same_as_minus_infinity(function: Function) -> None:
    x = rows(4, 6)
    mask = torch.tensor([True, True, False, True, False, True])
    x.requires_grad_()
    masked = function(x, mask=mask)
    (from_mask,) = torch.autograd.grad(masked.square().sum(), x)
    weights = function(x.masked_fill(~mask, -INF))
    (from_infinity,) = torch.autograd.grad(weights.square().sum(), x)
    assert torch.equal(masked, weights)
    assert torch.equal(from_mask, from_infinity)
    assert (masked[:, ~mask] == 0.0).all()
    torch.testing.assert_close(masked[:, mask], function(x[:, mask]), rtol=0.0, atol=TIGHT)


@every
def test_rows_that_are_not_finite(function: Function) -> None:
    """Nothing allowed gives zeros and zero gradients, NaN stays in its row, and +inf is a limit."""
    x = rows(4, 6)
    x[1], x[2, 2], x[3] = -INF, NAN, torch.tensor([INF, 1.0, INF, 0.0, INF, -INF])
    x.requires_grad_()
    weights = function(x)
    (grad,) = torch.autograd.grad(weights[:2].square().sum(), x)
    assert grad[:2].isfinite().all()
    assert (weights[1] == 0.0).all()
    assert (grad[1] == 0.0).all()
    assert weights[2].isnan().all()
    torch.testing.assert_close(weights[3], (x[3] == INF).double() * mass(function) / 3.0)


@every
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_lower_precisions_round_only_the_result(function: Function, dtype: torch.dtype, atol: float) -> None:
    x = rows(5, 33).to(dtype)  # atol: half a unit in the last place of a weight near 1, a little more in float32
    weights = function(x)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double(), function(x.double()), rtol=0.0, atol=atol)
    with torch.autocast("cpu", torch.bfloat16):  # as torch.softmax there
        torch.testing.assert_close(function(x), function(x.float()))


@every
def test_shifts_of_any_size_change_nothing(function: Function) -> None:
    x = torch.tensor([[0.0, -1.0, 1.0, -3.0]])  # exact in float32 after the shift too
    torch.testing.assert_close(function(x + 1e7), function(x))
    torch.testing.assert_close(function(x - 1e7), function(x))


@pytest.mark.parametrize("function", [*EVERY, log_entmax, entmax_support], ids=lambda f: f.__name__)
def test_invalid_arguments_raise(function: Function) -> None:
    with pytest.raises(ArgumentError, match="floating-point"):
        function(torch.tensor([1, 2]))
    with pytest.raises(ArgumentError, match="dim=2"):
        function(torch.zeros(2, 3), dim=2)
    with pytest.raises(ArgumentError, match="boolean"):
        function(torch.zeros(2, 3), mask=torch.ones(2, 3))
    with pytest.raises(ArgumentError, match="broadcast"):
        function(torch.zeros(2, 3), mask=torch.ones(4, dtype=torch.bool))


# ---- normmax -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.5, 2.0, 3.0, 10.0, 1000.0])  # nearer to 1, true weights underflow
@pytest.mark.parametrize("n", [2, 7, 300])
def test_normmax_satisfies_its_optimality_conditions(alpha: float, n: int) -> None:
    """x - (p/||p||)^(alpha-1) is one number on the support and x is no larger than it elsewhere."""
    x = rows(6, n, scale=0.7)
    p = normmax_bisect(x, alpha)
    top = p.amax(-1, keepdim=True)
    norm = top * (p / top).pow(alpha).sum(-1, keepdim=True).pow(1.0 / alpha)
    level = x - (p / norm).pow(alpha - 1.0)
    # p^(alpha-1) loses digits for the small weights of a large alpha: 1e-16 * alpha relative to 1.
    support, tolerance = p > 0.0, 1e-14 * alpha + TIGHT
    tau = torch.where(support, level, -INF).amax(-1, keepdim=True)
    assert ((level - tau).abs() <= tolerance)[support].all()
    assert (x <= tau + tolerance)[~support].all()
    torch.testing.assert_close(p.sum(-1), torch.ones(6, dtype=torch.float64), rtol=0.0, atol=TIGHT)


@pytest.mark.parametrize(
    ("function", "parameter", "scale"),
    [*((normmax_bisect, alpha, 0.5) for alpha in (1.2, 2.0, 3.5)), (budget_bisect, [[1.4], [2.0], [3.3], [0.6]], 2.0)],
)
def test_gradients_of_the_solvers(function: Function, parameter: Any, scale: float) -> None:
    inputs = rows(4, 6, scale=scale).requires_grad_(), torch.tensor(parameter, dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs)


def test_normmax_at_the_ends_of_alpha() -> None:
    x = torch.tensor([0.3, 0.0, -2.0, 0.2])
    assert normmax_bisect(x, INF).tolist() == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3])
    with pytest.raises(ArgumentError, match="alpha >= 1"):
        normmax_bisect(x, 0.9)
    assert normmax_bisect(x, torch.tensor(0.9)).isnan().all()
    with pytest.raises(ArgumentError, match="does not broadcast"):
        normmax_bisect(x, torch.tensor([1.5, 2.0]))
    with pytest.raises(ArgumentError, match=r"alpha must be a floating-point or integer tensor or a number, not torch\.bool"):
        normmax_bisect(x, torch.tensor(True))


# ---- budget --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.0, 0.3, 1.0, 2.0, 3.7, 7.0])
@pytest.mark.parametrize("n", [7, 300])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_budget_satisfies_its_optimality_conditions(budget: float, n: int, scale: float) -> None:
    """One threshold: x - p equals it strictly inside (0, 1), x lies below it at 0 and more than 1 above it at 1."""
    x = rows(6, n, scale=scale)
    p = budget_bisect(x, budget)
    tolerance = 1e-15 * max(scale * 10.0, 1.0) + TIGHT  # roundings of the scores themselves
    torch.testing.assert_close(p.sum(-1), torch.full((6,), budget, dtype=torch.float64), rtol=0.0, atol=tolerance * n)
    lower = torch.where(p < 1.0, x - p, -INF).amax(-1)  # tau >= x - p wherever p may still grow
    upper = torch.where(p > 0.0, x - p, INF).amin(-1)  # tau <= x - p wherever p may still shrink
    assert (lower <= upper + tolerance).all()


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ArgumentError, match="budget=-1"):
        budget_bisect(rows(4, 6), -1)


def test_budget_larger_than_the_row_or_its_infinite_entries() -> None:
    torch.testing.assert_close(budget_bisect(torch.tensor([INF, 0.2, 0.0, -5.0]), 2), torch.tensor([1.0, 0.6, 0.4, 0.0]))
    x = torch.tensor([[0.5, -INF, -7.0, 3.0], [1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    weights = budget_bisect(x, 3.5)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.5, 1.0, 1.0, 1.0]]))
    (grad,) = torch.autograd.grad(weights[0].square().sum(), x)
    assert (grad == 0.0).all()


# ---- transforms ----------------------------------------------------------------------------------------------------------


@ours
def test_transforms_of_the_solvers(function: Function) -> None:
    x = rows(3, 2, 5)
    weights = function(x)
    torch.testing.assert_close(torch.func.vmap(function)(x), weights, rtol=0.0, atol=TIGHT)
    parameters = torch.tensor([1.5, 2.0, 3.0], dtype=torch.float64)
    each = torch.stack([function(part, float(value)) for part, value in zip(x, parameters, strict=True)])
    torch.testing.assert_close(torch.func.vmap(function)(x, parameters), each, rtol=0.0, atol=TIGHT)
    jacobian = torch.autograd.functional.jacobian(function, x[0, 0])
    torch.testing.assert_close(torch.func.jacrev(function)(x[0, 0]), jacobian, rtol=0.0, atol=TIGHT)
    torch.testing.assert_close(torch.func.jacfwd(function)(x[0, 0]), jacobian, rtol=0.0, atol=TIGHT)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(function))(x[:, 0])[0], jacobian, rtol=0.0, atol=TIGHT)


def test_the_solvers_are_good_operators() -> None:
    z, allowed = rows(3, 4), torch.ones(3, 4, dtype=torch.bool)
    torch.library.opcheck(
        torch.ops.entformer.normmax_threshold.default, (z - z.amax(-1, True), allowed, torch.ones(3, 1).double())
    )
    torch.library.opcheck(torch.ops.entformer.budget_threshold.default, (z - z.amax(-1, True), torch.ones(3, 1).double()))


@pytest.mark.parametrize("function", [*OURS, log_entmax], ids=lambda f: f.__name__)
def test_compiles_without_graph_breaks(function: Function) -> None:
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = rows(3, 5).requires_grad_()
    weights, expected = compiled(x), function(x)
    torch.testing.assert_close(weights, expected, rtol=0.0, atol=TIGHT)
    one, other = (torch.autograd.grad(torch.where(w.isinf(), 0.0, w).square().sum(), x)[0] for w in (weights, expected))
    torch.testing.assert_close(one, other, rtol=0.0, atol=TIGHT)


# ---- log_entmax and the support ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.0 + 1e-9, 1.001, 1.3, 1.5, 2.0, 3.0])
def test_log_entmax_is_the_logarithm_of_the_weights(alpha: float, impl: str) -> None:
    x = rows(3, 4, 9)
    weights = entmax(x, alpha, dim=1, impl=impl)  # type: ignore[arg-type]
    logs = log_entmax(x, alpha, dim=1, impl=impl)  # type: ignore[arg-type]
    assert torch.equal(logs.isneginf(), weights == 0.0)
    assert torch.equal(entmax_support(x, alpha, dim=1, impl=impl), weights != 0.0)  # type: ignore[arg-type]
    torch.testing.assert_close(logs.exp(), weights, rtol=0.0, atol=TIGHT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_entmax_at_1_is_log_softmax_however_small_the_weight(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, -1000.0, -2.5, -1e5], [3e4, 0.0, 2.9e4, 3e4]], dtype=dtype)
    torch.testing.assert_close(log_entmax(x, 1.0), torch.log_softmax(x, -1))


@pytest.mark.parametrize("alpha", [0.5, 1.0 + 1e-7, 1.0001])
def test_log_entmax_of_weights_too_small_for_a_float(alpha: float) -> None:
    scores = [0.0, -1.0, -900.0, -3000.0]
    with mpmath.workdps(60):
        e = mpmath.mpf(alpha) - 1

        def total(c: mpmath.mpf) -> mpmath.mpf:
            return sum((1 + e * (s - c)) ** (1 / e) for s in scores) - 1

        c = mpmath.findroot(total, (mpmath.mpf(0), mpmath.mpf(2)), solver="anderson", tol=1e-40)
        expected = [float(mpmath.log(1 + e * (s - c)) / e) for s in scores]
    logs = log_entmax(torch.tensor(scores, dtype=torch.float64), alpha)
    # 1e-11: log(1 + e x)/e takes alpha - 1, which a float64 alpha holds to 2e-16 / 1e-7.
    assert logs.tolist() == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.0 + 1e-9, 1.3, 2.0])
def test_log_entmax_gradients(alpha: float) -> None:
    x = rows(3, 5).requires_grad_()
    one = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    support = entmax_support(x, one)

    def on_the_support(x: Tensor, alpha: Tensor) -> Tensor:
        return torch.where(support, log_entmax(x, alpha), 0.0)

    assert gradcheck(on_the_support, (x, one), check_forward_ad=True)
    assert gradgradcheck(on_the_support, (x, one))


def test_log_entmax_gives_no_nan_where_the_weight_is_zero() -> None:
    x = torch.tensor([[3.0, 0.0, 2.9, -INF], [-INF] * 4], requires_grad=True)
    alpha = torch.tensor(1.5, requires_grad=True)
    logs = log_entmax(x, alpha)
    assert logs.isneginf().tolist() == [[False, True, False, True], [True] * 4]
    loss = -logs[0, 0] - logs[0, 2]
    to_x, to_alpha = torch.autograd.grad(loss, (x, alpha))
    assert to_x.isfinite().all()
    assert to_alpha.isfinite()
    assert (to_x[logs.isneginf()] == 0.0).all()


def test_log_entmax_special_rows_and_shapes() -> None:
    x = torch.tensor([[INF, 1.0, INF], [NAN, 1.0, -INF]])
    logs = log_entmax(x, 1.5)
    torch.testing.assert_close(logs[0], torch.tensor([-math.log(2.0), -INF, -math.log(2.0)]))
    assert logs[1].isnan().all()
    assert log_entmax(torch.zeros(2, 0)).shape == (2, 0)
    assert log_entmax(torch.tensor(4.0)).item() == 0.0
    assert log_entmax(torch.zeros(2, 4).half()).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert log_entmax(torch.zeros(2, 4).bfloat16()).dtype == torch.float32
    scores, alphas = rows(2, 3, 4, 5), torch.tensor([1.0, 1.5, 2.0])
    heads = log_entmax(scores, alphas, alpha_dim=1)
    for head, alpha in enumerate(alphas.tolist()):
        torch.testing.assert_close(heads[:, head], log_entmax(scores[:, head], alpha), rtol=0.0, atol=TIGHT)


@pytest.mark.parametrize("function", [sparsemax, entmax15], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dim", [-1, 1])
def test_support_sizes_on_request(function: Function, dim: int) -> None:
    x = rows(2, 5, 7)
    weights, sizes = function(x, dim=dim, return_support_size=True)
    assert torch.equal(weights, function(x, dim=dim))
    assert sizes.dtype == torch.int64
    assert torch.equal(sizes, (weights > 0.0).sum(dim, keepdim=True))
