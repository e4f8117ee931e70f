"""The nonzero weights of all rows in compressed form, one program per block of queries."""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_range,
    block_scores,
    deformation,
    in_broken_rows,
    is_hazard,
    key_range,
    load_rows,
    usable_keys,
)
from entformer.kernels.entmax.triton.maths import INF, RELU, weight_and_slope


@triton.jit
def support(
    p,
    row_max,
    threshold,
    begins,
    indices,
    values,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    UP: tl.constexpr,
):
    """Writes the keys and weights of row r from begins[r] up to begins[r + 1], (rows + 1,) int64."""
    line = tl.program_id(1).to(tl.int64)
    b, h = line // p.heads, line % p.heads
    start = tl.program_id(0) * BM
    rows = start + tl.arange(0, BM)
    there = rows < p.queries
    hazard = is_hazard(p)
    e, inverse = deformation(p, b, h, MODE)
    low, high, at = key_range(p, rows)
    first, end = block_range(low, high, BN)
    q = load_rows(p.query, b, h, start, there, BM, D, DP, UP)
    top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
    lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0).to(tl.float32)
    if MODE == RELU:
        top = tl.where(top != top, top, 0.0)
        lam = tl.zeros([BM], tl.float32)
    top = tl.where(top == -INF, 0.0, top)
    position = tl.load(begins + line * p.queries + rows, mask=there, other=0)
    limit = tl.load(begins + line * p.queries + rows + 1, mask=there, other=0)
    for n in range(0, end - first):
        j = first + n
        columns = j * BN + tl.arange(0, BN)
        usable = usable_keys(p, b, columns, low, high)
        k = load_rows(p.key, b, h // p.group, j * BN, usable, BN, D, DP, UP)
        s, _ = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, hazard)
        weights, _ = weight_and_slope(s - top[:, None] - lam[:, None], e, inverse, MODE)
        weights = in_broken_rows(weights, top, s)
        inside = tl.where(weights != 0.0, 1, 0)
        place = position[:, None] + tl.cumsum(inside, 1) - inside
        taken = (inside > 0) & (place < limit[:, None])
        tl.store(indices + place, tl.zeros_like(inside) + columns[None, :], mask=taken)
        tl.store(values + place, weights, mask=taken)
        position += tl.sum(inside, 1)
