"""Gradients of keys and values; one program per key block, over the query blocks whose queries give it weight.

The heads that share a key head are summed by the one program that owns it, in order: no atomics, the same sums every time.
"""

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
    store_rows,
    usable_keys,
)
from entformer.kernels.entmax.triton.maths import INF, RELU, finite_part, weight_and_slope


@triton.jit
def _blocks(
    p, grad_output, row_max, threshold, delta, lists, counts, b, g, block, query_blocks, HAZARD: tl.constexpr,
    MODE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr,
    EP: tl.constexpr, UP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Returns dK before scaling, and dV, of one key block."""
    columns = block * BN + tl.arange(0, BN)
    everything = tl.zeros([1], tl.int32)
    usable = usable_keys(p, b, columns, everything, everything + p.keys)
    k = load_rows(p.key, b, g, block * BN, usable, BN, D, DP, UP)
    v = load_rows(p.value, b, g, block * BN, usable, BN, E, EP, UP)
    of_key = tl.zeros([BN, DP], tl.float32)
    of_value = tl.zeros([BN, EP], tl.float32)
    for member in range(0, p.group):
        h = g * p.group + member
        line = b * p.heads + h
        e, inverse = deformation(p, b, h, MODE)
        own = line * tl.num_programs(0) + block
        count = tl.load(counts + own)
        for n in range(0, count * PARTS):
            i = tl.load(lists + own * query_blocks + n // PARTS).to(tl.int32) * PARTS + n % PARTS
            start = i * BM
            rows = start + tl.arange(0, BM)
            there = rows < p.queries
            low, high, at = key_range(p, rows)
            q = load_rows(p.query, b, h, start, there, BM, D, DP, UP)
            grad = load_rows(grad_output, b, h, start, there, BM, E, EP, UP)
            top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
            lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0).to(tl.float32)
            mean = tl.load(delta + line * p.queries + rows, mask=there, other=0.0)
            if MODE == RELU:
                top = tl.where(top != top, top, 0.0)
                lam = tl.zeros([BM], tl.float32)
            top = tl.where(top == -INF, 0.0, top)
            s, capped = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, HAZARD)
            weights, slopes = weight_and_slope(s - top[:, None] - lam[:, None], e, inverse, MODE)
            product = dot(grad, tl.trans(v))
            if HAZARD:
                weights = in_broken_rows(weights, top, s)
                slopes = in_broken_rows(slopes, top, s)
                product = tl.where(slopes == 0.0, 0.0, product)
                q = finite_part(q)
            if p.seeds is not None:
                kept = kept_weights(p, b, h, rows, columns)
                product = tl.where(kept, product / (1.0 - p.drop), 0.0)
                weights = tl.where(kept, weights / (1.0 - p.drop), 0.0)
            of_value += dot(tl.trans(weights).to(grad.dtype), grad)
            found = slopes * capped * (product - mean[:, None])
            if HAZARD:  # the mean of a row with NaN is NaN
                found = tl.where(slopes == 0.0, 0.0, found)
            of_key += dot(tl.trans(found).to(q.dtype), q)
    return of_key, of_value


@triton.jit
def back_kv(
    p,
    grad_output,
    row_max,
    threshold,
    delta,
    lists,
    counts,
    grad_key,
    grad_value,
    query_blocks,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    E: tl.constexpr,
    EP: tl.constexpr,
    UP: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Writes dK and dV; `lists` holds the query blocks of each key block of each query head, read in PARTS of BM queries."""
    block = tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    key_heads = p.heads // p.group
    b, g = line // key_heads, line % key_heads
    if is_hazard(p):
        of_key, of_value = _blocks(
            p, grad_output, row_max, threshold, delta, lists, counts, b, g, block, query_blocks, True, MODE, BM, BN, D, DP, E,
            EP, UP, PARTS,
        )  # fmt: skip
    else:
        of_key, of_value = _blocks(
            p, grad_output, row_max, threshold, delta, lists, counts, b, g, block, query_blocks, False, MODE, BM, BN, D, DP, E,
            EP, UP, PARTS,
        )  # fmt: skip
    there = block * BN + tl.arange(0, BN) < p.keys
    store_rows(grad_key, b, g, block * BN, there, of_key * p.scale, BN, D, DP)
    store_rows(grad_value, b, g, block * BN, there, of_value, BN, E, EP)
