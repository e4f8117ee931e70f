"""The measures of every head. In: what the collector summed. Out: `HeadTable`: dicts, JSON, HTML, without pandas."""

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from entformer.analysis.density import BINS
from entformer.errors import ArgumentError
from entformer.text.numbers import format_number

COLUMNS = (
    *("alpha_initial", "alpha", "density", "support", "entropy", "effective_keys", "null_rate"),
    *("merging", "interrogation", "aer"),
)
LAYER_COLUMNS = ("density", "union_density", "null_rate", "js_diversity_keys", "js_diversity_heads")


@dataclass(frozen=True)
class Role:
    """A candidate: what a head seems to do, never what it is."""

    role: str
    score: float  # 0 to 1, comparable within a role
    examples: tuple[int, ...] = ()  # places in the report's list of sentences, best first


@dataclass(frozen=True, kw_only=True)
class HeadRow:
    """One head. None where a measure does not apply or the data had nothing to measure it on."""

    kind: str
    layer: int
    head: int
    alpha: float | None
    alpha_initial: float | None = None
    """Before the first update, where training wrote it down."""
    density: float
    density_histogram: tuple[int, ...]
    """How many sentences have which density, the mean over their rows, in 20 bins from 0 to 1."""
    support: float
    entropy: float | None
    effective_keys: float | None
    null_rate: float
    normalized_entropy: float | None
    """Entropy over the most it could be, ln n: 1 for an even spread over all keys."""
    positional: dict[str, float]
    """Median confidence by offset: "-1", "0", "1"; empty for cross attention, "1" is missing in causal attention."""
    first_key: float | None
    last_key: float | None
    merging: float | None
    merging_pieces: float | None
    """`merging` over words of two and more pieces only."""
    merging_with_self: float | None
    """Mass on all pieces of the word, the query's own included; over words of two and more pieces."""
    interrogation: float | None
    interrogation_contrast: float | None
    """`interrogation` of the same words read as statements, with a full stop in place of the question mark."""
    density_spread: float
    """Between the sparsest and the densest of sentences of similar length."""
    aer: float | None = None
    aer_shifted: float | None = None
    roles: tuple[Role, ...] = ()

    @property
    def place(self) -> tuple[str, int, int]:
        return self.kind, self.layer, self.head

    @property
    def key(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer: what its heads do together."""

    kind: str
    layer: int
    js_diversity_keys: float | None
    """Jensen-Shannon divergence of the heads, logarithms to the base of the number of keys."""
    js_diversity_heads: float | None
    """The same, to the base of the number of heads."""
    js_diversity_live_keys: float | None
    """Of the heads with weight only; differs for ReLA, whose rows may be empty."""
    js_diversity_live_heads: float | None
    union_density: float
    density: float
    null_rate: float
    """The share of rows without weight, over all heads."""

    @property
    def key(self) -> str:
        return f"{self.kind}.{self.layer}"


@dataclass(frozen=True)
class VariedPair:
    """Two sentences of similar length in which one head is sparse and dense (Fig. 10)."""

    kind: str
    layer: int
    head: int
    sparse: int  # sentence ids
    dense: int
    densities: tuple[float, float]


@dataclass(frozen=True)
class Example:
    """A sentence worth looking at. Ids without BOS and EOS."""

    id: int
    why: str
    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class HeadTable:
    """All heads and layers of a model over a data set."""

    heads: tuple[HeadRow, ...]
    layers: tuple[LayerRow, ...]
    sentences: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    normalizers: dict[str, str] = field(default_factory=dict)
    varied: tuple[VariedPair, ...] = ()
    examples: tuple[Example, ...] = ()

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self.heads)

    def head(self, kind: str, layer: int, head: int) -> HeadRow:
        """One head by its place."""
        for row in self.heads:
            if (row.kind, row.layer, row.head) == (kind, layer, head):
                return row
        raise ArgumentError(f"there is no {kind} head {layer}.{head} in this table.")

    def column(self, name: str) -> list[Any]:
        """One measure of all heads: column("density"), column("positional.-1")."""
        field_name, _, part = name.partition(".")
        if field_name not in HeadRow.__dataclass_fields__:
            raise ArgumentError(f"{name!r} is no measure; there are {', '.join(HeadRow.__dataclass_fields__)}.")
        values = [getattr(row, field_name) for row in self.heads]
        return [value.get(part) for value in values] if part else values

    def sorted(self, name: str, *, descending: bool = True) -> "HeadTable":
        """The same heads ordered by a measure; those without it come last."""
        pairs = list(zip(self.column(name), self.heads, strict=True))
        known = sorted((pair for pair in pairs if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
        return replace(self, heads=tuple(row for _, row in known) + tuple(row for value, row in pairs if value is None))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    def __repr__(self) -> str:
        lines = [f"HeadTable: {len(self.heads)} heads, {self.sentences:,} sentences"]
        parts: tuple[tuple[str, Sequence[HeadRow | LayerRow], tuple[str, ...]], ...] = (
            ("head", self.heads, COLUMNS),
            ("layer", self.layers, LAYER_COLUMNS),
        )
        for title, rows, columns in parts:
            lines.append(f"{title:<14}" + "".join(f"{name:>20}" for name in columns))
            lines += [f"{row.key:<14}" + "".join(f"{_shown(getattr(row, name)):>20}" for name in columns) for row in rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(
            f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in ("head", *COLUMNS, "densities", "roles found")
        )
        body = "".join(f"<tr>{_html_cells(row)}</tr>" for row in self.heads)
        caption = f"{len(self.heads)} heads over {self.sentences:,} sentences"
        layers = "".join(f"<tr><td>{html.escape(row.key)}</td>{_numbers(row, LAYER_COLUMNS)}</tr>" for row in self.layers)
        titles = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in ("layer", *LAYER_COLUMNS))
        return (
            f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<table><caption>Layers</caption><thead><tr>{titles}</tr></thead><tbody>{layers}</tbody></table>"
        )


def _html_cells(row: HeadRow) -> str:
    numbers = _numbers(row, COLUMNS)
    roles = ", ".join(f"{html.escape(role.role)} {format_number(role.score)}" for role in row.roles)
    return f"<td>{html.escape(row.key)}</td>{numbers}<td>{_bars(row.density_histogram)}</td><td>{roles}</td>"


def _numbers(row: HeadRow | LayerRow, columns: Sequence[str]) -> str:
    return "".join(f'<td style="text-align:right">{_shown(getattr(row, name))}</td>' for name in columns)


def _bars(counts: tuple[int, ...]) -> str:
    """The distribution of densities as a small drawing."""
    top = max(counts, default=0) or 1
    bars = "".join(
        f'<rect x="{4 * i}" y="{20 - round(20 * count / top, 1)}" width="3" height="{round(20 * count / top, 1)}"/>'
        for i, count in enumerate(counts)
    )
    return f'<svg width="{4 * BINS}" height="20" fill="#0072b2" role="img" aria-label="histogram of densities">{bars}</svg>'


def _shown(value: float | None) -> str:
    return "-" if value is None else format_number(value, 3)
