"""The scores of a block of queries and a block of keys, as every pass computes them.

A row may attend to the keys from `low` up to, not including, `high`: the length, causality, a window and packed sequences are
nothing else. What is added to scores or excludes single pairs enters in `block_scores`, and nowhere else.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from entformer.kernels.entmax.triton.maths import (
    ENTMAX15,
    INF,
    LOG2E,
    RELU,
    SOFTMAX,
    SPARSEMAX,
    keep,
    weight_and_slope,
)

EXCLUDED = tl.constexpr(-3.3895313892515355e38)  # arguments.EXCLUDED


class Rows(NamedTuple):
    """A tensor (B, H, L, D) with adjacent elements of D, as pointer and strides."""

    ptr: Any
    batch: Any
    head: Any
    row: Any


class Pairs(NamedTuple):
    """A tensor (B, H, Lq, Lk) as pointer and strides."""

    ptr: Any
    batch: Any
    head: Any
    query: Any
    key: Any


class PerHead(NamedTuple):
    """A tensor (B, H) as pointer and strides."""

    ptr: Any
    batch: Any
    head: Any


class PerKey(NamedTuple):
    """A tensor (B, Lk) as pointer and strides."""

    ptr: Any
    batch: Any
    key: Any


class Packed(NamedTuple):
    """Of each query: where the keys of its sequence begin and end, and the difference of positions there; (Lq,) int32 each."""

    begin: Any
    end: Any
    shift: Any


class Problem(NamedTuple):
    """What is attended by what; all kernels take one. None: not given."""

    query: Rows
    key: Rows
    value: Rows
    alpha: PerHead  # float64
    attn_mask: Pairs | None  # uint8, nonzero = may attend
    key_mask: PerKey | None  # uint8
    bias: Pairs | None
    slopes: PerHead | None
    sinks: PerHead | None
    packed: Packed | None
    hazard: Any  # one float32: not finite if an input or a score may be so
    heads: Any
    group: Any  # query heads per key head
    queries: Any
    keys: Any
    scale: Any
    offset: Any
    left: Any | None  # of the window; None: no bound
    right: Any | None  # 0 if causal
    softcap: Any | None
    sigmoid_bias: Any | None
    seeds: Any | None  # of dropout, int64
    rows_per_seed: Any
    drop: Any  # probability
    query_blocks: Any
    key_blocks: Any
    MODE: Any  # what follows are constants of the kernels: one of maths.py
    BM: Any  # queries per block
    BN: Any  # keys
    D: Any  # head size of queries and keys
    DP: Any  # the power of two that holds it
    E: Any  # of values
    EP: Any
    UP: Any  # whether to compute in float32 what is loaded: the interpreter has no bfloat16 arithmetic


@triton.jit
def own_block(p, blocks):
    """Returns the block of this program, its head among all of a batch, and that of the grid: blocks fastest, one dimension,
    since the others of a CUDA grid end at 65535."""
    program = tl.program_id(0)
    return program % blocks, (program // blocks).to(tl.int64), program.to(tl.int64)


@triton.jit
def own_rows(p):
    """Returns batch entry, head and index of the head of this program, its place in the grid, first query, queries, and which
    of them are there."""
    block, line, own = own_block(p, p.query_blocks)
    start = block * p.BM
    rows = start + tl.arange(0, p.BM)
    return line // p.heads, line % p.heads, line, own, start, rows, rows < p.queries


@triton.jit
def per_head(values, b, h):
    """The value of head h of batch b."""
    return tl.load(values.ptr + b * values.batch + h * values.head)


@triton.jit
def deformation(p, b, h):
    """Returns e = alpha - 1 and 1/e, of head h of batch b."""
    if p.MODE == ENTMAX15:
        e = tl.full((), 0.5, tl.float32)
    elif p.MODE == SPARSEMAX:
        e = tl.full((), 1.0, tl.float32)
    elif p.MODE == SOFTMAX:
        e = tl.full((), 0.0, tl.float32)
    else:
        e = (per_head(p.alpha, b, h) - 1.0).to(tl.float32)
    return e, 1.0 / tl.maximum(e, 1.0e-30)


@triton.jit
def key_range(p, rows):
    """Returns the first key, the end of the keys and the position of each query."""
    there = rows < p.queries
    low = tl.zeros_like(rows)
    high = tl.where(there, p.keys, 0)
    at = rows + p.offset
    if p.packed is not None:
        low = tl.load(p.packed.begin + rows, mask=there, other=0)
        high = tl.load(p.packed.end + rows, mask=there, other=0)
        at = at + tl.load(p.packed.shift + rows, mask=there, other=0)
    if p.left is not None:
        low = tl.maximum(low, at - p.left)
    if p.right is not None:
        high = tl.minimum(high, at + p.right + 1)
    return low, high, at


@triton.jit
def _reach(low, high):
    """Returns the first key that a query of the block may attend to, and the end of them."""
    some = high > low
    return tl.min(tl.where(some, low, 2147483647), 0), tl.max(tl.where(some, high, 0), 0)


@triton.jit
def block_range(p, low, high):
    """Returns the first key block that a block of queries may attend to, and the end of them."""
    first, end = _reach(low, high)
    return tl.minimum(tl.maximum(first, 0), end) // p.BN, tl.cdiv(end, p.BN)


@triton.jit
def usable_keys(p, b, columns, low, high):
    """Which keys any query of the block may attend to; the others are not read: what is masked does not exist."""
    first, end = _reach(low, high)
    usable = (columns >= first) & (columns < end)
    if p.key_mask is not None:
        ptr = p.key_mask.ptr + b * p.key_mask.batch + columns.to(tl.int64) * p.key_mask.key
        usable = usable & (tl.load(ptr, mask=usable, other=0) != 0)
    return usable


@triton.jit
def _row_pointers(tensor, b, h, start, COUNT: tl.constexpr, PAD: tl.constexpr):
    base = tensor.ptr + b * tensor.batch + h * tensor.head + start.to(tl.int64) * tensor.row
    return base + tl.arange(0, COUNT)[:, None] * tensor.row + tl.arange(0, PAD)[None, :]


@triton.jit
def _there(there, SIZE: tl.constexpr, PAD: tl.constexpr):
    if SIZE == PAD:
        return there[:, None]
    else:
        return there[:, None] & (tl.arange(0, PAD) < SIZE)[None, :]


@triton.jit
def _load_rows(p, tensor, b, h, start, there, COUNT: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr):
    """A block (COUNT, PAD) of rows from `start`; 0 where not `there`."""
    block = tl.load(_row_pointers(tensor, b, h, start, COUNT, PAD), mask=_there(there, SIZE, PAD), other=0.0)
    if p.UP:
        block = block.to(tl.float32)
    return block


@triton.jit
def load_queries(p, b, h, start, there):
    """A block of queries (BM, DP)."""
    return _load_rows(p, p.query, b, h, start, there, p.BM, p.D, p.DP)


@triton.jit
def load_gradients(p, gradients, b, h, start, there):
    """A block of gradients of the output (BM, EP)."""
    return _load_rows(p, gradients, b, h, start, there, p.BM, p.E, p.EP)


@triton.jit
def load_keys(p, b, g, j, usable):
    """Block j of the keys of key head g, (BN, DP)."""
    return _load_rows(p, p.key, b, g, j * p.BN, usable, p.BN, p.D, p.DP)


@triton.jit
def load_values(p, b, g, j, usable):
    """Block j of the values of key head g, (BN, EP)."""
    return _load_rows(p, p.value, b, g, j * p.BN, usable, p.BN, p.E, p.EP)


@triton.jit
def store_rows(tensor, b, h, start, there, block, COUNT: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr):
    """Stores a block (COUNT, PAD) of rows from `start` where `there`."""
    pointers = _row_pointers(tensor, b, h, start, COUNT, PAD)
    tl.store(pointers, block.to(tensor.ptr.dtype.element_ty), mask=_there(there, SIZE, PAD))


@triton.jit
def dot(a, b):
    """a b in float32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def pair_pointers(pairs, b, h, rows, columns):
    base = pairs.ptr + b * pairs.batch + h * pairs.head
    return base + rows.to(tl.int64)[:, None] * pairs.query + columns.to(tl.int64)[None, :] * pairs.key


