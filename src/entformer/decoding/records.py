"""Records of decoding: `Hypothesis` (a translation in ids) and `AttentionRecord` (attention weights of a translation).

An `AttentionRecord` holds numpy arrays and can be written as a line of JSON. Weights are compressed sparse rows (CSR).
Rows of ReLA may be empty and do not sum to one.
"""

import html
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from entformer.decoding.sparse_rows import SparseRows as SparseRows
from entformer.errors import ArgumentError, DataError
from entformer.text.numbers import format_alpha, format_percent, plain_label

if TYPE_CHECKING:
    from entformer.decoding.heatmap import NotebookFigure

FORMAT = 1  # of the JSON
SIDES = ("source", "target", "source_pieces", "target_pieces")
SIDE = 112  # pixels of a heatmap in HTML
MOST_CELLS = 3000  # of one heatmap; the largest weights are drawn
RAMP = ("#cfe3f5", "#9dc7e6", "#6aaed6", "#4290c6", "#2070b4", "#08306b")
HIDDEN = "#d9d9d9"  # keys that a query may not see


@dataclass(frozen=True)
class Hypothesis:
    """A translation in ids."""

    tokens: tuple[int, ...]  # without BOS and EOS, with a forced prefix
    score: float  # log_prob after the length penalty
    log_prob: float  # of the tokens after the forced prefix, and of EOS
    finished: bool = True  # False: cut at the length limit; log_prob then excludes EOS


