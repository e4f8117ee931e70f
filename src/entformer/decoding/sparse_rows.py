"""Attention weights of one head as compressed sparse rows (CSR), and storing no more than a number of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from entformer.text.numbers import format_number, format_percent

SHOWN_ROWS = 20  # of a head that is printed
SHOWN_KEYS = 6  # of a row that is printed


@dataclass(frozen=True, eq=False, repr=False)
class SparseRows:
    """Attention weights of one head in CSR form: row i has weight[crow[i]:crow[i + 1]] at keys col[crow[i]:crow[i + 1]]."""

    crow: npt.NDArray[np.int64]  # (queries + 1,)
    col: npt.NDArray[np.int32]  # (nnz,)
    weight: npt.NDArray[np.float32]  # (nnz,)
    keys: int

    @classmethod
    def from_dense(cls, weights: npt.NDArray[Any]) -> "SparseRows":
        """Returns the weights (queries, keys) that are not zero; none becomes zero by the change of its dtype."""
        row, col = np.nonzero(weights)
        crow = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=weights.shape[0]))])
        values = np.maximum(weights[row, col].astype(np.float32), np.finfo(np.float32).tiny)
        return cls(crow.astype(np.int64), col.astype(np.int32), values, weights.shape[1])

    @classmethod
    def from_lists(cls, stored: Mapping[str, Any], keys: int) -> "SparseRows":
        """Returns the rows of which JSON holds "crow", "col" and "weight"."""
        types = {"crow": np.int64, "col": np.int32, "weight": np.float32}
        return cls(**{name: np.array(stored[name], dtype) for name, dtype in types.items()}, keys=keys)

    @property
    def queries(self) -> int:
        return len(self.crow) - 1

    def row(self, query: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Returns keys and weights of one query."""
        inside = slice(int(self.crow[query]), int(self.crow[query + 1]))
        return self.col[inside], self.weight[inside]

    def __repr__(self) -> str:
        """Lists the keys of each query with their weights, largest first."""
        cells = self.queries * self.keys
        share = format_percent(len(self.col) / cells if cells else 0.0)
        lines = [f"{self.queries} queries, {self.keys} keys; {len(self.col)} weights are not zero, {share} of all."]
        lines += [f"query {query}: {self._row_text(query)}" for query in range(min(self.queries, SHOWN_ROWS))]
        if self.queries > SHOWN_ROWS:
            lines.append(f"... {self.queries - SHOWN_ROWS} more queries")
        return "\n".join(lines)

    def _row_text(self, query: int) -> str:
        keys, weights = self.row(query)
        order = np.argsort(-weights, kind="stable")
        shown = [f"key {keys[at]} {format_number(float(weights[at]), exact=(0.0, 1.0))}" for at in order[:SHOWN_KEYS]]
        if len(order) > SHOWN_KEYS:
            shown.append(f"{len(order) - SHOWN_KEYS} more")
        return ", ".join(shown) or "no key"

    def dense(self) -> npt.NDArray[np.float32]:
        """Returns the dense weights (queries, keys)."""
        full = np.zeros((self.queries, self.keys), dtype=np.float32)
        full[np.repeat(np.arange(self.queries), np.diff(self.crow)), self.col] = self.weight
        return full


StoredHeads = dict[str, tuple[SparseRows, float | None]]
"""The weights of each head, and the smallest stored weight, None if all are stored."""


def cut_rows(rows: SparseRows, most: int) -> tuple[SparseRows, float]:
    """Returns the weights not below a threshold of two digits, at most `most` of them, and the threshold."""
    least = np.partition(rows.weight, -most)[-most]
    cut = _rounded_up(float(least))
    if np.count_nonzero(rows.weight >= cut) > most:  # many are equal to the cut
        cut = _rounded_up(1.001 * cut)
    kept = rows.weight >= cut
    crow = np.concatenate([[0], np.cumsum(kept)])[rows.crow]
    return SparseRows(crow.astype(np.int64), rows.col[kept], rows.weight[kept], rows.keys), cut


def allocate_heads(heads: Mapping[str, SparseRows], weights: int) -> tuple[StoredHeads, list[str]]:
    """Divides a number of weights among heads, the smallest first. Returns what is stored of each, and the heads omitted."""
    names = list(heads)
    stored: StoredHeads = {}
    for waiting, index in smallest_first([len(heads[name].col) for name in names]):
        name, part = names[index], weights // waiting
        rows = heads[name]
        if len(rows.col) <= part:
            stored[name] = rows, None
        elif part >= rows.queries:
            stored[name] = cut_rows(rows, part)
        else:
            continue
        weights -= len(stored[name][0].col)
    return {name: stored[name] for name in names if name in stored}, [name for name in names if name not in stored]


def smallest_first(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (how many are left including this one, index) in order of size."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return list(zip(range(len(sizes), 0, -1), order, strict=True))


def _rounded_up(value: float) -> float:
    """Rounds up to two significant digits: 0.001234 -> 0.0013."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.1e}")
