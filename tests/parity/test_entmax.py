"""`cpu` against `reference`: values and both gradients, over instruction sets, dtypes, lengths, alphas, kinds of rows, layouts.

The tolerance is a bound, row by row, not a number that happened to pass. The kernels know x_i = s_i - c to a few units in the
last place of their arithmetic (float32, or float64 where the kernel says so), and hand the weights to the backward pass
rounded to the dtype of the scores. So p_i lies between p(x_i - dx) and p(x_i + dx), give or take that rounding, and w = p^(1-e)
and a = dp/dalpha lie between their values there. `Bounds` carries these intervals through delta, dS and dalpha. At the edge of
the support the slope of p is unbounded for alpha > 2 and jumps for alpha = 2, and so does the bound there, and nowhere else:
whether such an entry is zero or tiny is a matter of rounding. `test_backward_on_the_same_weights` has no such excuse.
"""

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from entformer.kernels.entmax import ops, reference
from entformer.kernels.entmax.api import entmax
from entformer.kernels.entmax.deformed import deformed_log

from .fuzzing import alpha_slope, compare, exp_e, times

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 513, 1025, 2100]
ALPHAS = [0.5, 1.0, 1.0 + 1e-7, 1.001, 1.1, 1.25, 1.45, 1.5, 1.75, 2.0, 2.5, 4.0]
INF = math.inf
# What is not lost to underflow: float16 has few exponents, and the vectors of float32 flush what is below its normal range.
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 3e-38, torch.float32: 3e-38, torch.float64: 1e-307}


def _with(row: Tensor, value: float, *places: int) -> Tensor:
    for place in places:
        row[place % len(row)] = value
    return row


# Each takes standard normal numbers (n,) and the largest finite number of the dtype.
KINDS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "normal": lambda z, _: z,
    "scale 10": lambda z, _: 10.0 * z,
    "ties": lambda z, _: z.mul(2.0).round().div(2.0),
    "all equal": lambda z, _: torch.full_like(z, 0.3),
    "one dominates": lambda z, _: _with(z, 60.0, len(z) // 2),
    "some -inf": lambda z, _: _with(torch.where(z > 0.5, -INF, z), 0.0, 7),
    "all -inf": lambda z, _: torch.full_like(z, -INF),
    "one +inf": lambda z, _: _with(z, INF, 3),
    "NaN": lambda z, _: _with(z, math.nan, 5),
    "shift up": lambda z, largest: 3.0 * z + min(1e7, largest / 4),
    "shift down": lambda z, largest: 3.0 * z - min(1e9, largest / 4),
    "subnormal differences": lambda z, _: z * 1e-40,
    "tiny differences": lambda z, _: z * 1e-6,
    "widest spread": lambda z, largest: _with(_with(z, -largest, 0), largest, 1),
    "normal again": lambda z, _: -z,  # after the rows that could leak
}


@functools.cache
def scores_of(dtype: torch.dtype, n: int) -> Tensor:
    """One row of every kind, (kinds, n)."""
    seed = torch.Generator().manual_seed(n)
    rows = [kind(torch.randn(n, generator=seed, dtype=torch.float64), torch.finfo(dtype).max) for kind in KINDS.values()]
    return torch.stack(rows).to(dtype)


