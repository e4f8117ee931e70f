"""The thresholds: from the scout's lower bounds to the roots, over live key blocks only.

Three ways, by e = alpha - 1, which is the same for all rows of a program:

    e <= 0.6      Halley's method on the deformed logarithm of the sum S. What is left after a step from S = 1 + d is of order
                  d^3, so a step from a small d is the last.
    0.6 < e <= 1  S is convex but has kinks. It is evaluated at two points: if they have the root between them, it lies between
                  the roots of the tangents and that of the chord, and these are the next two points.
    e > 1         S is not convex and its slope has no bound. Newton's step, or half of the bracket where the step leaves it
                  or the last one gained little.

The output is divided by its sum, so that what is left is spread over the row. Of half-precision inputs, whose scores are exact
to 2^-11 of their size, a sum is solved to 1e-4, of float32 to 1e-6.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_scores,
    deformation,
    is_hazard,
    key_range,
    load_rows,
    per_head,
    usable_keys,
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
def _between(lam, width, total, slope, total_after, slope_after, inverse, EXACT: tl.constexpr):
    """Returns the next lower point, the next distance, the best estimate of the root, and whether it is good enough.

    From S and W at lam and at lam + width, S convex.
    """
    gap, gap_after = total - 1.0, total_after - 1.0
    safe = tl.where(slope > 0.0, slope, 1.0)
    safe_after = tl.where(slope_after > 0.0, slope_after, 1.0)
    safe_width = tl.where(width > 0.0, width, 1.0)
    by_first = lam + gap / safe  # roots of the tangents: not beyond the root
    by_second = tl.where(slope_after > 0.0, lam + width + gap_after / safe_after, by_first)
    lower = tl.maximum(by_first, by_second)
    difference = tl.where(gap > gap_after, gap - gap_after, 1.0)
    at = gap / difference
    upper = tl.maximum(lam + width * at, lower)  # root of the chord: not before the root
    # Inverse Hermite interpolation: lam as a cubic of the gap, at 0.
    first, second = difference / (safe * safe_width), difference / (safe_after * safe_width)
    cubic = at * at * (3.0 - 2.0 * at) + at * (1.0 - at) * ((1.0 - at) * first - at * second)
    estimate = tl.minimum(tl.maximum(lam + width * cubic, lower), upper)
    estimate = tl.where(slope_after > 0.0, estimate, lower)
    inside = (gap >= 0.0) & (gap_after < 0.0) & (width > 0.0)
    # Beyond both: the sum as a power of the distance from where it is zero.
    far = tl.maximum(inverse - lam - width, 1e-30)
    power = tl.log2(tl.maximum(total, 1e-30) / tl.maximum(total_after, 1e-30)) / tl.log2(1.0 + width / far)
    reach = far * tl.exp2(-tl.log2(tl.maximum(total_after, 1.0)) / tl.minimum(tl.maximum(power, 1.0), 8.0))
    beyond = gap_after >= 0.0
    next_lam = tl.where(inside, lower, tl.where(beyond, tl.maximum(inverse - 1.15 * reach, by_second), by_first))
    next_width = tl.where(inside, upper - lower, tl.where(beyond, 0.3 * reach, tl.abs(gap) / safe))
    done = inside & ((upper - lower) * safe < (4e-6 if EXACT else 2e-3))
    done = done | ((inside == 0) & (tl.abs(gap) < 2e-6))
    return next_lam, next_width, tl.where(inside, estimate, next_lam), done


@triton.jit
def solve(
    p,
    row_max,
    threshold,
    lists,
    counts,
    counters,
    key_blocks,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    UP: tl.constexpr,
):
    """Moves `threshold` to the roots; `lists` holds the live key blocks of each block of queries, `counts` their number."""
    block = tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    b, h = line // p.heads, line % p.heads
    start = block * BM
    rows = start + tl.arange(0, BM)
    there = rows < p.queries
    hazard = is_hazard(p)
    e, inverse = deformation(p, b, h, MODE)
    low, high, at = key_range(p, rows)
    q = load_rows(p.query, b, h, start, there, BM, D, DP, UP)
    top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
    lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0)
    EXACT: tl.constexpr = p.query.ptr.dtype.element_ty == tl.float32
    open_rows = tl.abs(top) < INF
    top = tl.where(open_rows, top, 0.0)
    own = line * tl.num_programs(0) + block
    count = tl.load(counts + own)

    if MODE == GENERAL:
        smooth = e <= SMOOTH
        convex = e <= 1.0
    else:  # known when it is compiled
        smooth: tl.constexpr = MODE != SPARSEMAX
        convex: tl.constexpr = True
    width = 0.4 * (inverse - lam)
    below = lam  # bracket for e > 1
    above = tl.zeros([BM], tl.float32) + inverse
    best = lam
    best_gap = tl.full([BM], INF, tl.float32)
    last_gap = tl.full([BM], INF, tl.float32)
    steps = 0
    unsettled = tl.max(tl.where(open_rows, 1, 0), 0)
    while (unsettled > 0) & (steps < MOST_STEPS):
        total = tl.zeros([BM], tl.float32)
        slope = tl.zeros([BM], tl.float32)
        other = tl.zeros([BM], tl.float32)  # smooth: sum of second slopes; else S at lam + width
        other_slope = tl.zeros([BM], tl.float32)
        if p.sinks is not None:
            x = per_head(p.sinks, b, h).to(tl.float32) - top - lam
            total, slope = weight_and_slope(x, e, inverse, MODE)
            if smooth:
                other = second_slope(x, total, slope, e, MODE)
            elif convex:
                other, other_slope = weight_and_slope(x - width, e, inverse, MODE)
        for n in range(0, count):
            j = tl.load(lists + own * key_blocks + n).to(tl.int32)
            columns = j * BN + tl.arange(0, BN)
            usable = usable_keys(p, b, columns, low, high)
            k = load_rows(p.key, b, h // p.group, j * BN, usable, BN, D, DP, UP)
            s, _ = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, hazard)
            x = s - top[:, None] - lam[:, None]
            weights, slopes = weight_and_slope(x, e, inverse, MODE)
            total += tl.sum(weights, 1)
            slope += tl.sum(slopes, 1)
            if smooth:
                other += tl.sum(second_slope(x, weights, slopes, e, MODE), 1)
            elif convex:
                weights, slopes = weight_and_slope(x - width[:, None], e, inverse, MODE)
                other += tl.sum(weights, 1)
                other_slope += tl.sum(slopes, 1)
        steps += 1
        if smooth:
            new, done = _halley(lam, total, slope, other, e, EXACT)
        elif convex:
            new, width, estimate, done = _between(lam, width, total, slope, other, other_slope, inverse, EXACT)
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
        unsettled = tl.max(tl.where(open_rows, 1, 0), 0)
    if smooth == 0:
        lam = tl.where(open_rows, best, lam)
    tl.store(threshold + line * p.queries + rows, lam, mask=there)
    if counters is not None:
        tl.store(counters + own * 4 + 1, steps)
        tl.store(counters + own * 4 + 2, count)