@triton.jit
def block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, hazard):
    """Returns the scores (BM, BN), -inf where a query may not attend, and their derivative by the product (1.0 without cap)."""
    s = dot(q, tl.trans(k)) * p.scale
    slope = 1.0
    if p.softcap is not None:
        bounded = 1.0 - 2.0 / (1.0 + tl.exp2(s * (2.0 * LOG2E / p.softcap)))  # tanh
        s = bounded * p.softcap
        slope = 1.0 - bounded * bounded
    allowed = (columns[None, :] >= low[:, None]) & (columns[None, :] < high[:, None]) & usable[None, :]
    if p.attn_mask is not None:
        allowed = allowed & (tl.load(pair_pointers(p.attn_mask, b, h, rows, columns), mask=allowed, other=0) != 0)
    if p.bias is not None:
        bias = tl.load(pair_pointers(p.bias, b, h, rows, columns), mask=allowed, other=0.0).to(tl.float32)
        allowed = allowed & ((bias <= EXCLUDED) == 0)
        s = s + bias
    if p.slopes is not None:
        distance = tl.abs(at[:, None] - columns[None, :]).to(tl.float32)
        s = s - per_head(p.slopes, b, h) * distance
    if hazard:  # a query or key that is not finite has NaN for scores, and so has an overflow
        broken_query = tl.max(tl.where(tl.abs(q) < INF, 0, 1), 1)
        broken_key = tl.max(tl.where(tl.abs(k) < INF, 0, 1), 1)
        broken = (broken_query[:, None] + broken_key[None, :] > 0) | (s == INF)
        s = tl.where(broken, float("nan"), s)
    return tl.where(allowed, s, -INF), slope