class Bounds:
    """How far weights and gradients may lie from the reference's. All tensors float64; scores (..., n), alpha (..., 1)."""

    def __init__(self, scores: Tensor, alpha: Tensor, weights: Tensor, grad: Tensor, dtype: torch.dtype) -> None:
        single = torch.finfo(torch.float32).eps
        double = torch.finfo(torch.float64).eps
        kept = torch.finfo(dtype).eps  # rounding of weights and of gradients to the dtype of the scores
        tiny = SMALLEST[dtype]
        e = alpha - 1.0
        in_float64 = (alpha < 1.0) | (alpha > 2.0) | torch.tensor(dtype == torch.float64)
        eps = torch.where(in_float64, double, single)

        top, where = scores.max(-1, keepdim=True)
        log_top = weights.gather(-1, where).log()
        x = deformed_log(log_top, e) + (scores - top)  # s - c, through the deformed logarithm of the largest weight
        # Float sums in blocks of 64 vectors, one Newton step and a few roundings: 8 units is twice the worst seen. The blocks
        # are summed in float64 one after the other, and so are all n terms where the whole row is in float64.
        dx = (8.0 * eps + scores.shape[-1] * double) * (1.0 + x.abs())
        dx = torch.where(x == -INF, 0.0, dx)
        p_low = (exp_e(x - dx, e) * (1.0 - kept) - tiny).clamp(min=0.0)
        p_high = exp_e(x + dx, e) * (1.0 + kept) + torch.where(x == -INF, 0.0, tiny)
        # p = 0 stays 0 well outside the support: `tiny` is a rounding of something, not a weight.
        p_high = torch.where(exp_e(x + dx, e) == 0.0, 0.0, p_high)
        self.weights = torch.maximum(p_high - weights, weights - p_low) + eps**2  # below eps^2 a weight is as good as zero

        slope, slope_low, slope_high = (self._slope(p, e) for p in (weights, p_low, p_high))
        low, high = torch.minimum(slope_low, slope_high), torch.maximum(slope_low, slope_high)
        high = torch.where((e > 1.0) & (p_low == 0.0) & (p_high > 0.0), INF, high)  # the slope is infinite at the edge
        rounding = eps * (8.0 + 2.0 * weights.clamp(min=1e-300).log().abs()) * slope
        d_slope = torch.maximum(high - slope, slope - low) + rounding
        total = slope.sum(-1, keepdim=True)
        delta = (slope * grad).sum(-1, keepdim=True) / total
        off = (grad - delta).abs()
        size = (slope * grad.abs()).sum(-1, keepdim=True) / total
        least_total = (low - rounding).clamp(min=0.0).sum(-1, keepdim=True)
        d_delta = times(d_slope, off).sum(-1, keepdim=True) / least_total.clamp(min=1e-300) + 8.0 * eps * size
        self.scores = times(d_slope, off) + (high + rounding) * d_delta + 4.0 * eps * slope * (grad.abs() + size)
        self.scores += kept * slope * off + tiny
        self.scores += eps * (slope * off).amax(-1, keepdim=True)  # one unit of the row's largest

        a, a_low, a_high = (alpha_slope(p, e) for p in (weights, p_low, p_high))
        d_a = torch.maximum((a_low - a).abs(), (a_high - a).abs()) + 32.0 * eps * a.abs()
        d_a = torch.where(high == INF, INF, d_a)
        self.alpha = times(d_a, off).sum(-1, keepdim=True) + (a.abs() + d_a).sum(-1, keepdim=True) * d_delta
        self.alpha += 8.0 * eps * (a.abs() * (grad.abs() + size)).sum(-1, keepdim=True) + tiny

    @staticmethod
    def _slope(p: Tensor, e: Tensor) -> Tensor:
        return torch.where(p > 0.0, p.clamp(min=1e-320).pow(1.0 - e), 0.0)


class Expected:
    """The reference's answers and how exact `cpu` must be: every alpha (a, ., .) times every kind of row (., kinds, n)."""

    def __init__(self, dtype: torch.dtype, n: int) -> None:
        self.x = scores_of(dtype, n).expand(len(ALPHAS), -1, -1)
        self.alpha = torch.tensor(ALPHAS, dtype=torch.float64)[:, None, None].repeat(1, len(KINDS), 1)
        self.grad = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(dtype)
        x, alpha, grad = self.x.double().requires_grad_(), self.alpha.clone().requires_grad_(), self.grad.double()
        weights = entmax(x, alpha, impl="reference")
        self.grad_x, self.grad_alpha = torch.autograd.grad(weights, (x, alpha), grad)
        self.weights = weights.detach()
        self.bounds = Bounds(x.detach(), self.alpha, self.weights, grad, dtype)


