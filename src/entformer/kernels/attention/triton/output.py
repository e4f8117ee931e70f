"""The output and the statistics of each row, over live key blocks; notes which of them hold support."""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_scores,
    deformation,
    dot,
    in_broken_rows,
    is_hazard,
    kept_weights,
    key_range,
    load_rows,
    per_head,
    store_rows,
    usable_keys,
)
from entformer.kernels.entmax.triton.maths import INF, LN2, RELU, finite_part, weight_and_slope


@triton.jit
def _blocks(
    p, q, top, lam, list_row, map_row, count, b, h, start, HAZARD: tl.constexpr, STATS: tl.constexpr, MODE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """Returns sums over the live blocks of a block of queries: p v, p, number of nonzero p, -p ln p; and how many were used."""
    rows = start + tl.arange(0, BM)
    e, inverse = deformation(p, b, h, MODE)
    low, high, at = key_range(p, rows)
    out = tl.zeros([BM, EP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    size = tl.zeros([BM], tl.int32)
    entropy = tl.zeros([BM], tl.float32)
    used = 0
    for n in range(0, count):
        j = tl.load(list_row + n).to(tl.int32)
        columns = j * BN + tl.arange(0, BN)
        usable = usable_keys(p, b, columns, low, high)
        k = load_rows(p.key, b, h // p.group, j * BN, usable, BN, D, DP, UP)
        s, _ = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, HAZARD)
        weights, _ = weight_and_slope(s - top[:, None] - lam[:, None], e, inverse, MODE)
        if HAZARD:
            weights = in_broken_rows(weights, top, s)
        inside = weights != 0.0
        count_here = tl.sum(tl.where(inside, 1, 0), 1)
        # Of the block in one piece: Triton 3.7's compiler for sm_100 fails on a maximum of the sums of its rows here.
        held = tl.max(tl.reshape(tl.where(inside, 1, 0), [BM * BN]), 0) > 0
        tl.store(map_row + j, held.to(tl.uint8))
        if held:
            used += 1
            total += tl.sum(weights, 1)
            size += count_here
            if STATS:
                entropy -= tl.sum(weights * tl.log2(tl.where(inside, weights, 1.0)), 1)
            if p.seeds is not None:
                weights = tl.where(kept_weights(p, b, h, rows, columns) | (weights != weights), weights, 0.0)
            v = load_rows(p.value, b, h // p.group, j * BN, usable, BN, E, EP, UP)
            if HAZARD:  # a row that gives weight to a value with NaN is NaN, no other row is
                broken = tl.max(tl.where(tl.abs(v) < INF, 0, 1), 1)
                weights = tl.where((weights != 0.0) & (broken > 0)[None, :], float("nan"), weights)
                v = finite_part(v)
            out += dot(weights.to(v.dtype), v)
    return out, total, size, entropy * LN2, used


@triton.jit
def output(
    p,
    row_max,
    threshold,
    lists,
    counts,
    out,
    exact_threshold,
    size,
    entropy,
    held_map,
    counters,
    key_blocks,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    E: tl.constexpr,
    EP: tl.constexpr,
    UP: tl.constexpr,
):
    """Writes the output, the threshold in float64, support_size, entropy (if not None) and held_map, given as zeros."""
    block = tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    b, h = line // p.heads, line % p.heads
    start = block * BM
    rows = start + tl.arange(0, BM)
    there = rows < p.queries
    q = load_rows(p.query, b, h, start, there, BM, D, DP, UP)
    own = line * tl.num_programs(0) + block
    count = tl.load(counts + own)
    top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
    lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0)
    if MODE == RELU:
        top = tl.where(top != top, top, 0.0)
    top = tl.where(top == -INF, 0.0, top)
    list_row, map_row = lists + own * key_blocks, held_map + own * key_blocks
    STATS: tl.constexpr = entropy is not None
    if is_hazard(p):
        found, total, nonzero, nats, used = _blocks(
            p, q, top, lam, list_row, map_row, count, b, h, start, True, STATS, MODE, BM, BN, D, DP, E, EP, UP
        )
    else:
        found, total, nonzero, nats, used = _blocks(
            p, q, top, lam, list_row, map_row, count, b, h, start, False, STATS, MODE, BM, BN, D, DP, E, EP, UP
        )
    if MODE != RELU:
        e, inverse = deformation(p, b, h, MODE)
        of_keys = total
        if p.sinks is not None:
            of_sink, _ = weight_and_slope(per_head(p.sinks, b, h).to(tl.float32) - top - lam, e, inverse, MODE)
            total += of_sink
        share = 1.0 / tl.where(total == 0.0, 1.0, total)  # rows sum to one, whatever rounding left of that
        found = found * share[:, None]
        nats = nats * share + of_keys * share * tl.log2(tl.where(total == 0.0, 1.0, total)) * LN2
    if p.seeds is not None:
        found = found / (1.0 - p.drop)
    store_rows(out, b, h, start, there, found, BM, E, EP)
    at = line * p.queries + rows
    tl.store(exact_threshold + at, lam.to(tl.float64), mask=there)
    tl.store(size + at, nonzero, mask=there)
    if STATS:
        tl.store(entropy + at, nats, mask=there)
    if counters is not None:
        tl.store(counters + own * 4 + 3, used)
