"""The thresholds: from the scout's lower bounds to the roots, over live key blocks only.

Halley's method on the deformed logarithm of the sum, inside a bracket. What is left after a step from S = 1 + d is of order d^3
(alpha <= 1.5) or d^2, so a step from a small d is the last; the output is divided by its sum besides. For alpha > 2 the sum is not
convex in the threshold, and steps that leave the bracket or do not improve are replaced by halving it.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.maths import INF, newton_step, second_slope, weight_and_slope
from entformer.kernels.attention.triton.scores import (
    block_scores,
    deformation,
    is_hazard,
    key_range,
    load_rows,
    per_head,
    usable_keys,
)

MOST_STEPS = tl.constexpr(48)


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
    open_rows = tl.abs(top) < INF
    top = tl.where(open_rows, top, 0.0)
    own = line * tl.num_programs(0) + block
    count = tl.load(counts + own)

    below = lam  # the sum is at least 1 here
    above = tl.zeros([BM], tl.float32) + inverse
    best, best_gap = lam, tl.full([BM], INF, tl.float32)
    last_gap = tl.full([BM], INF, tl.float32)
    last_lam, last_slope = lam, tl.full([BM], -1.0, tl.float32)
    steps = 0
    unsettled = tl.max(tl.where(open_rows, 1, 0), 0)
    while (unsettled > 0) & (steps < MOST_STEPS):
        total = tl.zeros([BM], tl.float32)
        slope = tl.zeros([BM], tl.float32)
        bend = tl.zeros([BM], tl.float32)
        if p.sinks is not None:
            x = per_head(p.sinks, b, h).to(tl.float32) - top - lam
            total, slope = weight_and_slope(x, e, inverse, MODE)
            bend = second_slope(x, total, slope, e, MODE)
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
            bend += tl.sum(second_slope(x, weights, slopes, e, MODE), 1)
        gap = total - 1.0
        better = tl.abs(gap) < best_gap
        best = tl.where(better, lam, best)
        best_gap = tl.where(better, tl.abs(gap), best_gap)
        below = tl.where(gap >= 0.0, tl.maximum(lam, below), below)
        above = tl.where(gap < 0.0, tl.minimum(lam, above), above)
        step = newton_step(total, slope, e)
        safe_slope = tl.where(slope > 0.0, slope, 1.0)
        # Sparsemax has no second slope but jumps of the first: what the last step has lost of it.
        moved = lam - last_lam
        seen_bend = (last_slope - slope) / tl.where(moved > 0.0, moved, 1.0)
        use_seen = (moved > 0.0) & (last_slope > slope) & (tl.zeros([BM], tl.float32) + e > 0.75)
        bend = tl.where(use_seen, seen_bend, bend)
        ratio = bend / safe_slope - (1.0 - e) * slope / tl.where(total > 0.0, total, 1.0)
        step = step / tl.minimum(tl.maximum(1.0 - 0.5 * step * ratio, 0.5), 2.0)
        last_lam, last_slope = lam, slope
        new = lam + step
        wide = tl.zeros([BM], tl.float32) + e > 1.0
        halve = (new < below) | (new > above) | (slope == 0.0) | (wide & (tl.abs(gap) > 0.5 * last_gap))
        new = tl.where(halve, 0.5 * (below + above), new)
        last_gap = tl.abs(gap)
        # wide: the bracket has no number inside, or the gap is within rounding
        tiny = 2e-7 * tl.maximum(tl.abs(lam), 1e-2)
        done = tl.where(
            wide,
            (tl.abs(gap) < 2e-6) | (above - below < tiny),
            tl.abs(step) * safe_slope < tl.where(tl.zeros([BM], tl.float32) + e > 0.75, 1e-3, 1e-2),
        )
        unsettled = tl.max(tl.where(open_rows & (done == 0), 1, 0), 0)
        lam = tl.where(open_rows, tl.where(wide & done, best, new), lam)
        steps += 1
    if steps == MOST_STEPS:
        lam = tl.where(tl.zeros([BM], tl.float32) + e > 1.0, best, lam)
    tl.store(threshold + line * p.queries + rows, lam, mask=there)
    if counters is not None:
        tl.store(counters + own * 4 + 1, steps)
        tl.store(counters + own * 4 + 2, count)