class HeadKey(NamedTuple):
    """A head; kind is the attention type: "encoder", "decoder" (self-attention) or "cross"."""

    kind: str
    layer: int
    head: int


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """Attention weights of every head for one sentence and its translation.

    Encoder and cross attention have one key per source token (EOS is the last). The decoder reads target[:-1], which starts
    with BOS: row i of the decoder and cross heads holds the weights for predicting target[i + 1].
    """

    source: tuple[int, ...]  # ids, EOS at the end
    target: tuple[int, ...]  # ids, BOS at the start, EOS at the end
    heads: dict[HeadKey, SparseRows]
    normalizers: dict[str, str]  # kind -> "entmax", "softmax", "rela", ...
    alphas: dict[HeadKey, float]  # heads without an alpha (ReLA) are missing
    source_pieces: tuple[str, ...] = ()  # empty if recorded without a tokenizer
    target_pieces: tuple[str, ...] = ()

    def head(self, kind: str, layer: int, head: int) -> SparseRows:
        return self.heads[HeadKey(kind, layer, head)]

    def plot(self, kind: str | None = None, layer: int | None = None, head: int | None = None) -> "NotebookFigure":
        """Plots one head, or all heads of an attention type or layer; returns a matplotlib Figure, which notebooks display."""
        from entformer.decoding.heatmap import HeadPicture, draw_heads

        wanted = [
            key for key in self.heads if kind in (None, key.kind) and layer in (None, key.layer) and head in (None, key.head)
        ]
        if not wanted:
            raise ArgumentError(f"the record has no head with kind={kind}, layer={layer}, head={head}.")
        source, target = self.source_pieces, self.target_pieces[:-1]
        pictures = []
        for key in wanted:
            rows, alpha = self.heads[key], self.alphas.get(key)
            title = f"{plain_label(key.kind)} {key.layer}.{key.head}" + ("" if alpha is None else f"  α {format_alpha(alpha)}")
            tokens = source if key.kind == "encoder" else target, target if key.kind == "decoder" else source
            pictures.append(HeadPicture(title, rows.dense(), *tokens, key.kind == "decoder"))
        return draw_heads(pictures, columns=1 + max(key.head for key in wanted) if len(wanted) > 4 else None)

    def _repr_html_(self) -> str:
        """Returns small heatmaps of every head, for notebooks."""
        return _as_html(self)

    def to_json(self, **extra: Any) -> str:
        """Returns one line of JSON; `extra` fields (such as the line number) are ignored by `from_json`."""
        content = {
            **extra,
            "format": FORMAT,
            **{side: list(getattr(self, side)) for side in SIDES},
            "normalizers": self.normalizers,
            "heads": [
                {
                    **key._asdict(),
                    "alpha": self.alphas.get(key),
                    "keys": rows.keys,
                    "crow": rows.crow.tolist(),
                    "col": rows.col.tolist(),
                    "weight": [float(f"{weight:.9g}") for weight in rows.weight.tolist()],  # nine digits represent any float32
                }
                for key, rows in self.heads.items()
            ],
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "AttentionRecord":
        """Parses the output of `to_json`."""
        try:
            content = json.loads(text)
            if content["format"] > FORMAT:
                raise DataError(f"the attention record has format {content['format']}, this version reads up to {FORMAT}.")
            heads, alphas = {}, {}
            for stored in content["heads"]:
                key = HeadKey(stored["kind"], stored["layer"], stored["head"])
                heads[key] = SparseRows.from_lists(stored, stored["keys"])
                if stored["alpha"] is not None:
                    alphas[key] = stored["alpha"]
            return cls(
                heads=heads,
                normalizers=content["normalizers"],
                alphas=alphas,
                **{side: tuple(content[side]) for side in SIDES},
            )
        except (json.JSONDecodeError, KeyError, TypeError) as err:
            raise DataError(
                f"this is not an attention record ({type(err).__name__}: {err}); expected a line written by "
                "`entformer translate --attention`."
            ) from err


def _as_html(record: AttentionRecord) -> str:
    """Returns a grid per attention type with a row per layer."""
    sides = {"source": record.source_pieces, "target": record.target_pieces}
    named = "<br>".join(f"{side}: {html.escape(' '.join(pieces))}" for side, pieces in sides.items() if pieces)
    parts = [f"<p>{named}</p>", _legend()]
    for kind in dict.fromkeys(key.kind for key in record.heads):
        lines = []
        for layer in sorted({key.layer for key in record.heads if key.kind == kind}):
            cells = [_cell(key, rows, record.alphas.get(key)) for key, rows in record.heads.items() if key[:2] == (kind, layer)]
            lines.append(f'<div style="display:flex;gap:8px;flex-wrap:wrap">{"".join(cells)}</div>')
        parts.append(f"<details open><summary>{html.escape(kind)}</summary>{''.join(lines)}</details>")
    return f'<div class="entformer-record">{"".join(parts)}</div>'


def _legend() -> str:
    """Explains the drawings, and says how to see one of them large."""
    colors = {"small weight": RAMP[0], "weight 1": RAMP[-1], "exactly 0": "#fff", "masked": HIDDEN}
    swatch = "display:inline-block;width:12px;height:12px;border:1px solid #999;margin:0 4px 0 12px;background:"
    swatches = "".join(f'<span style="{swatch}{color}"></span>{name}' for name, color in colors.items())
    return f"<p>queries down, keys across:{swatches}. Larger, with tokens: <code>entformer.show(record)</code></p>"


def _cell(key: HeadKey, rows: SparseRows, alpha: float | None) -> str:
    kind, layer, head = key
    density = len(rows.col) / max(1, rows.queries * rows.keys)
    caption = f"{layer}.{head}" + ("" if alpha is None else f", α {format_alpha(alpha)}")
    name = html.escape(f"{kind} layer {layer} head {head}: {len(rows.col)} weights, {format_percent(density)} of all pairs")
    if len(rows.col) > MOST_CELLS:  # omitted weights would look like exact zeros
        caption += f", largest {MOST_CELLS:,} of {len(rows.col):,} weights"
    masked = _masked(rows) if kind == "decoder" else ""
    return (
        f'<figure style="margin:4px"><svg width="{SIDE}" height="{SIDE}" preserveAspectRatio="none" '
        f'viewBox="0 0 {max(rows.keys, 1)} {max(rows.queries, 1)}" style="background:#fff;border:1px solid #999" '
        f'role="img" aria-label="{name}">'
        f"<title>{name}</title>{masked}{_rectangles(rows)}</svg><figcaption>{caption}</figcaption></figure>"
    )


def _masked(rows: SparseRows) -> str:
    """Returns the keys after each query as one shape."""
    steps = "".join(f"V{i}H{i + 1}" for i in range(1, rows.queries))
    return f'<path d="M1 0{steps}V0Z" fill="{HIDDEN}"/>'


def _rectangles(rows: SparseRows) -> str:
    row = np.repeat(np.arange(rows.queries), np.diff(rows.crow))
    shown = np.argsort(-rows.weight, kind="stable")[:MOST_CELLS]
    top = max(1.0, float(rows.weight.max(initial=0.0)))
    shade = np.minimum((rows.weight / top * len(RAMP)).astype(np.int64), len(RAMP) - 1)
    return "".join(
        f'<rect x="{rows.col[i]}" y="{row[i]}" width="1" height="1" fill="{RAMP[shade[i]]}"/>' for i in shown.tolist()
    )