expected_of = functools.cache(Expected)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((torch.float32, n) for n in LENGTHS),
        *((dtype, n) for dtype in (torch.float16, torch.bfloat16, torch.float64) for n in (1, 17, 64, 1025)),
    ],
    ids=str,
)
def test_values_and_gradients(dtype: torch.dtype, n: int, isa: str) -> None:
    want = expected_of(dtype, n)
    x, alpha = want.x.clone().requires_grad_(), want.alpha.clone().requires_grad_()
    weights = entmax(x, alpha, impl="cpu")  # alphas mixed in one call
    grad_x, grad_alpha = torch.autograd.grad(weights, (x, alpha), want.grad)
    plain_x = x.detach().clone().requires_grad_()
    plain = torch.stack([entmax(rows, a, impl="cpu") for rows, a in zip(plain_x, ALPHAS, strict=True)])  # no gradient to alpha
    (plain_grad_x,) = torch.autograd.grad(plain, plain_x, want.grad)
    assert weights.dtype == grad_x.dtype == dtype

    bounds = want.bounds
    # On top of the bound: 1e-6 up to alpha = 2, 1e-5 beyond (float64 does better for alpha <= 2).
    flat = torch.where(want.alpha <= 2.0, 1e-12 if dtype == torch.float64 else 1e-6, 1e-5)
    bar = flat + torch.finfo(dtype).eps * want.weights.nan_to_num(0.0)
    # Rows without a finite maximum need no solver: only the rounding of a few operations is left.
    solved = want.x.double().amax(-1, keepdim=True).isfinite()
    within = functools.partial(torch.where, solved, other=torch.finfo(dtype).eps)
    compare("weights", weights, want.weights, within(torch.minimum(bounds.weights, bar)))
    compare("weights, alpha a number", plain, want.weights, within(torch.minimum(bounds.weights, bar)))
    compare("gradient to scores", grad_x, want.grad_x, within(bounds.scores))
    compare("gradient to scores, alpha a number", plain_grad_x, want.grad_x, within(bounds.scores))
    compare("gradient to alpha", grad_alpha, want.grad_alpha, within(bounds.alpha))


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((torch.float32, n) for n in (1, 3, 17, 64, 127, 1025)),
        *((dtype, n) for dtype in (torch.float16, torch.bfloat16, torch.float64) for n in (17, 127)),
    ],
    ids=str,
)
def test_backward_on_the_same_weights(dtype: torch.dtype, n: int, isa: str) -> None:
    """From equal weights the two backward passes may differ by their own rounding only, edge of the support or not."""
    want = expected_of(dtype, n)
    weights, alpha, grad = want.weights.to(dtype), want.alpha.squeeze(-1), want.grad
    out = ops.entmax_backward(grad, weights, alpha, True)
    p, e = weights.double(), want.alpha - 1.0
    right = reference.entmax_backward(grad.double(), p, alpha, True)
    slope = Bounds._slope(p, e).nan_to_num(0.0)
    a = alpha_slope(p, e).abs().nan_to_num(0.0)
    eps = torch.where((e < 0) | (e > 1) | torch.tensor(dtype == torch.float64), 2.0**-52, 2.0**-23)
    # ln p costs |ln p| units in the exponent; delta is a mean of g, so it is exact to a few units of the largest |g|.
    units = eps * (8.0 + 2.0 * p.nan_to_num(1.0).clamp(min=1e-300).log().abs().amax(-1, keepdim=True))
    size = grad.double().abs().amax(-1, keepdim=True)
    kept = torch.finfo(dtype).eps * right[0].abs().nan_to_num(0.0) + SMALLEST[dtype]
    compare("scores", out[0], right[0], units * slope * size + kept)
    compare(
        "alpha", out[1].unsqueeze(-1), right[1].unsqueeze(-1), 4.0 * units * a.sum(-1, keepdim=True) * size + SMALLEST[dtype]
    )


@functools.cache
def distances_of(alpha: float) -> tuple[Tensor, Tensor]:
    """4000 rows of 40 scores, and 1 + e (s - c) for each: above 0 in the support, below 0 outside."""
    x = 2.0 * torch.randn(4000, 40, generator=torch.Generator().manual_seed(round(1000 * alpha)))
    top = entmax(x.double(), alpha, impl="reference").amax(-1, keepdim=True)
    return x, top ** (alpha - 1.0) + (alpha - 1.0) * (x.double() - x.double().amax(-1, keepdim=True))


