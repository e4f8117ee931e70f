"""Weights and the gradient to alpha in float32, against 50-digit arithmetic on thousands of random and adversarial rows.

The oracle shares no formula with the kernels but the definition: c by bisection in Python floats, refined in mpmath until
sum exp_e(s - c) = 1 changes sign within 1e-40; the alpha gradient by Eq. 9 of Correia et al. (2019), whose cancellation does
not matter with 60 digits. Scores and alphas are float32 numbers, taken as exact.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch

from entformer.kernels import native
from entformer.kernels.entmax.api import entmax

GRADIENT_ALPHAS = [1.0, 1.0 + 1e-7, 1.0001, 1.001, 1.01, 1.1, 1.5, 1.9, 2.0, 2.5]
VALUE_ALPHAS = sorted([*GRADIENT_ALPHAS, 1.25, 1.499, 1.75, 3.0, 4.0])
LENGTHS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
PLAIN_ROWS = 20  # of every kind, for each alpha
LONG_ROWS = 12  # of 64 scores, for each alpha
DIGITS = 60
BAR = 1e-5  # for the alpha gradient
MOST_ROWS_COUNT = 0.6


@dataclass(frozen=True)
class Row:
    """One row, its exact weights, and everything the exact alpha gradient needs."""

    kind: str
    scores: tuple[float, ...]
    grad: tuple[float, ...]
    weights: tuple[float, ...]
    grad_alpha: float
    largest_term: float  # max |a_i (g_i - delta)|
    blur: float  # what rounding each s_i - c to float32 does to grad_alpha, root of the sum of squares


def _single(values: np.ndarray) -> tuple[float, ...]:
    return tuple(np.asarray(values, dtype=np.float32).astype(float).tolist())


def single_alpha(alpha: float) -> float:
    return float(np.float32(alpha))


def _float_root(u: list[float], e: float) -> float:
    """lam to about 1e-15 by bisection; max(u) = 0."""

    def total(lam: float) -> float:
        if e == 0.0:
            return math.fsum(math.exp(v - lam) for v in u)
        return math.fsum(math.exp(math.log1p(e * (v - lam)) / e) for v in u if e * (v - lam) > -1.0)

    low, high = 0.0, math.log(len(u)) if e == 0.0 else -math.expm1(-e * math.log(len(u))) / e
    for _ in range(70):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total(middle) > 1.0 else (low, middle)
    return 0.5 * (low + high)


def _exact_root(u: list[mpmath.mpf], e: mpmath.mpf) -> mpmath.mpf:
    def total(lam: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
        p, w, _ = zip(*(_parts(v - lam, e) for v in u), strict=True)
        return mpmath.fsum(p), mpmath.fsum(w)

    guess = mpmath.mpf(_float_root([float(v) for v in u], float(e)))
    width = mpmath.mpf(10) ** -13 * (1 + guess)
    low, high = guess - width, guess + width
    while total(low)[0] < 1 or total(high)[0] > 1:  # the float root was worse than thought
        low, high, width = low - width, high + width, 8 * width
    lam = guess
    for _ in range(200):
        value, slope = total(lam)
        low, high = (lam, high) if value > 1 else (low, lam)
        if abs(value - 1) < mpmath.mpf(10) ** -50 or high - low < mpmath.mpf(10) ** -48:
            break
        lam += (value - 1) / slope
        if not low < lam < high:
            lam = (low + high) / 2
    nudge = mpmath.mpf(10) ** -40
    if not total(lam - nudge)[0] > 1 > total(lam + nudge)[0]:
        raise AssertionError("the oracle did not find the root")
    return lam


def _parts(x: mpmath.mpf, e: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """p = exp_e(x), its slope w = dp/dx, and a = dp/dalpha at fixed x."""
    q = 1 + e * x
    if q <= 0:
        return mpmath.mpf(0), mpmath.mpf(0), mpmath.mpf(0)
    if e == 0:
        p = mpmath.exp(x)
        return p, p, -p * x**2 / 2
    log_q = mpmath.log(q)
    p = mpmath.exp(log_q / e)
    return p, p / q, (e * x * p / q - p * log_q) / e**2


def exact(kind: str, scores: tuple[float, ...], grad: tuple[float, ...], alpha: float) -> Row:
    with mpmath.workdps(DIGITS):
        e = mpmath.mpf(alpha) - 1
        top = max(scores)
        u = [mpmath.mpf(s) - mpmath.mpf(top) for s in scores]
        lam = _exact_root(u, e)
        x = [v - lam for v in u]
        p, w, a = zip(*(_parts(v, e) for v in x), strict=True)
        g = [mpmath.mpf(v) for v in grad]
        total = mpmath.fsum(w)
        delta = mpmath.fdot(w, g) / total
        terms = [slope * (v - delta) for slope, v in zip(a, g, strict=True)]
        blur = mpmath.mpf(0)
        for i, v in enumerate(x):
            rounding = mpmath.mpf(2) ** -24 * (1 + abs(v))
            changes = []
            for moved in (v - rounding, v + rounding):
                _, w_moved, a_moved = _parts(moved, e)
                share = (w_moved - w[i]) / (total + w_moved - w[i]) if total + w_moved - w[i] > 0 else mpmath.mpf(1)
                changes.append((a_moved - a[i] - mpmath.fsum(a) * share) * (g[i] - delta))
            blur += max(abs(change) for change in changes) ** 2
        return Row(
            kind,
            scores,
            grad,
            tuple(float(v) for v in p),
            float(mpmath.fsum(terms)),
            float(max(abs(term) for term in terms)),
            float(mpmath.sqrt(blur)),
        )


def _rows(alpha: float) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(round(alpha * 1e7))
    e = alpha - 1.0
    for i in range(PLAIN_ROWS):
        n = LENGTHS[i % len(LENGTHS)]
        z = rng.standard_normal(n)
        yield "normal", z
        yield "scale 1/3", z / 3
        yield "scale 10", 10 * z
        yield "scale of the support", z / max(e, 0.1)
        yield "ties", np.round(z)
        yield "ties of the largest", np.where(np.arange(n) < (n + 1) // 2, z.max(), z)
        yield "all equal", np.full(n, z[0])
        yield "one dominates", np.where(np.arange(n) == n // 2, 40.0, z)
        yield "huge spread", 1e4 * z
        yield "widest spread", 1e30 * z
        yield "tiny spread", 1e-6 * z
        yield "shifted up", np.round(3 * z) + 1e7
        yield "shifted down", np.round(3 * z) * 64 - 1e9
        yield "uniform steps", np.arange(n) * 0.3
        if e > 0:
            # The last entry exactly where the support of the others ends, or a few float32 steps to either side of it.
            inner = _single(z[:-1] / max(e, 0.1))
            edge = np.float32(max(inner) + _float_root([v - max(inner) for v in inner], e) - 1 / e)
            steps = int(rng.integers(-3, 4))
            for _ in range(abs(steps)):
                edge = np.nextafter(edge, np.float32(math.copysign(math.inf, steps)))
            yield "at the edge", np.append(inner, edge)
            yield "two scores, gap at the edge", np.array([0.0, -1 / e]) * (1.0 + 1e-7 * rng.integers(-3, 4))
    for _ in range(LONG_ROWS):
        z = rng.standard_normal(64)
        yield "64 scores", z * rng.choice([0.5, 1.0, 4.0])


@functools.cache
def oracle(alpha: float) -> tuple[Row, ...]:
    rng = np.random.default_rng(round(alpha * 1e7) + 1)
    rows = []
    for number, (kind, scores) in enumerate(_rows(alpha)):
        grad = rng.standard_normal(len(scores))
        if number % 4 == 1:
            grad = np.eye(len(scores))[rng.integers(len(scores))]
        elif number % 4 == 2:
            grad = grad + 3.0  # a common part of the gradient must cancel
        rows.append(exact(kind, _single(scores), _single(grad), alpha))
    return tuple(rows)


def by_length(rows: tuple[Row, ...]) -> list[list[Row]]:
    lengths = sorted({len(row.scores) for row in rows})
    return [[row for row in rows if len(row.scores) == n] for n in lengths]


def test_the_oracle_knows_closed_forms() -> None:
    row = exact("", (0.0, math.log(3.0)), (0.0, 1.0), 1.0)
    assert row.weights == pytest.approx((0.25, 0.75), abs=1e-16)
    row = exact("", (0.5, 1.0, -3.0), (0.0, 1.0, 0.0), 2.0)
    assert row.weights == pytest.approx((0.25, 0.75, 0.0), abs=1e-16)
    # alpha = 1.5, two scores 0 and d: p = ((sqrt(8 - d^2) -+ d)/4)^2
    row = exact("", (0.0, 1.0), (0.0, 1.0), 1.5)
    assert row.weights == pytest.approx((((7**0.5 - 1) / 4) ** 2, ((7**0.5 + 1) / 4) ** 2), abs=1e-16)
    # The alpha gradient against a difference quotient of the oracle's own weights.
    for alpha in (1.0, 1.3, 2.5):
        low, high = (exact("", (0.0, 0.2, 0.3), (0.0, 0.0, 1.0), alpha + step).weights[2] for step in (-1e-5, 1e-5))
        assert exact("", (0.0, 0.2, 0.3), (0.0, 0.0, 1.0), alpha).grad_alpha == pytest.approx((high - low) / 2e-5, rel=1e-6)


@pytest.fixture(params=["reference", "avx512", "avx2", "portable"])
def impl(request: pytest.FixtureRequest) -> Iterator[str]:
    """The reference, or the kernels with each instruction set."""
    if request.param == "reference":
        yield "reference"
        return
    request.getfixturevalue("kernels")
    before = native.isa()
    if not native.set_isa(request.param):
        pytest.skip(f"this CPU does not support {request.param}")
    yield "cpu"
    native.set_isa(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", [single_alpha(alpha) for alpha in VALUE_ALPHAS])
def test_values(alpha: float, dtype: torch.dtype, impl: str) -> None:
    worst, at = 0.0, ""
    for rows in by_length(oracle(alpha)):
        weights = entmax(torch.tensor([row.scores for row in rows], dtype=dtype), alpha, impl=impl).double()
        error = (weights - torch.tensor([row.weights for row in rows], dtype=torch.float64)).abs().amax(-1)
        if error.max().item() > worst:
            worst, at = error.max().item(), rows[int(error.argmax())].kind
    # Float64 has 2^29 times finer steps, but beyond alpha = 2 the weight at the edge of the support is
    # a root of what is left of them: 1e-16^(1/3) = 5e-6 at alpha = 4.
    if alpha > 2.0:
        assert worst <= 1e-5, at
    else:
        assert worst <= (1e-6 if dtype == torch.float32 else 1e-14), at


@pytest.mark.parametrize("alpha", [single_alpha(alpha) for alpha in GRADIENT_ALPHAS])
def test_alpha_gradient(alpha: float, impl: str) -> None:
    """Within 1e-5 of the largest term, in every row whose answer float32 can hold.

    Rounding s_i - c alone, once, to float32 already moves the answer by `blur`. It is unbounded where an entry enters the
    support (at alpha = 2 the gradient jumps there, beyond it is infinite), and large where one entry has all the weight but
    1e-7 of it and the gradient is what is left. A kernel rounds a few times, so rows with a blur of a quarter of the bar count.
    """
    rows_used = tuple(row for row in oracle(alpha) if row.blur <= 0.25 * BAR * row.largest_term)
    assert len(rows_used) >= MOST_ROWS_COUNT * len(oracle(alpha))
    worst, at = 0.0, ""
    for rows in by_length(rows_used):
        x = torch.tensor([row.scores for row in rows], dtype=torch.float32)
        exponent = torch.full((len(rows), 1), alpha, dtype=torch.float64, requires_grad=True)
        grad = torch.tensor([row.grad for row in rows], dtype=torch.float32)
        (got,) = torch.autograd.grad(entmax(x, exponent, impl=impl), exponent, grad)
        for row, value in zip(rows, got.flatten().tolist(), strict=True):
            error = abs(value - row.grad_alpha) / row.largest_term if row.largest_term > 0.0 else abs(value)
            if error > worst:
                worst, at = error, f"{row.kind}, n = {len(row.scores)}"
    assert worst <= BAR, at
