"""Gradients of keys and values; one program per key block, over the query blocks whose queries give it weight.

The heads that share a key head are summed by the one program that owns it, in order: no atomics, the same sums every time.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_gradients,
    deformation,
    dot,
    is_hazard,
    key_range,
    load_gradients,
    load_keys,
    load_queries,
    load_values,
    own_block,
    row_state,
    store_rows,
    usable_keys,
)
from entformer.kernels.entmax.triton.maths import finite_part


@triton.jit
def _blocks(
    p, grad_output, row_max, threshold, delta, lists, counts, b, g, block, HAZARD: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Returns dK before scaling, and dV, of one key block."""
    columns = block * p.BN + tl.arange(0, p.BN)
    everything = tl.zeros([1], tl.int32)
    usable = usable_keys(p, b, columns, everything, everything + p.keys)
    k = load_keys(p, b, g, block, usable)
    v = load_values(p, b, g, block, usable)
    of_key = tl.zeros([p.BN, p.DP], tl.float32)
    of_value = tl.zeros([p.BN, p.EP], tl.float32)
    for member in range(0, p.group):
        h = g * p.group + member
        line = b * p.heads + h
        e, inverse = deformation(p, b, h)
        own = line * p.key_blocks + block
        count = tl.load(counts + own)
        for n in range(0, count * PARTS):
            i = tl.load(lists + own * p.query_blocks + n // PARTS).to(tl.int32) * PARTS + n % PARTS
            start = i * p.BM
            rows = start + tl.arange(0, p.BM)
            there = rows < p.queries
            low, high, at = key_range(p, rows)
            q = load_queries(p, b, h, start, there)
            grad = load_gradients(p, grad_output, b, h, start, there)
            top, lam = row_state(p, row_max, threshold, line, rows, there)
            mean = tl.load(delta + line * p.queries + rows, mask=there, other=0.0)
            _, _, used, slopes, product, capped = block_gradients(
                p, q, k, v, grad, top, lam, e, inverse, b, h, rows, columns, usable, low, high, at, HAZARD
            )
            of_value += dot(tl.trans(used).to(grad.dtype), grad)
            found = slopes * capped * (product - mean[:, None])
            if HAZARD:  # the mean of a row with NaN is NaN
                found = tl.where(slopes == 0.0, 0.0, found)
                q = finite_part(q)
            of_key += dot(tl.trans(found).to(q.dtype), q)
    return of_key, of_value


@triton.jit
def back_kv(p, grad_output, row_max, threshold, delta, lists, counts, grad_key, grad_value, PARTS: tl.constexpr):
    """Writes dK and dV; `lists` holds the query blocks of each key block of each query head, read in PARTS of BM queries."""
    block, line, _ = own_block(p, p.key_blocks)
    key_heads = p.heads // p.group
    b, g = line // key_heads, line % key_heads
    if is_hazard(p):
        of_key, of_value = _blocks(p, grad_output, row_max, threshold, delta, lists, counts, b, g, block, True, PARTS)
    else:
        of_key, of_value = _blocks(p, grad_output, row_max, threshold, delta, lists, counts, b, g, block, False, PARTS)
    there = block * p.BN + tl.arange(0, p.BN) < p.keys
    store_rows(grad_key, b, g, block * p.BN, there, of_key * p.scale, p.BN, p.D, p.DP)
    store_rows(grad_value, b, g, block * p.BN, there, of_value, p.BN, p.E, p.EP)
