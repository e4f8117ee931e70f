"""Gradients of queries, alpha, sinks, biases and slopes; one program per block of queries, over the key blocks with support.

    delta = sum(w dP)/sum(w)    dS = w (dP - delta)    dalpha = sum a (dP - delta)

One pass: delta is a running mean, and what was summed with an older one is moved to the new one, as online softmax does with
its maximum: sum w (dP - new) k = sum w (dP - old) k + (old - new) sum w k. So nothing but row_max and threshold is saved. For
head sizes over 64, whose two sums would not fit into registers, and for the gradient of a bias, which is dS, a second pass
follows. Weights that do not depend on each other have delta = 0.
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
    own_rows,
    pair_pointers,
    per_head,
    row_state,
    store_rows,
    usable_keys,
)
from entformer.kernels.entmax.triton.maths import RELU, alpha_slope, finite_part, weight_and_slope


@triton.jit
def _block(p, q, grad, top, lam, e, inverse, list_row, n, b, h, rows, low, high, at, HAZARD: tl.constexpr, PARTS: tl.constexpr):
    """Returns the columns and keys of the n-th part of the listed key blocks, and what `block_gradients` finds there."""
    j = tl.load(list_row + n // PARTS).to(tl.int32) * PARTS + n % PARTS
    columns = j * p.BN + tl.arange(0, p.BN)
    usable = usable_keys(p, b, columns, low, high)
    k = load_keys(p, b, h // p.group, j, usable)
    v = load_values(p, b, h // p.group, j, usable)
    x, weights, _, slopes, product, capped = block_gradients(
        p, q, k, v, grad, top, lam, e, inverse, b, h, rows, columns, usable, low, high, at, HAZARD
    )
    if HAZARD:
        k = finite_part(k)
    return columns, k, x, weights, slopes, product, capped


@triton.jit
def _blocks(
    p, q, grad, top, lam, grad_bias, list_row, count, b, h, rows, HAZARD: tl.constexpr, ALPHA: tl.constexpr,
    SLOPES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Returns dQ before scaling, delta, and the rows' parts of the gradients of alpha, sink and slope."""
    e, inverse = deformation(p, b, h)
    low, high, at = key_range(p, rows)
    ONE_PASS: tl.constexpr = p.DP <= 64 or p.MODE >= RELU  # two sums of the width of wide heads do not fit into registers
    of_query = tl.zeros([p.BM, p.DP], tl.float32)  # sum dS k
    of_keys = tl.zeros([p.BM, p.DP], tl.float32)  # sum w k
    slope_total = tl.zeros([p.BM], tl.float32)  # sum w
    product_total = tl.zeros([p.BM], tl.float32)  # sum w dP
    of_alpha = tl.zeros([p.BM], tl.float32)  # sum a (dP - delta)
    bend_total = tl.zeros([p.BM], tl.float32)  # sum a
    of_slope = tl.zeros([p.BM], tl.float32)  # sum dS |distance|
    far_total = tl.zeros([p.BM], tl.float32)  # sum w |distance|
    delta = tl.zeros([p.BM], tl.float32)
    if p.sinks is not None:  # a key without a value: its dP is 0
        x = per_head(p.sinks, b, h).to(tl.float32) - top - lam
        sink_weight, sink_slope = weight_and_slope(x, e, inverse, p.MODE)
        slope_total += sink_slope
        if ALPHA:
            bend_total += alpha_slope(x, sink_weight, sink_slope, e, inverse, p.MODE)
    for n in range(0, count * PARTS):
        columns, k, x, weights, slopes, product, capped = _block(
            p, q, grad, top, lam, e, inverse, list_row, n, b, h, rows, low, high, at, HAZARD, PARTS
        )
        if p.MODE < RELU:
            slope_total += tl.sum(slopes, 1)
            product_total += tl.sum(slopes * product, 1)
            new = product_total / tl.where(slope_total == 0.0, 1.0, slope_total)
            shift = delta - new
            if ONE_PASS:
                of_query += shift[:, None] * of_keys
            if ALPHA:
                bends = alpha_slope(x, weights, slopes, e, inverse, p.MODE)
                of_alpha += shift * bend_total + tl.sum(bends * (product - new[:, None]), 1)
                bend_total += tl.sum(bends, 1)
            if SLOPES:
                far = slopes * tl.abs(at[:, None] - columns[None, :]).to(tl.float32)
                of_slope += shift * far_total + tl.sum(far * (product - new[:, None]), 1)
                far_total += tl.sum(far, 1)
            delta = new
            if ONE_PASS:
                of_keys += dot((slopes * capped).to(k.dtype), k)
        elif SLOPES:
            of_slope += tl.sum(slopes * product * tl.abs(at[:, None] - columns[None, :]).to(tl.float32), 1)
        if ONE_PASS:
            of_query += dot((slopes * capped * (product - delta[:, None])).to(k.dtype), k)
    if not ONE_PASS or grad_bias is not None:  # delta is known now, and dS with it
        for n in range(0, count * PARTS):
            columns, k, _, _, slopes, product, capped = _block(
                p, q, grad, top, lam, e, inverse, list_row, n, b, h, rows, low, high, at, HAZARD, PARTS
            )
            found = slopes * (product - delta[:, None])
            if HAZARD:  # delta of a row with NaN is NaN
                found = tl.where(slopes == 0.0, 0.0, found)
            if grad_bias is not None:
                inside = (rows < p.queries)[:, None] & (columns < p.keys)[None, :]
                tl.store(pair_pointers(grad_bias, b, h, rows, columns), found, mask=inside)
            if not ONE_PASS:
                of_query += dot((found * capped).to(k.dtype), k)
    of_sink = tl.zeros([p.BM], tl.float32)
    if p.sinks is not None:
        of_sink -= sink_slope * delta
    return of_query, delta, of_alpha, of_sink, of_slope


@triton.jit
def back_q(
    p, grad_output, row_max, threshold, lists, counts, grad_query, delta, of_alpha, of_sink, of_slope, grad_bias,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Writes dQ, delta (B, H, Lq) and, where not None, sums of each block of queries for alpha, sinks and slopes, and dS.

    A listed key block is read in PARTS of BN keys.
    """
    b, h, line, own, start, rows, there = own_rows(p)
    q = load_queries(p, b, h, start, there)
    grad = load_gradients(p, grad_output, b, h, start, there)
    count = tl.load(counts + own)
    top, lam = row_state(p, row_max, threshold, line, rows, there)
    list_row = lists + own * p.key_blocks
    ALPHA: tl.constexpr = of_alpha is not None
    SLOPES: tl.constexpr = of_slope is not None
    if is_hazard(p):
        found, mean, alpha, sink, slope = _blocks(
            p, q, grad, top, lam, grad_bias, list_row, count, b, h, rows, True, ALPHA, SLOPES, PARTS
        )
    else:
        found, mean, alpha, sink, slope = _blocks(
            p, q, grad, top, lam, grad_bias, list_row, count, b, h, rows, False, ALPHA, SLOPES, PARTS
        )
    store_rows(grad_query, b, h, start, there, found * p.scale, p.BM, p.D, p.DP)
    tl.store(delta + line * p.queries + rows, mean, mask=there)
    if ALPHA:
        tl.store(of_alpha + own, tl.sum(tl.where(there, alpha, 0.0), 0))
    if SLOPES:
        tl.store(of_slope + own, -tl.sum(tl.where(there, slope, 0.0), 0))
    if of_sink is not None:
        tl.store(of_sink + own, tl.sum(tl.where(there, sink, 0.0), 0))