@pytest.mark.parametrize("alpha", [1.25, 1.49, 1.499, 1.5, 1.6, 1.9, 2.0, 2.5])
def test_zeros_are_exactly_outside_the_support(alpha: float, isa: str) -> None:
    """160,000 entries, some within 1e-5 of the edge; only within 16 units of float32 may rounding decide."""
    x, distance = distances_of(alpha)
    weights = entmax(x, alpha, impl="cpu")
    unit = 16.0 * torch.finfo(torch.float32).eps * alpha  # 1 + e |s - c| < 1 + 1 near the edge, times e
    false = (weights > 0) & (distance < -unit)
    # Far inside, but with a weight that float32 cannot hold: q^(1/e) underflows for q < 1e-38^e.
    missing = (weights == 0) & (distance > max(unit, 3e-38 ** (alpha - 1.0)))
    assert not false.any(), f"{int(false.sum())} weights up to {weights[false].max()} down to {distance[false].min()} outside"
    assert not missing.any(), f"{int(missing.sum())} zeros up to {distance[missing].max()} inside the support"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_reference_rounds_its_float64_answer(dtype: torch.dtype) -> None:
    """So the tests above may ask it in float64 only."""
    want = expected_of(dtype, 33)
    x, alpha = want.x.clone().requires_grad_(), want.alpha.clone().requires_grad_()
    weights = entmax(x, alpha, impl="reference")
    grad_x, grad_alpha = torch.autograd.grad(weights, (x, alpha), want.grad)
    for ours, right in ((weights, want.weights), (grad_x, want.grad_x), (grad_alpha, want.grad_alpha)):
        torch.testing.assert_close(ours, right.to(ours.dtype), rtol=0.0, atol=0.0, equal_nan=True)


