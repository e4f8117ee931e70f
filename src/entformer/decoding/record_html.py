"""HTML of an attention record for notebooks: a small heatmap of every head, with one rectangle per nonzero weight."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from entformer.text.numbers import format_alpha, format_percent

if TYPE_CHECKING:
    from entformer.decoding.records import AttentionRecord, HeadKey, SparseRows

SIDE = 112  # pixels of a heatmap
MOST_CELLS = 3000  # of one heatmap; the largest weights are drawn
RAMP = ("#cfe3f5", "#9dc7e6", "#6aaed6", "#4290c6", "#2070b4", "#08306b")


def record_as_html(record: "AttentionRecord") -> str:
    """Returns a grid per attention type with a row per layer."""
    parts = [f"<p>{html.escape(_text(record.source_pieces))}<br>{html.escape(_text(record.target_pieces))}</p>"]
    for kind in dict.fromkeys(key.kind for key in record.heads):
        lines = []
        for layer in sorted({key.layer for key in record.heads if key.kind == kind}):
            cells = [_cell(key, rows, record.alphas.get(key)) for key, rows in record.heads.items() if key[:2] == (kind, layer)]
            lines.append(f'<div style="display:flex;gap:8px;flex-wrap:wrap">{"".join(cells)}</div>')
        parts.append(f"<details open><summary>{html.escape(kind)}</summary>{''.join(lines)}</details>")
    return f'<div class="entformer-record">{"".join(parts)}</div>'


def _text(pieces: Sequence[str]) -> str:
    words = "".join(piece for piece in pieces if not (piece.startswith("<") and piece.endswith(">")))
    return words.replace("▁", " ").strip()


def _cell(key: "HeadKey", rows: "SparseRows", alpha: float | None) -> str:
    kind, layer, head = key
    density = len(rows.col) / max(1, rows.queries * rows.keys)
    caption = f"{layer}.{head}" + ("" if alpha is None else f", α {format_alpha(alpha)}")
    name = html.escape(f"{kind} layer {layer} head {head}: {len(rows.col)} weights, {format_percent(density)} of all pairs")
    if len(rows.col) > MOST_CELLS:  # omitted weights would look like exact zeros
        caption += f", largest {MOST_CELLS:,} of {len(rows.col):,} weights"
    return (
        f'<figure style="margin:4px"><svg width="{SIDE}" height="{SIDE}" preserveAspectRatio="none" '
        f'viewBox="0 0 {max(rows.keys, 1)} {max(rows.queries, 1)}" style="background:#fff;border:1px solid #999" '
        f'role="img" aria-label="{name}">'
        f"<title>{name}</title>{_rectangles(rows)}</svg><figcaption>{caption}</figcaption></figure>"
    )


def _rectangles(rows: "SparseRows") -> str:
    row = np.repeat(np.arange(rows.queries), np.diff(rows.crow))
    shown = np.argsort(-rows.weight, kind="stable")[:MOST_CELLS]
    top = max(1.0, float(rows.weight.max(initial=0.0)))
    shade = np.minimum((rows.weight / top * len(RAMP)).astype(np.int64), len(RAMP) - 1)
    return "".join(
        f'<rect x="{rows.col[i]}" y="{row[i]}" width="1" height="1" fill="{RAMP[shade[i]]}"/>' for i in shown.tolist()
    )
