"""The thresholds: from the scout's lower bounds to the roots, over live key blocks only.

Three ways, by e = alpha - 1, which is the same for all rows of a program:

    e <= 0.6      Halley's method on the deformed logarithm of the sum S. What is left after a step from S = 1 + d is of order
                  d^3, so a step from a small d is the last.
    0.6 < e <= 1  S is convex but has kinks, so it is evaluated at two points. Tangents and chord bound the root. Of scores
                  with a smooth density S is about the power 1 + 1/e of the distance from the largest score: interpolation of
                  its deformed logarithm with e/(1 + e), nearly a line, estimates the root, and the next two points lie closely
                  around the estimate. For float32 a point between them halves the interval first.
    e > 1         S is not convex and its slope has no bound. Newton's step, or half of the bracket where the step leaves it
                  or the last one gained little.

The output is divided by its sum, so that what is left is spread over the row. Of half-precision inputs, whose scores are exact
to 2^-11 of their size, a sum is solved to about 1e-3 at worst, of float32 to 3e-5.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    deformation,
    is_hazard,
    key_block,
    key_range,
    load_queries,
    own_rows,
    per_head,
)
from entformer.kernels.entmax.triton.maths import GENERAL, INF, SPARSEMAX, newton_step, second_slope, weight_and_slope

MOST_STEPS = tl.constexpr(48)
SMOOTH = tl.constexpr(0.6)


@triton.jit
def _halley(lam, total, slope, bend, e, EXACT: tl.constexpr):
    """Returns the next threshold and whether the step was the last."""
    step = newton_step(total, slope, e)
    safe = tl.where(slope > 0.0, slope, 1.0)
    ratio = bend / safe - (1.0 - e) * slope / tl.where(total > 0.0, total, 1.0)
    step = step / tl.minimum(tl.maximum(1.0 - 0.5 * step * ratio, 0.5), 2.0)
    return lam + step, tl.abs(step) * safe < (1e-2 if EXACT else 5e-2)


@triton.jit
def _line(total, safe_slope, e):
    """Returns the deformed logarithm of S with e/(1 + e), and minus the derivative of the threshold by it."""
    power = e / (1.0 + e)
    log_total = tl.log2(tl.maximum(total, 1e-30))
    return (tl.exp2(power * log_total) - 1.0) / power, tl.exp2((1.0 - power) * log_total) / safe_slope


@triton.jit
def _between(lam, width, total, slope, total_after, slope_after, e, inverse, EXACT: tl.constexpr):
    """Returns the next lower point, the next distance, the best estimate of the root, and whether it is good enough.

    From S and W at lam and at lam + width, S convex.
    """
    gap, gap_after = total - 1.0, total_after - 1.0
    safe = tl.where(slope > 0.0, slope, 1.0)
    safe_after = tl.where(slope_after > 0.0, slope_after, 1.0)
    after = lam + width
    by_tangent = lam + gap / safe
    lower = tl.where(slope_after > 0.0, tl.maximum(by_tangent, after + gap_after / safe_after), by_tangent)
    inside = (gap >= 0.0) & (gap_after < 0.0) & (width > 0.0)
    by_chord = lam + width * gap / tl.where(inside, gap - gap_after, 1.0)
    upper = tl.maximum(tl.where(inside, by_chord, tl.where(gap < 0.0, lam, inverse)), lower)
    # Inverse Hermite interpolation: lam as a cubic of y, at 0.
    y, step = _line(total, safe, e)
    y_after, step_after = _line(total_after, safe_after, e)
    known = (y - y_after > 1e-7) & (slope_after > 0.0)
    height = tl.where(known, y - y_after, 1.0)
    at = y / height
    cubic = width * at * at * (3.0 - 2.0 * at) + at * (1.0 - at) * height * ((1.0 - at) * step - at * step_after)
    beyond = gap_after >= 0.0
    move = tl.where(beyond, y_after * step_after, y * step)  # Newton's, from the nearer point
    by_newton = tl.where(beyond, after, lam) + move
    trusted = inside | (tl.abs(lam + cubic - by_newton) < 0.5 * tl.abs(move))
    estimate = tl.where(known, tl.where(trusted, lam + cubic, by_newton), by_tangent)
    estimate = tl.minimum(tl.maximum(estimate, lower), upper)
    done = inside & ((upper - lower) * safe < (5e-5 if EXACT else 4e-3))
    still = (tl.abs(gap) < 2e-6) | (tl.abs(estimate - lam) <= 2e-7 * tl.abs(lam))
    done = done | ((inside == 0) & still)
    reach = (0.3 if EXACT else 0.2) * e * tl.minimum(tl.abs(estimate - lam), tl.abs(after - estimate))
    next_lam = tl.maximum(estimate - reach, lower)
    return next_lam, tl.minimum(estimate + reach, upper) - next_lam, estimate, done


@triton.jit
def _half(lam, width, total, slope, middle, middle_slope, after, after_slope):
    """Returns the half of the interval that holds the root, with S and W at both of its ends."""
    upper = middle >= 1.0
    total, slope = tl.where(upper, middle, total), tl.where(upper, middle_slope, slope)
    after, after_slope = tl.where(upper, after, middle), tl.where(upper, after_slope, middle_slope)
    return tl.where(upper, lam + 0.5 * width, lam), 0.5 * width, total, slope, after, after_slope


@triton.jit
def solve(p, row_max, threshold, lists, counts, counters):
    """Moves `threshold` to the roots; `lists` holds the live key blocks of each block of queries, `counts` their number."""
    b, h, line, own, start, rows, there = own_rows(p)
    hazard = is_hazard(p)
    e, inverse = deformation(p, b, h)
    low, high, at = key_range(p, rows)
    q = load_queries(p, b, h, start, there)
    top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
    lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0)
    EXACT: tl.constexpr = p.query.ptr.dtype.element_ty == tl.float32
    open_rows = tl.abs(top) < INF
    top = tl.where(open_rows, top, 0.0)
    count = tl.load(counts + own)

    if p.MODE == GENERAL:
        smooth = e <= SMOOTH
        convex = e <= 1.0
    else:  # known when it is compiled
        smooth: tl.constexpr = p.MODE != SPARSEMAX
        convex: tl.constexpr = True
    width = (0.5 if EXACT else 0.4) * e * (inverse - lam)
    below = lam  # bracket for e > 1
    above = tl.zeros([p.BM], tl.float32) + inverse
    best = lam
    best_gap = tl.full([p.BM], INF, tl.float32)
    last_gap = tl.full([p.BM], INF, tl.float32)
    steps = 0
    unsolved = tl.max(tl.where(open_rows, 1, 0), 0)
    while (unsolved > 0) & (steps < MOST_STEPS):
        total = tl.zeros([p.BM], tl.float32)
        slope = tl.zeros([p.BM], tl.float32)
        other = tl.zeros([p.BM], tl.float32)  # smooth: sum of second slopes; else S at lam + width
        other_slope = tl.zeros([p.BM], tl.float32)
        middle = tl.zeros([p.BM], tl.float32)  # S at lam + width/2, for float32
        middle_slope = tl.zeros([p.BM], tl.float32)
        if p.sinks is not None:
            x = per_head(p.sinks, b, h).to(tl.float32) - top - lam
            total, slope = weight_and_slope(x, e, inverse, p.MODE)
            if smooth:
                other = second_slope(x, total, slope, e, p.MODE)
            elif convex:
                other, other_slope = weight_and_slope(x - width, e, inverse, p.MODE)
                if EXACT:
                    middle, middle_slope = weight_and_slope(x - 0.5 * width, e, inverse, p.MODE)
        for n in range(0, count):
            j = tl.load(lists + own * p.key_blocks + n).to(tl.int32)
            s, _, _, _, _ = key_block(p, q, j, b, h, rows, low, high, at, hazard)
            x = s - top[:, None] - lam[:, None]
            weights, slopes = weight_and_slope(x, e, inverse, p.MODE)
            total += tl.sum(weights, 1)
            slope += tl.sum(slopes, 1)
            if smooth:
                other += tl.sum(second_slope(x, weights, slopes, e, p.MODE), 1)
            elif convex:
                weights, slopes = weight_and_slope(x - width[:, None], e, inverse, p.MODE)
                other += tl.sum(weights, 1)
                other_slope += tl.sum(slopes, 1)
                if EXACT:
                    weights, slopes = weight_and_slope(x - 0.5 * width[:, None], e, inverse, p.MODE)
                    middle += tl.sum(weights, 1)
                    middle_slope += tl.sum(slopes, 1)
        steps += 1
        if smooth:
            new, done = _halley(lam, total, slope, other, e, EXACT)
        elif convex:
            begin = lam
            if EXACT:
                begin, width, total, slope, other, other_slope = _half(
                    lam, width, total, slope, middle, middle_slope, other, other_slope
                )
            new, width, estimate, done = _between(begin, width, total, slope, other, other_slope, e, inverse, EXACT)
            best = tl.where(open_rows, estimate, best)
            new = tl.where(done, estimate, new)
        else:
            gap = total - 1.0
            better = tl.abs(gap) < best_gap
            best = tl.where(better, lam, best)
            best_gap = tl.where(better, tl.abs(gap), best_gap)
            below = tl.where(gap >= 0.0, tl.maximum(lam, below), below)
            above = tl.where(gap < 0.0, tl.minimum(lam, above), above)
            new = lam + newton_step(total, slope, e)
            halve = (new < below) | (new > above) | (slope == 0.0) | (tl.abs(gap) > 0.5 * last_gap)
            new = tl.where(halve, 0.5 * (below + above), new)
            last_gap = tl.abs(gap)
            done = (tl.abs(gap) < 2e-6) | (above - below < 2e-7 * tl.maximum(tl.abs(lam), 1e-2))
            new = tl.where(done, best, new)
        lam = tl.where(open_rows, new, lam)
        open_rows = open_rows & (done == 0)
        unsolved = tl.max(tl.where(open_rows, 1, 0), 0)
    if smooth == 0:
        lam = tl.where(open_rows, best, lam)
    tl.store(threshold + line * p.queries + rows, lam, mask=there)
    if counters is not None:
        tl.store(counters + own * 4 + 1, steps)
        tl.store(counters + own * 4 + 2, count)
