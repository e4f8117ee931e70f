"""The nonzero weights of all rows in compressed form, one program per block of queries."""

import triton
import triton.language as tl

from entformer.kernels.attention.triton.scores import (
    block_range,
    deformation,
    in_broken_rows,
    is_hazard,
    key_block,
    key_range,
    load_queries,
    own_rows,
    row_state,
)
from entformer.kernels.entmax.triton.maths import weight_and_slope


@triton.jit
def support(p, row_max, threshold, begins, indices, values):
    """Writes the keys and weights of row r from begins[r] up to begins[r + 1], (rows + 1,) int64."""
    b, h, line, _, start, rows, there = own_rows(p)
    hazard = is_hazard(p)
    e, inverse = deformation(p, b, h)
    low, high, at = key_range(p, rows)
    first, end = block_range(p, low, high)
    q = load_queries(p, b, h, start, there)
    top, lam = row_state(p, row_max, threshold, line, rows, there)
    position = tl.load(begins + line * p.queries + rows, mask=there, other=0)
    limit = tl.load(begins + line * p.queries + rows + 1, mask=there, other=0)
    for n in range(0, end - first):
        s, _, _, columns, _ = key_block(p, q, first + n, b, h, rows, low, high, at, hazard)
        weights, _ = weight_and_slope(s - top[:, None] - lam[:, None], e, inverse, p.MODE)
        weights = in_broken_rows(weights, top, s)
        inside = tl.where(weights != 0.0, 1, 0)
        place = position[:, None] + tl.cumsum(inside, 1) - inside
        taken = (inside > 0) & (place < limit[:, None])
        tl.store(indices + place, tl.zeros_like(inside) + columns[None, :], mask=taken)
        tl.store(values + place, weights, mask=taken)
        position += tl.sum(inside, 1)
