"""Gradients of queries, alpha, sinks, biases and slopes; one program per block of queries, over the key blocks with support.

    delta = sum(w dP)/sum(w)    dS = w (dP - delta)    dalpha = sum a (dP - delta)

One pass: delta is a running mean, and what was summed with an older one is moved to the new one, as online softmax does with
its maximum: sum w (dP - new) k = sum w (dP - old) k + (old - new) sum w k. So nothing but row_max and threshold is saved. For
head sizes over 64, whose two sums would not fit into registers, and for the gradient of a bias, which is dS, a second pass
follows.
"""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    _pair_pointers,
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
from entformer.kernels.entmax.triton.maths import INF, RELU, alpha_slope, finite_part, weight_and_slope


@triton.jit
def _blocks(
    p, q, grad, top, lam, grad_bias, list_row, count, b, h, start, HAZARD: tl.constexpr, ALPHA: tl.constexpr,
    SLOPES: tl.constexpr, MODE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    E: tl.constexpr, EP: tl.constexpr, UP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Returns dQ before scaling, delta, and the rows' parts of the gradients of alpha, sink and slope."""
    rows = start + tl.arange(0, BM)
    e, inverse = deformation(p, b, h, MODE)
    low, high, at = key_range(p, rows)
    ONE_PASS: tl.constexpr = DP <= 64 or MODE == RELU  # two sums of the width of wide heads do not fit into registers
    of_query = tl.zeros([BM, DP], tl.float32)  # sum dS k
    of_keys = tl.zeros([BM, DP], tl.float32)  # sum w k
    slope_total = tl.zeros([BM], tl.float32)  # sum w
    product_total = tl.zeros([BM], tl.float32)  # sum w dP
    of_alpha = tl.zeros([BM], tl.float32)  # sum a (dP - delta)
    bend_total = tl.zeros([BM], tl.float32)  # sum a
    of_slope = tl.zeros([BM], tl.float32)  # sum dS |distance|
    far_total = tl.zeros([BM], tl.float32)  # sum w |distance|
    delta = tl.zeros([BM], tl.float32)
    if p.sinks is not None:  # a key without a value: its dP is 0
        x = per_head(p.sinks, b, h).to(tl.float32) - top - lam
        sink_weight, sink_slope = weight_and_slope(x, e, inverse, MODE)
        slope_total += sink_slope
        if ALPHA:
            bend_total += alpha_slope(x, sink_weight, sink_slope, e, inverse, MODE)
    for n in range(0, count * PARTS):
        j = tl.load(list_row + n // PARTS).to(tl.int32) * PARTS + n % PARTS
        columns = j * BN + tl.arange(0, BN)
        usable = usable_keys(p, b, columns, low, high)
        k = load_rows(p.key, b, h // p.group, j * BN, usable, BN, D, DP, UP)
        s, capped = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, HAZARD)
        x = s - top[:, None] - lam[:, None]
        weights, slopes = weight_and_slope(x, e, inverse, MODE)
        v = load_rows(p.value, b, h // p.group, j * BN, usable, BN, E, EP, UP)
        product = dot(grad, tl.trans(v))
        if p.seeds is not None:
            product = tl.where(kept_weights(p, b, h, rows, columns), product / (1.0 - p.drop), 0.0)
        if HAZARD:
            slopes = in_broken_rows(slopes, top, s)
            k = finite_part(k)
            product = tl.where(slopes == 0.0, 0.0, product)
        if MODE != RELU:
            slope_total += tl.sum(slopes, 1)
            product_total += tl.sum(slopes * product, 1)
            new = product_total / tl.where(slope_total == 0.0, 1.0, slope_total)
            shift = delta - new
            if ONE_PASS:
                of_query += shift[:, None] * of_keys
            if ALPHA:
                bends = alpha_slope(x, weights, slopes, e, inverse, MODE)
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
            j = tl.load(list_row + n // PARTS).to(tl.int32) * PARTS + n % PARTS
            columns = j * BN + tl.arange(0, BN)
            usable = usable_keys(p, b, columns, low, high)
            k = load_rows(p.key, b, h // p.group, j * BN, usable, BN, D, DP, UP)
            s, capped = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, HAZARD)
            _, slopes = weight_and_slope(s - top[:, None] - lam[:, None], e, inverse, MODE)
            v = load_rows(p.value, b, h // p.group, j * BN, usable, BN, E, EP, UP)
            product = dot(grad, tl.trans(v))
            if p.seeds is not None:
                product = tl.where(kept_weights(p, b, h, rows, columns), product / (1.0 - p.drop), 0.0)
            found = slopes * (product - delta[:, None])
            if HAZARD:
                found = in_broken_rows(tl.where(slopes == 0.0, 0.0, found), top, s)
                k = finite_part(k)
            if grad_bias is not None:
                inside = (rows < p.queries)[:, None] & (columns < p.keys)[None, :]
                tl.store(_pair_pointers(grad_bias, b, h, rows, columns), found, mask=inside)
            if not ONE_PASS:
                of_query += dot((found * capped).to(k.dtype), k)
    of_sink = tl.zeros([BM], tl.float32)
    if p.sinks is not None:
        of_sink -= sink_slope * delta
    return of_query, delta, of_alpha, of_sink, of_slope


@triton.jit
def back_q(
    p,
    grad_output,
    row_max,
    threshold,
    lists,
    counts,
    grad_query,
    delta,
    of_alpha,
    of_sink,
    of_slope,
    grad_bias,
    key_blocks,
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
    """Writes dQ, delta (B, H, Lq) and, where not None, sums of each block of queries for alpha, sinks and slopes, and dS.

    A listed key block is read in PARTS of BN keys.
    """
    block = tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    b, h = line // p.heads, line % p.heads
    start = block * BM
    rows = start + tl.arange(0, BM)
    there = rows < p.queries
    q = load_rows(p.query, b, h, start, there, BM, D, DP, UP)
    grad = load_rows(grad_output, b, h, start, there, BM, E, EP, UP)
    own = line * tl.num_programs(0) + block
    count = tl.load(counts + own)
    top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
    lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0).to(tl.float32)
    if MODE == RELU:
        top = tl.where(top != top, top, 0.0)
        lam = tl.zeros([BM], tl.float32)
    top = tl.where(top == -INF, 0.0, top)
    list_row = lists + own * key_blocks
    ALPHA: tl.constexpr = of_alpha is not None
    SLOPES: tl.constexpr = of_slope is not None
    if is_hazard(p):
        found, mean, alpha, sink, slope = _blocks(
            p,
            q,
            grad,
            top,
            lam,
            grad_bias,
            list_row,
            count,
            b,
            h,
            start,
            True,
            ALPHA,
            SLOPES,
            MODE,
            BM,
            BN,
            D,
            DP,
            E,
            EP,
            UP,
            PARTS,
        )
    else:
        found, mean, alpha, sink, slope = _blocks(
            p,
            q,
            grad,
            top,
            lam,
            grad_bias,
            list_row,
            count,
            b,
            h,
            start,
            False,
            ALPHA,
            SLOPES,
            MODE,
            BM,
            BN,
            D,
            DP,
            E,
            EP,
            UP,
            PARTS,
        )
    store_rows(grad_query, b, h, start, there, found * p.scale, BM, D, DP)
    tl.store(delta + line * p.queries + rows, mean, mask=there)
    if ALPHA:
        tl.store(of_alpha + own, tl.sum(tl.where(there, alpha, 0.0), 0))
    if SLOPES:
        tl.store(of_slope + own, -tl.sum(tl.where(there, slope, 0.0), 0))
    if of_sink is not None:
        tl.store(of_sink + own, tl.sum(tl.where(there, sink, 0.0), 0))