LAYOUTS: dict[str, Callable[[Tensor], tuple[Tensor, int]]] = {
    "transposed": lambda x: (x.mT.contiguous().mT, -1),
    "sliced": lambda x: (torch.cat([x, x], -1)[..., 1 : 1 + x.shape[-1]], -1),
    "every second": lambda x: (x.repeat_interleave(2, -1)[..., ::2], -1),
    "expanded": lambda x: (x[:, :1].expand(-1, 4, -1), -1),
    "expanded along dim": lambda x: (x[..., :1].expand(-1, -1, 9), 2),
    "flipped": lambda x: (x.flip(0), -1),
    "dim 0": lambda x: (x, 0),
    "dim 1": lambda x: (x, 1),
    "dim -2": lambda x: (x, -2),
    "dim -3, permuted": lambda x: (x.permute(2, 0, 1), -3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_bits_of_the_contiguous_one(dtype: torch.dtype, layout: str, isa: str) -> None:
    seed = torch.Generator().manual_seed(3)
    base = torch.randn(5, 7, 33, generator=seed, dtype=torch.float64).to(dtype)
    x, dim = LAYOUTS[layout](base)
    rows = x.movedim(dim, -1).contiguous()
    grad = torch.randn(x.shape, generator=seed, dtype=torch.float64).to(dtype)
    alpha = 1.0 + 2.0 * torch.rand((*rows.shape[:-1], 1), generator=seed, dtype=torch.float64)
    alpha[0, 0], alpha[-1, -1], alpha[0, -1] = 1.0, 1.5, 2.0

    def run(x: Tensor, alpha: Tensor, dim: int, grad: Tensor, impl: str) -> tuple[Tensor, Tensor, Tensor]:
        x, alpha = x.detach().requires_grad_(), alpha.detach().requires_grad_()
        weights = entmax(x, alpha, dim, impl=impl)
        return weights.detach(), *torch.autograd.grad(weights, (x, alpha), grad)

    got = run(x, alpha.movedim(-1, dim), dim, grad, "cpu")
    flat = run(rows, alpha, -1, grad.movedim(dim, -1).contiguous(), "cpu")
    for ours, plain in zip(got, flat, strict=True):
        assert torch.equal(ours.movedim(dim, -1), plain)
    right = run(x, alpha.movedim(-1, dim), dim, grad, "reference")
    # Gradients, with alpha > 2 among them, are compared by bounds elsewhere; here only the layout can go wrong.
    torch.testing.assert_close(got[0].double(), right[0].double(), rtol=2 * torch.finfo(dtype).eps, atol=2e-6)
    assert (got[1].movedim(dim, -1).shape, got[2].movedim(dim, -1).shape) == (rows.shape, alpha.shape)


@pytest.mark.parametrize(("rows", "n"), [(1, 3000), (5, 7), (17, 64), (33, 64), (17, 1100), (5, 3000)])
def test_a_row_does_not_depend_on_its_neighbors(rows: int, n: int, isa: str) -> None:
    """Rows are solved together, as many as a vector has lanes; each must come out as if it were alone, to the bit.

    Short rows that share alpha have a solver of their own, so that one among rows of another alpha may differ by a rounding.
    """
    seed = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, n, generator=seed) * torch.logspace(-3, 1, rows)[:, None]
    x[rows // 2, 0] = INF
    for alpha in (1.0, 1.5, 2.0, 1.3, 1.01, 3.0, None):
        exponent = 1.0 + 1.5 * torch.rand(rows, 1, generator=seed) if alpha is None else torch.full((rows, 1), alpha)
        whole = entmax(x, exponent, impl="cpu")
        alone = torch.cat([entmax(x[i : i + 1], exponent[i : i + 1], impl="cpu") for i in range(rows)])
        if alpha is None and n <= 128:
            torch.testing.assert_close(whole, alone, rtol=0.0, atol=4e-7)
        else:
            assert torch.equal(whole, alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_one_thread_and_two_give_the_same_bits(dtype: torch.dtype, isa: str, threads: None) -> None:
    seed = torch.Generator().manual_seed(0)
    scores = torch.randn(301, 257, generator=seed, dtype=torch.float64).mul(2.0).to(dtype)  # 77k scores: five tasks' worth
    grad = torch.randn(scores.shape, generator=seed, dtype=torch.float64).to(dtype)
    alphas = 0.8 + 2.0 * torch.rand(301, 1, generator=seed, dtype=torch.float64)
    answers = []
    for count in (1, 2):
        torch.set_num_threads(count)
        for alpha in (torch.full_like(alphas, 1.5), torch.full_like(alphas, 2.0), torch.ones_like(alphas), alphas):
            x, exponent = scores.clone().requires_grad_(), alpha.clone().requires_grad_()
            weights = entmax(x, exponent, impl="cpu")
            answers.append((weights.detach(), *torch.autograd.grad(weights, (x, exponent), grad)))
    for one, two in zip(answers[:4], answers[4:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.25, 1.5, 2.0, 4.0])
def test_a_row_of_200_000(alpha: float, isa: str) -> None:
    seed = torch.Generator().manual_seed(1)
    x = torch.randn(1, 200_000, generator=seed).requires_grad_()
    exponent = torch.tensor([[alpha]], dtype=torch.float64, requires_grad=True)
    grad = torch.randn(1, 200_000, generator=seed)
    weights = entmax(x, exponent, impl="cpu")
    right = entmax(x, exponent, impl="reference")
    bounds = Bounds(x.detach().double(), exponent.detach(), right.detach().double(), grad.double(), torch.float32)
    assert ((weights - right).abs() <= torch.minimum(bounds.weights, torch.tensor(1e-6 if alpha <= 2 else 1e-5))).all()
    assert abs(weights.double().sum().item() - 1.0) < 1e-5  # 200,000 roundings of 6e-8 relative to the weight they round
    ours = torch.autograd.grad(weights, (x, exponent), grad)
    theirs = torch.autograd.grad(right, (x, exponent), grad)
    assert ((ours[0] - theirs[0]).abs() <= bounds.scores).all()
    assert ((ours[1] - theirs[1]).abs() <= bounds.alpha).all()
