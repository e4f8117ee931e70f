"""The one pass over all keys: row maxima, lower bounds of the thresholds, and which key blocks may hold support.

A generalized online softmax. Of each row it keeps (row_max, threshold, S, W) for the keys seen so far. For a block the
threshold moves up to the new maximum, the old sums follow the tangent of S^e, which is below it for e <= 1 (at e = 0 it is
FlashAttention's rescaling, exactly), the block is added, and one Newton step on the deformed logarithm of S follows. The
threshold stays a lower bound, so a block whose scores all lie 1/e below it is dead for good. Blocks are taken in the order in
which large scores are likely: the first, then from the diagonal back, then the rest.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_range,
    block_scores,
    deformation,
    is_hazard,
    key_range,
    load_rows,
    per_head,
    usable_keys,
)
from entformer.kernels.entmax.triton.maths import INF, RELU, moved, newton_step, weight_and_slope


@triton.jit
def scout(
    p,
    row_max,
    threshold,
    live_map,
    counters,
    key_blocks,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    UP: tl.constexpr,
):
    """Writes row_max and threshold, float32 (B, H, Lq), and live_map, uint8 (B, H, query blocks, key blocks), zero before."""
    block = tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    b, h = line // p.heads, line % p.heads
    start = block * BM
    rows = start + tl.arange(0, BM)
    there = rows < p.queries
    hazard = is_hazard(p)
    e, inverse = deformation(p, b, h, MODE)
    low, high, at = key_range(p, rows)
    first, end = block_range(low, high, BN)
    q = load_rows(p.query, b, h, start, there, BM, D, DP, UP)

    top = tl.full([BM], -INF, tl.float32)
    lam = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM], tl.float32)
    slope = tl.zeros([BM], tl.float32)
    if p.sinks is not None:
        top = tl.zeros([BM], tl.float32) + per_head(p.sinks, b, h).to(tl.float32)
        total += 1.0
        slope += 1.0
    broken = tl.zeros([BM], tl.int32)
    map_row = live_map + (line * tl.num_programs(0) + block) * key_blocks
    diagonal = tl.minimum(tl.maximum(tl.max(at, 0) // BN - first, 0), end - first - 1)
    for n in range(0, end - first):
        j = first + tl.where(n == 0, 0, tl.where(n <= diagonal, diagonal + 1 - n, n))
        columns = j * BN + tl.arange(0, BN)
        usable = usable_keys(p, b, columns, low, high)
        k = load_rows(p.key, b, h // p.group, j * BN, usable, BN, D, DP, UP)
        s, _ = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, hazard)
        best = tl.max(s, 1)
        if MODE == RELU:
            top = tl.maximum(top, best)
            alive = tl.max(best, 0) > 0.0
        else:
            new_top = tl.maximum(top, best)
            center = tl.maximum(tl.where(top > -INF, top + lam, -INF), new_top)
            alive = tl.max(tl.where(best > -INF, best - center, -INF), 0) > -inverse
            if alive:
                shift = tl.where(top > -INF, center - (top + lam), 0.0)
                old_total, old_slope = moved(total, slope, e, inverse, shift)
                lam = tl.where(new_top > -INF, center - new_top, 0.0)
                top = new_top
                x = s - tl.where(top > -INF, top, 0.0)[:, None] - lam[:, None]
                weights, slopes = weight_and_slope(x, e, inverse, MODE)
                total = old_total + tl.sum(weights, 1)
                slope = old_slope + tl.sum(slopes, 1)
                bound = (total > 1.0) & (tl.zeros([BM], tl.float32) + e <= 1.0)
                lam += tl.where(bound, newton_step(total, slope, e), 0.0)
                slope = tl.where(bound, slope * tl.exp2((e - 1.0) * tl.log2(tl.maximum(total, 1.0))), slope)
                total = tl.where(bound, 1.0, total)
        if hazard:  # a row with NaN is NaN in every weight
            broken = tl.maximum(broken, tl.max(tl.where(s == s, 0, 1), 1))
            alive = tl.max(tl.max(tl.where(s == -INF, 0, 1), 1), 0) > 0
        tl.store(map_row + j, alive.to(tl.uint8))
    if hazard:
        broken = tl.where((top == INF) | (tl.zeros([BM], tl.float32) + e != e), 1, broken)
        top = tl.where(broken > 0, float("nan"), top)
    tl.store(row_max + line * p.queries + rows, top, mask=there)
    tl.store(threshold + line * p.queries + rows, lam, mask=there)
    if counters is not None:
        tl.store(counters + (line * tl.num_programs(0) + block) * 4, end - first)
