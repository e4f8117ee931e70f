"""`show`: attention heads as an interactive page, in a notebook or in a file."""

import base64
import html
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from entformer.decoding.sparse_rows import SparseRows, allocate_heads
from entformer.errors import ArgumentError
from entformer.files import write_text
from entformer.nn.traces import AttentionTraces
from entformer.pages import data_page
from entformer.text.numbers import format_percent
from entformer.widget.forms import read_panels
from entformer.widget.panels import Panel, Reading
from entformer.widget.tokens import read_tokens

MOST_WEIGHTS = 1_000_000  # in one page: 8 bytes each
STYLES = ("page.css", "controls.css", "heads.css", "inspector.css", "charts.css")
SCRIPTS = ("dom.js", "numbers.js", "colors.js", "theme.js", "data.js", "tokens.js", "heatmap.js", "lines.js", "heads.js")


class AttentionView:
    """What `show` returns: a notebook displays it; `html` is the page as a string, and `save` writes it."""

    def __init__(self, panels: list[Panel], title: str, height: int, read_as: str = "") -> None:
        self.panels = panels
        self.title = title
        self.read_as = read_as  # how the axes of the weights were read
        self.height = height
        self._html: str | None = None

    @property
    def html(self) -> str:
        """A stand-alone page that needs no network."""
        if self._html is None:
            self._html = data_page(_own("show.html"), STYLES, SCRIPTS, _page_data(self), _own("show.css"), _own("show.js"))
        return self._html

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file and returns its path."""
        path = Path(path)
        if path.is_dir():
            raise ArgumentError(f"{path} is a directory; give a file name such as heads.html.")
        write_text(path, self.html)
        return path

    def _repr_html_(self) -> str:
        """Returns the page in a frame, so that its style and script do not meet those of the notebook."""
        page, title = (html.escape(text, quote=True) for text in (self.html, self.title))
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'

    def __repr__(self) -> str:
        heads = [rows for panel in self.panels for rows in panel.heads]
        share = sum(len(rows.col) for rows in heads) / max(1, sum(rows.queries * rows.keys for rows in heads))
        counts = {"layer": len(self.panels), "head": len(heads), "query": heads[0].queries, "key": heads[0].keys}
        sizes = ", ".join(f"{count} {_plural(name, count)}" for name, count in counts.items())
        text = f"AttentionView({sizes}, {format_percent(share)} of the weights not zero; save('heads.html') writes the page)"
        return f"{text} {self.read_as}".rstrip()


def show(
    weights: Any,
    tokens: Any = None,
    key_tokens: Any = None,
    *,
    is_causal: bool | None = None,
    key_mask: Any = None,
    batch: int | None = None,
    title: str = "Attention heads",
    height: int = 760,
) -> AttentionView:
    """Shows attention heads: a thumbnail of each, one head large, and the keys of one query in words and numbers.

    Exact zeros, small weights and keys that a query may not see look different. The page works offline.

    Args:
        weights: an array or tensor (queries, keys), (heads, queries, keys) or (layers, heads, queries, keys); a list with an
            array per layer, each (heads, queries, keys) or (batch, heads, queries, keys), or a dict of named layers; what
            `ef.trace_attention` recorded; the output of an attention module, (output, weights); the output of a Hugging
            Face model called with `output_attentions=True`, or its `attentions`; the result of `ef.attention` with
            `return_support=True`, or its support; or an `AttentionRecord`. The page says how it read the axes.
        tokens: a string per query. They name the keys too where there are as many.
        key_tokens: a string per key, for cross attention. Without names, positions are shown.
        is_causal: whether a query may see only the keys up to its own; by default, it may not if no weight is ahead of it.
        key_mask: (keys,) or (batch, keys), True = may be attended to, as a tokenizer's `attention_mask`; other tokens are left
            out.
        batch: the sequence to show. Where it is given, the first axis of an array is the batch: (batch, heads, queries, keys)
            or (batch, queries, keys).
        title: the heading of the page.
        height: of the frame in a notebook, in pixels.

    Returns:
        An `AttentionView`, which a notebook displays; `view.save("heads.html")` writes it, `view.html` is the page.

    Raises:
        ArgumentError: weights that are no attention weights, or names that do not fit them.
    """
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 0):
        raise ArgumentError(f"batch must be the number of a sequence, 0 or more, got {batch!r}.")
    names = read_tokens(tokens, "tokens"), read_tokens(key_tokens, "key_tokens")
    how = Reading(*names, is_causal, _read_mask(key_mask, batch or 0), batch)
    panels, read_as = read_panels(weights, how)
    if not panels:
        traced = "; call the model inside the block of ef.trace_attention" if isinstance(weights, AttentionTraces) else ""
        raise ArgumentError(f"weights holds no layer{traced}.")
    return AttentionView(panels, title, height, read_as)


def _read_mask(mask: Any, batch: int) -> Any:
    if mask is None:
        return None
    mask = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask)
    if mask.ndim == 2 and batch < len(mask):
        mask = mask[batch]
    if mask.ndim != 1:
        raise ArgumentError(f"key_mask must be (keys,) or (batch, keys), got shape {mask.shape}.")
    return mask.astype(np.bool_)


def _plural(name: str, count: int) -> str:
    return name if count == 1 else "queries" if name == "query" else f"{name}s"


def _page_data(view: AttentionView) -> dict[str, Any]:
    """Returns what the page reads: tokens once, and the weights of each head as base64."""
    names: dict[tuple[str, ...], int] = {}
    every = {f"{i}.{j}": rows for i, panel in enumerate(view.panels) for j, rows in enumerate(panel.heads)}
    stored, _ = allocate_heads(every, MOST_WEIGHTS)
    panels = []
    for i, panel in enumerate(view.panels):
        queries, keys = (names.setdefault(side, len(names)) for side in (panel.queries, panel.keys))
        heads = []
        for j, rows in enumerate(panel.heads):
            alpha = panel.alphas[j] if panel.alphas else None
            density = _density(rows, panel.causal)
            found = stored.get(f"{i}.{j}")
            weights = None if found is None else {"cut": found[1] or 0, "size": len(found[0].col), "data": _encode(found[0])}
            heads.append({"alpha": alpha, "density": density, "weights": weights})
        panels.append({"name": panel.name, "queries": queries, "keys": keys, "causal": panel.causal, "heads": heads})
    return {"title": view.title, "read_as": view.read_as, "tokens": [list(side) for side in names], "panels": panels}


def _density(rows: SparseRows, causal: bool) -> float:
    """Returns the share of keys with weight, the mean over queries, as the measure "density" of a report."""
    seen = np.minimum(np.arange(rows.queries) + 1, rows.keys) if causal else np.full(rows.queries, rows.keys)
    return float((np.diff(rows.crow) / seen).mean())


def _encode(rows: SparseRows) -> str:
    """Returns crow, weight and col as base64: little-endian uint32, float32 and uint32, read in this order by the page."""
    parts = rows.crow.astype("<u4"), rows.weight.astype("<f4"), rows.col.astype("<u4" if rows.keys > 65536 else "<u2")
    return base64.b64encode(b"".join(part.tobytes() for part in parts)).decode()


def _own(name: str) -> str:
    return (files("entformer.widget") / "page" / name).read_text(encoding="utf-8")
