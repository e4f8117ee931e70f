"""The one pass over all keys: row maxima, lower bounds of the thresholds, and which key blocks may hold support.

A generalized online softmax. Of each row it keeps (row_max, threshold, S, W) for the keys seen so far. For a block the
threshold moves up to the new maximum, the old sums follow the tangent of S^e, which is below it for e <= 1 (at e = 0 it is
FlashAttention's rescaling, exactly), the block is added, and one Newton step on the deformed logarithm of S follows. The
threshold stays a lower bound, so a block whose scores all lie 1/e below it is dead for good. Blocks are taken in the order in
which large scores are likely: the first, then from the diagonal back, then the rest.

Weights that do not depend on each other need no threshold; that of "sigmoid" is the logarithm of the number of keys.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_range,
    deformation,
    is_hazard,
    key_block,
    key_range,
    load_queries,
    own_rows,
    per_head,
)
from entformer.kernels.entmax.triton.maths import INF, LN2, RELU, SIGMOID, moved, newton_step, weight_and_slope


@triton.jit
def scout(p, row_max, threshold, live_map, counters):
    """Writes row_max and threshold, float32 (B, H, Lq), and live_map, uint8 (B, H, query blocks, key blocks), zero before."""
    b, h, line, own, start, rows, there = own_rows(p)
    hazard = is_hazard(p)
    e, inverse = deformation(p, b, h)
    low, high, at = key_range(p, rows)
    first, end = block_range(p, low, high)
    q = load_queries(p, b, h, start, there)

    top = tl.full([p.BM], -INF, tl.float32)
    lam = tl.zeros([p.BM], tl.float32)
    total = tl.zeros([p.BM], tl.float32)  # of sigmoid: the number of keys
    slope = tl.zeros([p.BM], tl.float32)
    if p.sinks is not None:
        top = tl.zeros([p.BM], tl.float32) + per_head(p.sinks, b, h).to(tl.float32)
        total += 1.0
        slope += 1.0
    broken = tl.zeros([p.BM], tl.int32)
    map_row = live_map + own * p.key_blocks
    diagonal = tl.minimum(tl.maximum(tl.max(at, 0) // p.BN - first, 0), end - first - 1)
    for n in range(0, end - first):
        j = first + tl.where(n == 0, 0, tl.where(n <= diagonal, diagonal + 1 - n, n))
        s, _, _, _, _ = key_block(p, q, j, b, h, rows, low, high, at, hazard)
        best = tl.max(s, 1)
        if p.MODE >= RELU:
            top = tl.maximum(top, best)
            if p.MODE == SIGMOID:
                total += tl.sum(tl.where(s == -INF, 0.0, 1.0), 1)
                alive = tl.max(best, 0) > -INF
            else:
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
                weights, slopes = weight_and_slope(x, e, inverse, p.MODE)
                total = old_total + tl.sum(weights, 1)
                slope = old_slope + tl.sum(slopes, 1)
                bound = (total > 1.0) & (tl.zeros([p.BM], tl.float32) + e <= 1.0)
                lam += tl.where(bound, newton_step(total, slope, e), 0.0)
                slope = tl.where(bound, slope * tl.exp2((e - 1.0) * tl.log2(tl.maximum(total, 1.0))), slope)
                total = tl.where(bound, 1.0, total)
        if hazard:  # a row with NaN is NaN in every weight
            broken = tl.maximum(broken, tl.max(tl.where(s == s, 0, 1), 1))
            alive = tl.max(tl.max(tl.where(s == -INF, 0, 1), 1), 0) > 0
        tl.store(map_row + j, alive.to(tl.uint8))
    if hazard:
        broken = tl.where((top == INF) | (tl.zeros([p.BM], tl.float32) + e != e), 1, broken)
        top = tl.where(broken > 0, float("nan"), top)
    if p.MODE == SIGMOID:
        lam = tl.log2(tl.maximum(total, 1.0)) * LN2
        if p.sigmoid_bias is not None:
            lam = tl.zeros([p.BM], tl.float32) - p.sigmoid_bias
    tl.store(row_max + line * p.queries + rows, top, mask=there)
    tl.store(threshold + line * p.queries + rows, lam, mask=there)
    if counters is not None:
        tl.store(counters + own * 4, end - first)
