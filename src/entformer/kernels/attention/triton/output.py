"""The output and the statistics of each row, over live key blocks; notes which of them hold support."""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    deformation,
    dot,
    in_broken_rows,
    is_hazard,
    kept_weights,
    key_block,
    key_range,
    load_queries,
    load_values,
    own_rows,
    per_head,
    row_state,
    store_rows,
)
from entformer.kernels.entmax.triton.maths import INF, LN2, RELU, finite_part, weight_and_slope


@triton.jit
def _blocks(p, q, top, lam, list_row, map_row, count, b, h, rows, HAZARD: tl.constexpr, STATS: tl.constexpr):
    """Returns sums over the live blocks of a block of queries: p v, p, number of nonzero p, -p ln p; and how many were used."""
    e, inverse = deformation(p, b, h)
    low, high, at = key_range(p, rows)
    out = tl.zeros([p.BM, p.EP], tl.float32)
    total = tl.zeros([p.BM], tl.float32)
    size = tl.zeros([p.BM], tl.int32)
    entropy = tl.zeros([p.BM], tl.float32)
    used = 0
    for n in range(0, count):
        j = tl.load(list_row + n).to(tl.int32)
        s, _, _, columns, usable = key_block(p, q, j, b, h, rows, low, high, at, HAZARD)
        weights, _ = weight_and_slope(s - top[:, None] - lam[:, None], e, inverse, p.MODE)
        if HAZARD:
            weights = in_broken_rows(weights, top, s)
        inside = weights != 0.0
        count_here = tl.sum(tl.where(inside, 1, 0), 1)
        # Of the block in one piece: Triton 3.7's compiler for sm_100 fails on a maximum of the sums of its rows here.
        held = tl.max(tl.reshape(tl.where(inside, 1, 0), [p.BM * p.BN]), 0) > 0
        tl.store(map_row + j, held.to(tl.uint8))
        if held:
            used += 1
            total += tl.sum(weights, 1)
            size += count_here
            if STATS:
                entropy -= tl.sum(weights * tl.log2(tl.where(inside, weights, 1.0)), 1)
            if p.seeds is not None:
                weights = tl.where(kept_weights(p, b, h, rows, columns) | (weights != weights), weights, 0.0)
            v = load_values(p, b, h // p.group, j, usable)
            if HAZARD:  # a row that gives weight to a value with NaN is NaN, no other row is
                broken = tl.max(tl.where(tl.abs(v) < INF, 0, 1), 1)
                weights = tl.where((weights != 0.0) & (broken > 0)[None, :], float("nan"), weights)
                v = finite_part(v)
            out += dot(weights.to(v.dtype), v)
    return out, total, size, entropy * LN2, used


@triton.jit
def output(p, row_max, threshold, lists, counts, out, exact_threshold, size, entropy, held_map, counters):
    """Writes the output, the threshold in float64, support_size, entropy (if not None) and held_map, given as zeros."""
    b, h, line, own, start, rows, there = own_rows(p)
    q = load_queries(p, b, h, start, there)
    count = tl.load(counts + own)
    top, lam = row_state(p, row_max, threshold, line, rows, there)
    list_row, map_row = lists + own * p.key_blocks, held_map + own * p.key_blocks
    STATS: tl.constexpr = entropy is not None
    if is_hazard(p):
        found, total, nonzero, nats, used = _blocks(p, q, top, lam, list_row, map_row, count, b, h, rows, True, STATS)
    else:
        found, total, nonzero, nats, used = _blocks(p, q, top, lam, list_row, map_row, count, b, h, rows, False, STATS)
    if p.MODE < RELU:
        of_keys = total
        if p.sinks is not None:
            e, inverse = deformation(p, b, h)
            of_sink, _ = weight_and_slope(per_head(p.sinks, b, h).to(tl.float32) - top - lam, e, inverse, p.MODE)
            total += of_sink
        share = 1.0 / tl.where(total == 0.0, 1.0, total)  # rows sum to one, whatever rounding left of that
        found = found * share[:, None]
        nats = nats * share + of_keys * share * tl.log2(tl.where(total == 0.0, 1.0, total)) * LN2
    if p.seeds is not None:
        found = found / (1.0 - p.drop)
    store_rows(out, b, h, start, there, found, p.BM, p.E, p.EP)
    at = line * p.queries + rows
    tl.store(exact_threshold + at, lam.to(tl.float64), mask=there)
    tl.store(size + at, nonzero, mask=there)
    if STATS:
        tl.store(entropy + at, nats, mask=there)
    if counters is not None:
        tl.store(counters + own * 4 + 3, used)
