"""The scores of a block of queries and a block of keys, as every pass computes them.

A row may attend to the keys from `low` up to, not including, `high`: the length, causality, a window and packed sequences are
nothing else. What is added to scores or excludes single pairs enters in `block_scores`, and nowhere else.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from entformer.kernels.entmax.triton.maths import INF, LOG2E, keep

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
    seeds: Any | None  # of dropout, int64
    rows_per_seed: Any
    drop: Any  # probability


@triton.jit
def per_head(values, b, h):
    """The value of head h of batch b."""
    return tl.load(values.ptr + b * values.batch + h * values.head)


@triton.jit
def deformation(p, b, h, MODE: tl.constexpr):
    """Returns e = alpha - 1 and 1/e, of head h of batch b."""
    if MODE == 1:
        e = tl.full((), 0.5, tl.float32)
    elif MODE == 2:
        e = tl.full((), 1.0, tl.float32)
    elif MODE == 3:
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
def block_range(low, high, BN: tl.constexpr):
    """Returns the first key block that a block of queries may attend to, and the end of them."""
    some = high > low
    first = tl.maximum(tl.min(tl.where(some, low, 2147483647), 0), 0)
    end = tl.max(tl.where(some, high, 0), 0)
    return tl.minimum(first, end) // BN, tl.cdiv(end, BN)


@triton.jit
def usable_keys(p, b, columns, low, high):
    """Which keys any query of the block may attend to; the others are not read: what is masked does not exist."""
    some = high > low
    first = tl.min(tl.where(some, low, 2147483647), 0)
    usable = (columns >= first) & (columns < tl.max(tl.where(some, high, 0), 0))
    if p.key_mask is not None:
        ptr = p.key_mask.ptr + b * p.key_mask.batch + columns.to(tl.int64) * p.key_mask.key
        usable = usable & (tl.load(ptr, mask=usable, other=0) != 0)
    return usable


@triton.jit
def load_rows(tensor, b, h, start, there, COUNT: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr, UP: tl.constexpr):
    """A block (COUNT, PAD) of rows from `start`; 0 where not `there`."""
    columns = tl.arange(0, PAD)
    base = tensor.ptr + b * tensor.batch + h * tensor.head + start.to(tl.int64) * tensor.row
    ptr = base + tl.arange(0, COUNT)[:, None] * tensor.row + columns[None, :]
    if SIZE == PAD:
        block = tl.load(ptr, mask=there[:, None], other=0.0)
    else:
        block = tl.load(ptr, mask=there[:, None] & (columns < SIZE)[None, :], other=0.0)
    if UP:  # the interpreter has no bfloat16 arithmetic
        block = block.to(tl.float32)
    return block


@triton.jit
def store_rows(tensor, b, h, start, there, block, COUNT: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr):
    """Stores a block (COUNT, PAD) of rows from `start` where `there`."""
    columns = tl.arange(0, PAD)
    base = tensor.ptr + b * tensor.batch + h * tensor.head + start.to(tl.int64) * tensor.row
    ptr = base + tl.arange(0, COUNT)[:, None] * tensor.row + columns[None, :]
    tl.store(ptr, block.to(tensor.ptr.dtype.element_ty), mask=there[:, None] & (columns < SIZE)[None, :])


@triton.jit
def dot(a, b):
    """a b in float32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _pair_pointers(pairs, b, h, rows, columns):
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
        allowed = allowed & (tl.load(_pair_pointers(p.attn_mask, b, h, rows, columns), mask=allowed, other=0) != 0)
    if p.bias is not None:
        bias = tl.load(_pair_pointers(p.bias, b, h, rows, columns), mask=allowed, other=0.0).to(tl.float32)
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
