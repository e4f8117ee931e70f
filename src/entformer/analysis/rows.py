"""The weights of one attention layer over a batch of sentences. In: a support, or weights of any source. Out: `LayerRows`.

Every measure takes a `LayerRows`. Rows need not sum to one and may be empty (ReLA): `share` is what a key has of its row,

    share_ij = a_ij / sum_k a_ik            a row without weight has no shares

and equals the weight where rows sum to one. Nothing here has size L x L for every head; only the mean of the heads is looked
at key by key, and that sparsely too.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entformer.errors import ArgumentError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DENSE_CELLS = 4_000_000  # up to this many cells the heads are added up in a table, beyond it by sorting


@dataclass(frozen=True, eq=False)
class Mixture:
    """Sum over the heads of what keys get, where it is not zero: cell c is query `row[c]` = b * Lq + i and key `col[c]`."""

    row: Ints  # (cells,)
    col: Ints  # (cells,)
    value: Floats  # (cells,) of shares: between 0 and H


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Weights of all heads of one layer. Entry e: row `row[e]` = (b * H + h) * Lq + i gives key `col[e]` the `weight[e]`."""

    kind: str  # "encoder", "decoder", "cross", or any name a model outside ours has for it
    layer: int
    heads: int
    queries: int  # Lq, padding included
    keys: int  # Lk
    row: Ints  # (nnz,) rising; no padding
    col: Ints  # (nnz,)
    weight: Floats  # (nnz,) above zero
    query_lengths: Ints  # (B,)
    key_lengths: Ints  # (B,)
    causal: bool = False  # query i sees keys j <= i

    @classmethod
    def from_support(
        cls,
        kind: str,
        layer: int,
        support: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
        heads: int,
        queries: int,
        keys: int,
        query_lengths: Ints,
        key_lengths: Ints,
        *,
        causal: bool = False,
    ) -> "LayerRows":
        """`support`: crow (B * H * Lq + 1,), col (nnz,), weight (nnz,), rows in order (B, H, Lq). Padding is left out."""
        crow, col, weight = support
        batch = len(query_lengths)
        counts = np.diff(crow)
        if len(counts) != batch * heads * queries:
            raise ArgumentError(
                f"the support has {len(counts)} rows, and {batch} sentences x {heads} heads x {queries} queries are told."
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
                raise ArgumentError(f"the weights of {kind} layer {layer} hold negative numbers or NaN.")
            inside = weight > 0.0  # a weight that was rounded to 0 is none
            row, col, weight = row[inside], col[inside], weight[inside]
        return cls(kind, layer, heads, queries, keys, row, col, weight, query_lengths, key_lengths, causal)

    @classmethod
    def from_dense(
        cls,
        kind: str,
        layer: int,
        weights: NDArray[Any],
        query_lengths: Ints | None = None,
        key_lengths: Ints | None = None,
        *,
        causal: bool = False,
    ) -> "LayerRows":
        """Weights (B, H, Lq, Lk) of any model. Lengths (B,) say where padding begins; without them there is none."""
        if weights.ndim != 4:
            raise ArgumentError(f"weights must be (batch, heads, queries, keys); these have {weights.ndim} dimensions.")
        batch, heads, queries, keys = weights.shape
        query_lengths = np.full(batch, queries) if query_lengths is None else np.asarray(query_lengths, np.int64)
        key_lengths = np.full(batch, keys) if key_lengths is None else np.asarray(key_lengths, np.int64)
        flat = weights.reshape(-1, keys)
        inside = flat != 0.0
        crow = np.concatenate([[0], np.cumsum(inside.sum(-1))])
        support = crow, inside.nonzero()[1], flat[inside]
        return cls.from_support(kind, layer, support, heads, queries, keys, query_lengths, key_lengths, causal=causal)

    @property
    def batch(self) -> int:
        return len(self.query_lengths)

    @cached_property
    def visible(self) -> Ints:
        """How many keys a query may attend to, (B, Lq); 0 for padding."""
        places = np.arange(self.queries)
        seen = np.broadcast_to(self.key_lengths[:, None], (self.batch, self.queries))
        if self.causal:
            seen = np.minimum(seen, places + 1)
        return np.where(places < self.query_lengths[:, None], seen, 0)

    @cached_property
    def real(self) -> Bools:
        """The queries that are not padding and may attend to something, (B, Lq)."""
        return self.visible > 0

    @cached_property
    def count(self) -> Ints:
        """Support size |{j : a_ij > 0}| of each row, (B, H, Lq)."""
        counts: Ints = self.per_row()
        return counts

    @cached_property
    def mass(self) -> Floats:
        """sum_j a_ij, (B, H, Lq)."""
        masses: Floats = self.per_row(self.weight)
        return masses

    @cached_property
    def share(self) -> Floats:
        """a_ij / sum_k a_ik of each entry, (nnz,)."""
        shares: Floats = self.weight / self.mass.ravel()[self.row]
        return shares

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
        places = np.arange(self.batch * self.queries).reshape(self.batch, 1, self.queries)
        return np.broadcast_to(places, (self.batch, self.heads, self.queries)).ravel()[self.row]

    def per_row(self, values: Floats | None = None, where: Bools | None = None) -> Any:
        """Sum over each row of `values`, one per entry (1 if not given), of the entries `where` says: (B, H, Lq)."""
        row = self.row if where is None else self.row[where]
        values = values if where is None or values is None else values[where]
        total = np.bincount(row, values, self.batch * self.heads * self.queries)
        return total.reshape(self.batch, self.heads, self.queries)

    def per_head(self, values: Floats, where: Bools) -> Floats:
        """Sum of `values` over the entries `where` says, per sentence and head: (B, H)."""
        total = np.bincount(self.head_of_sentence[where], values[where], self.batch * self.heads)
        return total.reshape(self.batch, self.heads).astype(np.float64)

    @cached_property
    def mixture(self) -> Mixture:
        """The shares of all heads added up."""
        return self.mixed(self.share)

    def mixed(self, values: Floats) -> Mixture:
        """`values` (nnz,), one per entry, added up over the heads: shares, or the weights themselves."""
        cell = self.sentence_query * self.keys + self.col
        cells = self.batch * self.queries * self.keys
        if cells <= DENSE_CELLS:
            table: Floats = np.bincount(cell, values, cells).astype(np.float64)
            place = np.flatnonzero(table)
            return Mixture(place // self.keys, place % self.keys, table[place])
        place, inverse = np.unique(cell, return_inverse=True)
        return Mixture(place // self.keys, place % self.keys, np.bincount(inverse, values, len(place)).astype(np.float64))
