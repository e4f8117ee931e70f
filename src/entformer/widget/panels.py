"""One panel per layer: its heads as sparse rows, with the names of queries and keys."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from entformer.decoding.sparse_rows import SparseRows
from entformer.errors import ArgumentError
from entformer.widget.tokens import Names, name_tokens

Heads = tuple[SparseRows, ...]


@dataclass(frozen=True, eq=False)
class Panel:
    """The heads of one layer."""

    name: str
    heads: Heads
    queries: Names
    keys: Names
    causal: bool = False  # query i sees the keys up to i
    alphas: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Reading:
    """How to read the weights: the arguments of `show` that are not the weights."""

    tokens: Names | None
    key_tokens: Names | None
    is_causal: bool | None
    key_mask: NDArray[np.bool_] | None
    batch: int | None  # None: not given

    @property
    def sequence(self) -> int:
        """The sequence to show: the first, if none was given."""
        return self.batch or 0


def make_panel(name: str, heads: Heads, how: Reading) -> Panel:
    """Returns the panel of one layer, without the tokens that `key_mask` excludes."""
    queries, keys = name_tokens(heads[0].queries, heads[0].keys, how.tokens, how.key_tokens)
    if how.is_causal and heads[0].queries != heads[0].keys:
        raise ArgumentError(
            f"is_causal=True needs as many queries as keys, but {name} has {heads[0].queries} queries and {heads[0].keys} keys."
        )
    panel = Panel(name, heads, queries, keys, _is_causal(heads) if how.is_causal is None else how.is_causal)
    if panel.causal and not _is_causal(heads):
        raise ArgumentError(f"is_causal=True, but {name} has weights on keys after the query.")
    return panel if how.key_mask is None else _without_padding(panel, how.key_mask)


def _is_causal(heads: Heads) -> bool:
    """Tells whether no head looks ahead. Two tokens are needed to tell."""
    if heads[0].queries != heads[0].keys or heads[0].queries < 2:
        return False
    return all((rows.col <= np.repeat(np.arange(rows.queries), np.diff(rows.crow))).all() for rows in heads)


def _without_padding(panel: Panel, mask: NDArray[np.bool_]) -> Panel:
    """Leaves masked tokens out, as keys and, in self-attention, as queries."""
    if len(mask) != len(panel.keys):
        raise ArgumentError(f"key_mask has {len(mask)} entries, but {panel.name} has {len(panel.keys)} keys.")
    if not mask.any():
        raise ArgumentError(f"every key of {panel.name} is masked in this sequence; choose another one with batch=.")
    rows = mask if len(panel.queries) == len(panel.keys) else np.ones(len(panel.queries), np.bool_)
    heads = []
    for head in panel.heads:
        dense = head.dense()
        if dense[rows][:, ~mask].any():
            raise ArgumentError(f"key_mask excludes keys that have weight in {panel.name}; True = may be attended to.")
        heads.append(SparseRows.from_dense(dense[rows][:, mask]))
    queries = tuple(name for name, seen in zip(panel.queries, rows, strict=True) if seen)
    keys = tuple(name for name, seen in zip(panel.keys, mask, strict=True) if seen)
    return replace(panel, heads=tuple(heads), queries=queries, keys=keys)