@triton.jit
def key_block(p, q, j, b, h, rows, low, high, at, hazard):
    """Returns the scores of the queries with key block j, their derivative, the keys, their columns, and which are usable."""
    columns = j * p.BN + tl.arange(0, p.BN)
    usable = usable_keys(p, b, columns, low, high)
    k = load_keys(p, b, h // p.group, j, usable)
    s, slope = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, hazard)
    return s, slope, k, columns, usable


@triton.jit
def row_state(p, row_max, threshold, line, rows, there):
    """Returns what the scores are compared with: row_max, or 0 where there is none, and NaN of a broken row; threshold."""
    top = tl.load(row_max + line * p.queries + rows, mask=there, other=-INF)
    lam = tl.load(threshold + line * p.queries + rows, mask=there, other=0.0).to(tl.float32)
    if p.MODE >= RELU:
        top = tl.where(top != top, top, 0.0)
    return tl.where(top == -INF, 0.0, top), lam


@triton.jit
def in_broken_rows(values, top, s):
    """Weights or slopes, which are NaN wherever a row whose maximum is NaN may attend, and 0 elsewhere in it."""
    return tl.where((top != top)[:, None], tl.where(s == -INF, 0.0, float("nan")), values)


@triton.jit
def is_hazard(p):
    """Whether something may not be finite; the same for all programs."""
    return (tl.abs(tl.load(p.hazard)) < INF) == 0


@triton.jit
def kept_weights(p, b, h, rows, columns):
    """The dropout mask of a block."""
    row = (b * p.heads + h) * p.queries + rows.to(tl.int64)
    seed = tl.load(p.seeds + (b * p.heads + h) * p.queries // p.rows_per_seed)
    position = (row % p.rows_per_seed)[:, None] * p.keys + columns.to(tl.int64)[None, :]
    return keep(seed, position, p.drop)


@triton.jit
def block_gradients(
    p, q, k, v, grad, top, lam, e, inverse, b, h, rows, columns, usable, low, high, at, HAZARD: tl.constexpr
):  # fmt: skip
    """Returns x = s - c, weights, weights after dropout, slopes, dP, and the scores' derivative by the product; of a block."""
    s, capped = block_scores(p, q, k, b, h, rows, columns, usable, low, high, at, HAZARD)
    x = s - top[:, None] - lam[:, None]
    weights, slopes = weight_and_slope(x, e, inverse, p.MODE)
    product = dot(grad, tl.trans(v))
    if HAZARD:
        weights = in_broken_rows(weights, top, s)
        slopes = in_broken_rows(slopes, top, s)
        product = tl.where(slopes == 0.0, 0.0, product)
    used = weights
    if p.seeds is not None:
        kept = kept_weights(p, b, h, rows, columns)
        product = tl.where(kept, product / (1.0 - p.drop), 0.0)
        used = tl.where(kept, weights / (1.0 - p.drop), 0.0)
    return x, weights, used, slopes, product, capped
