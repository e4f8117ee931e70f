"""HTML of an attention record for notebooks: a small heatmap of every head, with one rectangle per nonzero weight."""

import html
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from entformer.text.numbers import format_alpha, format_percent

SIDE = 112  # pixels of a heatmap
MOST_CELLS = 3000  # of one heatmap; the largest weights are drawn
RAMP = ("#cfe3f5", "#9dc7e6", "#6aaed6", "#4290c6", "#2070b4", "#08306b")


class Rows(Protocol):
    """Compressed sparse rows, as `SparseRows` has them."""

    @property
    def crow(self) -> NDArray[np.int64]: ...
    @property
    def col(self) -> NDArray[np.int32]: ...
    @property
    def weight(self) -> NDArray[np.float32]: ...
    @property
    def keys(self) -> int: ...


class Head(NamedTuple):
    """A head to draw."""

    kind: str
    layer: int
    head: int
    rows: Rows
    alpha: float | None


def heads_as_html(source: Sequence[str], target: Sequence[str], heads: Sequence[Head]) -> str:
    """Returns a grid per attention type with a row per layer."""
    parts = [f"<p>{html.escape(_text(source))}<br>{html.escape(_text(target))}</p>"]
    for kind in dict.fromkeys(head.kind for head in heads):
        lines = []
        for layer in sorted({head.layer for head in heads if head.kind == kind}):
            cells = [_cell(head) for head in heads if (head.kind, head.layer) == (kind, layer)]
            lines.append(f'<div style="display:flex;gap:8px;flex-wrap:wrap">{"".join(cells)}</div>')
        parts.append(f"<details open><summary>{html.escape(kind)}</summary>{''.join(lines)}</details>")
    return f'<div class="entformer-record">{"".join(parts)}</div>'


def _text(pieces: Sequence[str]) -> str:
    words = "".join(piece for piece in pieces if not (piece.startswith("<") and piece.endswith(">")))
    return words.replace("▁", " ").strip()


def _cell(head: Head) -> str:
    rows = head.rows
    queries = len(rows.crow) - 1
    density = len(rows.col) / max(1, queries * rows.keys)
    caption = f"{head.layer}.{head.head}" + ("" if head.alpha is None else f", α {format_alpha(head.alpha)}")
    name = html.escape(
        f"{head.kind} layer {head.layer} head {head.head}: {len(rows.col)} weights, {format_percent(density)} of all pairs"
    )
    if len(rows.col) > MOST_CELLS:  # omitted weights would look like exact zeros
        caption += f", largest {MOST_CELLS:,} of {len(rows.col):,} weights"
    return (
        f'<figure style="margin:4px"><svg width="{SIDE}" height="{SIDE}" viewBox="0 0 {max(rows.keys, 1)} {max(queries, 1)}" '
        f'preserveAspectRatio="none" style="background:#fff;border:1px solid #999" role="img" aria-label="{name}">'
        f"<title>{name}</title>{_rectangles(rows)}</svg><figcaption>{caption}</figcaption></figure>"
    )


def _rectangles(rows: Rows) -> str:
    row = np.repeat(np.arange(len(rows.crow) - 1), np.diff(rows.crow))
    shown = np.argsort(-rows.weight, kind="stable")[:MOST_CELLS]
    top = max(1.0, float(rows.weight.max(initial=0.0)))
    shade = np.minimum((rows.weight / top * len(RAMP)).astype(np.int64), len(RAMP) - 1)
    return "".join(
        f'<rect x="{rows.col[i]}" y="{row[i]}" width="1" height="1" fill="{RAMP[shade[i]]}"/>' for i in shown.tolist()
    )
