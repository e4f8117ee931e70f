"""Device functions of Triton kernels: weights of scores, their slopes, steps of the solver, the dropout mask.

x = score - row_max - threshold <= 0, e = alpha - 1, y = e x, t = 1 + y:

    p = t^(1/e)    w = dp/dx = p/t    v = dw/dx = (1 - e) w/t    a = dp/dalpha = (y w - p ln t)/e^2

By general alpha powers are exp2(log2(t)/e). Near y = 0, where that cancels (at e = 0 everything is), ln t = y (1 - y Q(y)) and
a = p x^2 (Q(y) - 1/t) with a polynomial Q, so softmax is no special case. Where the host knows alpha, MODE selects a path
without powers.
"""

import triton
import triton.language as tl

GENERAL = tl.constexpr(0)
ENTMAX15 = tl.constexpr(1)
SPARSEMAX = tl.constexpr(2)
SOFTMAX = tl.constexpr(3)
RELU = tl.constexpr(4)  # from here on weights do not depend on each other
SIGMOID = tl.constexpr(5)

NEAR = tl.constexpr(-0.25)  # from here to 0 the polynomial is used
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)  # in place of -inf, where it would be multiplied by 0
INF = tl.constexpr(float("inf"))


@triton.jit
def finite_part(x):
    """NaN and infinity replaced by 0."""
    return tl.where(tl.abs(x) < INF, x, 0.0)


@triton.jit
def _log_rest(y):
    """Q(y) = (y - log1p(y))/y^2 for -1/4 <= y <= 0: Chebyshev interpolation, error 2.4e-9."""
    q = y * 0.29609888792037964 - 0.07364511489868164
    q = q * y + 0.1794644594192505
    q = q * y - 0.1988232433795929
    q = q * y + 0.25005069375038147
    q = q * y - 0.33333250880241394
    return q * y + 0.5


@triton.jit
def weight_and_slope(x, e, inverse, MODE: tl.constexpr):
    """Returns p and w; exactly 0 outside the support. `inverse` is 1/e, some large number at e = 0."""
    if MODE == RELU:  # x is the score
        return tl.maximum(x, 0.0), tl.where(x > 0.0, 1.0, 0.0)
    elif MODE == SIGMOID:
        p = 1.0 / (1.0 + tl.exp2(x * -LOG2E))
        return p, p * (1.0 - p)
    elif MODE == SOFTMAX:
        p = tl.exp2(x * LOG2E)
        return p, p
    elif MODE == ENTMAX15:
        t = tl.maximum(0.5 * x + 1.0, 0.0)
        return t * t, t
    elif MODE == SPARSEMAX:
        t = tl.maximum(x + 1.0, 0.0)
        return t, tl.where(t > 0.0, 1.0, 0.0)
    else:
        x = tl.maximum(x, LOWEST)
        y = tl.maximum(e * x, -1.0)
        t = y + 1.0
        inside = t > 0.0
        near = x * (1.0 - y * _log_rest(y)) * LOG2E
        far = tl.log2(tl.where(inside, t, 1.0)) * inverse
        p = tl.where(inside, tl.exp2(tl.where(y > NEAR, near, far)), 0.0)
        return p, p / tl.where(inside, t, 1.0)


@triton.jit
def second_slope(x, p, w, e, MODE: tl.constexpr):
    """Returns v, the derivative of w; 0 where it is unbounded or not there."""
    if MODE == SOFTMAX:
        return p
    elif MODE == ENTMAX15:
        return tl.where(w > 0.0, 0.5, 0.0)
    elif MODE == SPARSEMAX:
        return p * 0.0
    else:
        return w * (1.0 - e) / tl.maximum(e * tl.maximum(x, LOWEST) + 1.0, 1e-3)


@triton.jit
def alpha_slope(x, p, w, e, inverse, MODE: tl.constexpr):
    """Returns a, the derivative of the weight by alpha at a fixed threshold."""
    x = tl.maximum(x, LOWEST)
    if MODE == SOFTMAX:
        return tl.where(p > 0.0, -0.5 * p * x * x, 0.0)
    else:
        y = tl.maximum(e * x, -1.0)
        t = tl.where(p > 0.0, y + 1.0, 1.0)
        near = p * x * x * (_log_rest(y) - 1.0 / t)
        far = (y * w - p * tl.log2(t) * LN2) * inverse * inverse
        return tl.where(p > 0.0, tl.where(y > NEAR, near, far), 0.0)


@triton.jit
def newton_step(total, slope, e):
    """Returns (1 - S^-e)/e * S/W: Newton's step on the deformed logarithm of the sum S of a row, W the sum of its slopes."""
    log_total = tl.log2(tl.maximum(total, 1e-37)) * LN2
    z = e * log_total
    near = log_total * (1.0 - z * (0.5 - z * (0.16666667 - z * 0.041666668)))
    far = (1.0 - tl.exp2(-z * LOG2E)) / tl.where(e == 0.0, 1.0, e)
    return tl.where(tl.abs(z) < 0.05, near, far) * total / tl.where(slope > 0.0, slope, 1.0)


@triton.jit
def moved(total, slope, e, inverse, distance):
    """Returns lower bounds of S and W at a threshold higher by `distance`: the tangent of S^e, a norm of the row for e <= 1."""
    x = -distance * slope / tl.where(total > 0.0, total, 1.0)
    shrunk, _ = weight_and_slope(x, e, inverse, 0)
    log_shrunk = tl.log2(tl.where(shrunk > 0.0, shrunk, 1.0))
    return total * shrunk, tl.where(shrunk > 0.0, slope * tl.exp2(log_shrunk * (1.0 - e)), 0.0)


@triton.jit
def keep(seed, position, drop):
    """Whether dropout keeps the weight at a position of the scores: the hash of csrc/rng.h."""
    at = position.to(tl.uint64) + tl.full((), 1, tl.uint64)
    x = seed.to(tl.uint64, bitcast=True) + tl.full((), 0x9E3779B97F4A7C15, tl.uint64) * at
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    x = x ^ (x >> 31)
    return (x >> 40).to(tl.int32).to(tl.float32) * 5.9604645e-8 >= drop
