"""The measures of every head and layer as a table: columns, order, JSON, a terminal's and a notebook's view."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from entformer.analysis.density import BINS
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES, Measure, brief
from entformer.errors import ArgumentError
from entformer.text.numbers import format_number

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Role:
    """A candidate for what a head does."""

    role: str
    score: float  # 0 to 1, comparable within a role
    examples: tuple[int, ...] = ()  # indices in the report's list of sentences, best first


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What heads and layers have in common: measures, which are attributes too. None where a measure does not apply."""

    attn_type: str
    layer: int
    values: Values = field(default_factory=dict)

    def __getattr__(self, name: str) -> float | None:
        if name.startswith("_") or name not in (values := self.__dict__.get("values", {})):
            raise AttributeError(f"{type(self).__name__} has no measure {name!r}.")
        found: float | None = values[name]
        return found

    def with_values(self, **values: float | None) -> Self:
        """Returns a copy with other values of some measures."""
        return replace(self, values={**self.values, **values})

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields and the measures, flat."""
        content = asdict(self)
        values = content.pop("values")
        return {**content, **values}


@dataclass(frozen=True, kw_only=True)
class HeadRow(_Row):
    """One head: `row.density`, `row.alpha` and every other measure of `measures.py`."""

    head: int
    density_histogram: tuple[int, ...]
    """How many sentences have which density, the mean over their queries, in 20 bins from 0 to 1."""
    density_by_keys: tuple[float | None, ...] = ()
    """The mean density of the queries that see 2^k to 2^(k + 1) - 1 keys: in a decoder, density against position."""
    roles: tuple[Role, ...] = ()

    @property
    def id(self) -> tuple[str, int, int]:
        return self.attn_type, self.layer, self.head

    @property
    def key(self) -> str:
        return f"{self.attn_type}.{self.layer}.{self.head}"

    @property
    def positional(self) -> dict[str, float]:
        """Median confidence by offset: "-1", "0", "1"; empty for cross attention, "1" is missing in causal attention."""
        found = {
            name.removeprefix("positional."): value for name, value in self.values.items() if name.startswith("positional.")
        }
        return {offset: value for offset, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class LayerRow(_Row):
    """One layer: what its heads do together."""

    @property
    def key(self) -> str:
        return f"{self.attn_type}.{self.layer}"


@dataclass(frozen=True)
class VariedPair:
    """Two sentences of similar length in which one head is sparse and dense (Fig. 10)."""

    attn_type: str
    layer: int
    head: int
    sparse: int  # sentence ids
    dense: int
    densities: tuple[float, float]


@dataclass(frozen=True)
class Example:
    """A sentence to show. Ids without BOS and EOS."""

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

    def head(self, attn_type: str, layer: int, head: int) -> HeadRow:
        """Returns one head."""
        for row in self.heads:
            if row.id == (attn_type, layer, head):
                return row
        raise ArgumentError(f"there is no {attn_type} head {layer}.{head} in this table.")

    def column(self, name: str) -> list[float | None]:
        """Returns one measure of all heads: column("density"), column("positional.-1")."""
        known = [measure.name for measure in HEAD_MEASURES]
        if name not in known:
            raise ArgumentError(f"{name!r} is no measure; there are {', '.join(known)}.")
        return [row.values.get(name) for row in self.heads]

    def sorted(self, name: str, *, descending: bool = True) -> "HeadTable":
        """Returns the same heads ordered by a measure; those without it come last."""
        pairs = list(zip(self.column(name), self.heads, strict=True))
        known = sorted((pair for pair in pairs if pair[0] is not None), key=lambda pair: pair[0] or 0.0, reverse=descending)
        return replace(self, heads=tuple(row for _, row in known) + tuple(row for value, row in pairs if value is None))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain lists, dicts, numbers and None."""
        plain: dict[str, Any] = json.loads(self.to_json())
        return plain

    def to_json(self) -> str:
        content = asdict(replace(self, heads=(), layers=()))
        rows = {"heads": [row.to_dict() for row in self.heads], "layers": [row.to_dict() for row in self.layers]}
        return json.dumps({**content, **rows}, ensure_ascii=False)

    def __repr__(self) -> str:
        lines = [f"HeadTable: {len(self.heads)} heads, {self.sentences:,} sentences"]
        for title, rows, measures in self._parts():
            lines.append(f"{title:<14}" + "".join(f"{measure.name:>20}" for measure in measures))
            lines += [f"{row.key:<14}" + "".join(f"{_shown(row, measure):>20}" for measure in measures) for row in rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        caption = f"{len(self.heads)} heads over {self.sentences:,} sentences"
        return "".join(
            f"<table><caption>{caption if title == 'head' else 'Layers'}</caption><thead><tr>"
            + "".join(f"<th>{html.escape(text)}</th>" for text in _titles(title, measures))
            + f"</tr></thead><tbody>{''.join(f'<tr>{_cells(row, measures)}</tr>' for row in rows)}</tbody></table>"
            for title, rows, measures in self._parts()
        )

    def _parts(self) -> tuple[tuple[str, Sequence[HeadRow | LayerRow], list[Measure]], ...]:
        return ("head", self.heads, brief(HEAD_MEASURES)), ("layer", self.layers, brief(LAYER_MEASURES))


def _titles(title: str, measures: Sequence[Measure]) -> list[str]:
    return [title, *(measure.label for measure in measures), *(("densities", "head roles") if title == "head" else ())]


def _cells(row: HeadRow | LayerRow, measures: Sequence[Measure]) -> str:
    cells = f"<td>{html.escape(row.key)}</td>"
    cells += "".join(f'<td style="text-align:right">{_shown(row, measure)}</td>' for measure in measures)
    if isinstance(row, HeadRow):
        roles = ", ".join(f"{html.escape(role.role)} {format_number(role.score)}" for role in row.roles)
        cells += f"<td>{_bars(row.density_histogram)}</td><td>{roles}</td>"
    return cells


def _bars(counts: tuple[int, ...]) -> str:
    """Draws the distribution of densities."""
    top = max(counts, default=0) or 1
    bars = "".join(
        f'<rect x="{4 * i}" y="{20 - round(20 * count / top, 1)}" width="3" height="{round(20 * count / top, 1)}"/>'
        for i, count in enumerate(counts)
    )
    return f'<svg width="{4 * BINS}" height="20" fill="#0072b2" role="img" aria-label="histogram of densities">{bars}</svg>'


def _shown(row: HeadRow | LayerRow, measure: Measure) -> str:
    value = row.values.get(measure.name)
    return "-" if value is None else format_number(value, 3)
