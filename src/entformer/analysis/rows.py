"""The weights of one attention layer over a batch of sentences, as sparse rows, one per query.

Every measure takes a `LayerRows`. Rows need not sum to one and may be empty (ReLA): measures use normalized weights,

    p_ij = a_ij / sum_k a_ik            undefined for a row of zeros

which are the weights themselves where rows sum to one. Nothing here has size L x L for every head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from entformer.errors import ArgumentError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DENSE_CELLS = 4_000_000  # up to this many cells the heads are added up in a table, beyond it by sorting

Measure = TypeVar("Measure", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Mixture:
    """The sum of the heads where it is not zero: cell c is query `row[c]` = b * Lq + i and key `col[c]`."""

    row: Ints  # (cells,)
    col: Ints  # (cells,)
    value: Floats  # (cells,) of normalized weights: between 0 and H


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Weights of all heads of one layer. Entry e: row `row[e]` = (b * H + h) * Lq + i gives key `col[e]` the `weight[e]`."""

    attn_type: str  # "encoder", "decoder", "cross", or the name that another model has for it
    layer: int
    heads: int
    queries: int  # Lq, padding included
    keys: int  # Lk
    row: Ints  # (nnz,) increasing; no padding
    col: Ints  # (nnz,)
    weight: Floats  # (nnz,) above zero
    query_lengths: Ints  # (B,)
    key_lengths: Ints  # (B,)
    causal: bool = False  # query i sees keys j <= i
    tokens: Ints | None = None  # (B, L) ids of the tokens of self-attention, for measures that compare tokens

    @classmethod
    def from_support(
        cls,
        attn_type: str,
        layer: int,
        support: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
        heads: int,
        queries: int,
        keys: int,
        query_lengths: Ints,
        key_lengths: Ints,
        *,
        causal: bool = False,
        tokens: Ints | None = None,
    ) -> "LayerRows":
        """`support`: crow (B * H * Lq + 1,), col (nnz,), weight (nnz,), rows in order (B, H, Lq). Padding is dropped."""
        crow, col, weight = support
        batch = len(query_lengths)
        counts = np.diff(crow)
        if len(counts) != batch * heads * queries:
            raise ArgumentError(
                f"the support has {len(counts)} rows; expected {batch} sentences x {heads} heads x {queries} queries."
            )
        real = np.arange(queries) < query_lengths[:, None]  # (B, Lq)
        if not real.all():
            every = np.broadcast_to(real[:, None], (batch, heads, queries)).ravel()
            inside = np.repeat(every, counts)
            col, weight, counts = col[inside], weight[inside], np.where(every, counts, 0)
        row = np.repeat(np.arange(len(counts)), counts)
        col, weight = col.astype(np.int64), weight.astype(np.float64)
        if len(weight) and not weight.min() > 0.0:  # also true of NaN
            if not weight.min() >= 0.0:
                raise ArgumentError(f"the weights of {attn_type} layer {layer} contain negative numbers or NaN.")
            inside = weight > 0.0  # the weight was rounded to 0
            row, col, weight = row[inside], col[inside], weight[inside]
        return cls(attn_type, layer, heads, queries, keys, row, col, weight, query_lengths, key_lengths, causal, tokens)

    @classmethod
    def from_dense(
        cls,
        attn_type: str,
        layer: int,
        weights: NDArray[Any],
        query_lengths: Ints | None = None,
        key_lengths: Ints | None = None,
        *,
        causal: bool = False,
    ) -> "LayerRows":
        """Weights (B, H, Lq, Lk) of any model. Lengths (B,) exclude padding; without them there is none."""
        if weights.ndim != 4:
            raise ArgumentError(f"weights must be (batch, heads, queries, keys); these have {weights.ndim} dimensions.")
        batch, heads, queries, keys = weights.shape
        query_lengths = np.full(batch, queries) if query_lengths is None else np.asarray(query_lengths, np.int64)
        key_lengths = np.full(batch, keys) if key_lengths is None else np.asarray(key_lengths, np.int64)
        flat = weights.reshape(-1, keys)
        inside = flat != 0.0
        crow = np.concatenate([[0], np.cumsum(inside.sum(-1))])
        support = crow, inside.nonzero()[1], flat[inside]
        return cls.from_support(attn_type, layer, support, heads, queries, keys, query_lengths, key_lengths, causal=causal)

    @property
    def batch(self) -> int:
        return len(self.query_lengths)

    @cached_property
    def visible(self) -> Ints:
        """How many keys a query may attend to, (B, Lq); 0 for padding."""
        positions = np.arange(self.queries)
        seen = np.broadcast_to(self.key_lengths[:, None], (self.batch, self.queries))
        if self.causal:
            seen = np.minimum(seen, positions + 1)
        return np.where(positions < self.query_lengths[:, None], seen, 0)

    @cached_property
    def real(self) -> Bools:
        """The queries that are not padding and may attend to something, (B, Lq)."""
        return self.visible > 0

    @cached_property
    def count(self) -> Ints:
        """Support size |{j : a_ij > 0}| of each row, (B, H, Lq)."""
        return self.per_row()

    @cached_property
    def mass(self) -> Floats:
        """sum_j a_ij, (B, H, Lq)."""
        return self.per_row(self.weight)

    @cached_property
    def normalized(self) -> Floats:
        """The normalized weight a_ij / sum_k a_ik of each entry, (nnz,)."""
        weights: Floats = self.weight / self.mass.ravel()[self.row]
        return weights

    @cached_property
    def query(self) -> Ints:
        """The query of each entry, (nnz,)."""
        return np.tile(np.arange(self.queries), self.batch * self.heads)[self.row]

    @cached_property
    def head_of_sentence(self) -> Ints:
        """b * H + h of each entry, (nnz,)."""
        return np.repeat(np.arange(self.batch * self.heads), self.queries)[self.row]

    @cached_property
    def sentence_query(self) -> Ints:
        """b * Lq + i of each entry, (nnz,)."""
        queries = np.arange(self.batch * self.queries).reshape(self.batch, 1, self.queries)
        return np.broadcast_to(queries, (self.batch, self.heads, self.queries)).ravel()[self.row]

    def per_row(self, values: Floats | None = None, where: Bools | None = None) -> NDArray[Any]:
        """Sums `values`, one per entry (1 if not given), over each row, where `where` is True: (B, H, Lq)."""
        row = self.row if where is None else self.row[where]
        values = values if where is None or values is None else values[where]
        total = np.bincount(row, values, self.batch * self.heads * self.queries)
        return total.reshape(self.batch, self.heads, self.queries)

    def per_head(self, values: Floats, where: Bools) -> Floats:
        """Sums `values` per sentence and head where `where` is True: (B, H)."""
        total = np.bincount(self.head_of_sentence[where], values[where], self.batch * self.heads)
        return total.reshape(self.batch, self.heads).astype(np.float64)

    @cached_property
    def mixture(self) -> Mixture:
        """The sum of the heads' normalized weights."""
        return self.mixed(self.normalized)

    def mixed(self, values: Floats) -> Mixture:
        """Sums `values` (nnz,), normalized weights or the weights themselves, over the heads."""
        cell = self.sentence_query * self.keys + self.col
        cells = self.batch * self.queries * self.keys
        if cells <= DENSE_CELLS:
            table: Floats = np.bincount(cell, values, cells).astype(np.float64)
            cell = np.flatnonzero(table)
            return Mixture(cell // self.keys, cell % self.keys, table[cell])
        cell, inverse = np.unique(cell, return_inverse=True)
        return Mixture(cell // self.keys, cell % self.keys, np.bincount(inverse, values, len(cell)).astype(np.float64))


def once_per_batch(measure: Measure) -> Measure:
    """Caches what several measures need in the `LayerRows` it was computed from; other arguments must not vary per batch."""

    @wraps(measure)
    def cached(rows: LayerRows, *args: Any) -> Any:
        if measure.__name__ not in rows.__dict__:
            rows.__dict__[measure.__name__] = measure(rows, *args)
        return rows.__dict__[measure.__name__]

    return cast(Measure, cached)
