"""Heatmaps of attention weights with matplotlib.

Exact zeros are white with a dot, the smallest weight is visibly blue, masked keys are gray.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from entformer.text.numbers import plain_label

__all__ = ["Figure", "HeadPicture", "NotebookFigure", "add_legend", "draw_head", "draw_heads", "shown_piece"]

WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#cfe3f5", "#6aaed6", "#2070b4", "#08306b"])
HIDDEN = "#e3e3e3"
DOTS_UPTO = 45  # keys; more dots would be unreadable
LABELS_UPTO = 60
LONGEST_TOKEN = 24  # characters of a label


class HeadPicture(NamedTuple):
    """One head of one sentence."""

    title: str  # matplotlib markup; user text needs `plain_label`
    weights: NDArray[np.float32]  # (queries, keys)
    query_tokens: Sequence[str]  # as many as queries, or empty
    key_tokens: Sequence[str]
    causal: bool = False  # query i attends to keys j <= i


class NotebookFigure(Figure):
    """A figure that notebooks display; one made without pyplot would only be printed."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def shown_piece(piece: str) -> str:
    """Returns the label of a piece: "▁man" -> "man", "s" -> "~s" (continues a word); special tokens are unchanged."""
    if piece.startswith("<") and piece.endswith(">"):
        return piece
    return piece[1:] or "_" if piece.startswith("▁") else f"~{piece}"


def draw_head(axes: Axes, picture: HeadPicture, *, labels: bool = True, font: float = 8.0) -> None:
    """Draws one head: a row per query, a column per key."""
    cells = picture.weights
    queries, keys = cells.shape
    hidden = np.triu(np.ones(cells.shape, np.bool_), 1) if picture.causal else np.zeros(cells.shape, np.bool_)
    top = max(1.0, float(cells.max(initial=0.0)))  # ReLA's weights may be larger than 1
    axes.set_facecolor("white")
    axes.imshow(
        np.where(hidden, 0.0, np.nan), cmap=LinearSegmentedColormap.from_list("hidden", [HIDDEN, HIDDEN]), aspect="equal"
    )
    axes.imshow(np.where(cells == 0, np.nan, cells), cmap=WEIGHTS, vmin=0.0, vmax=top, aspect="equal")
    if keys <= DOTS_UPTO:
        y, x = np.nonzero((cells == 0) & ~hidden)
        axes.scatter(x, y, s=1.2, color="#b5b5b5", linewidths=0)
    axes.set_title(picture.title, loc="left", fontsize=font + 1)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_color("#999999")
        spine.set_linewidth(0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    if labels and keys <= LABELS_UPTO and picture.key_tokens:
        tokens = [_token_label(token) for token in picture.key_tokens]
        axes.set_xticks(range(keys), tokens, rotation=90, fontsize=font)
    if labels and queries <= LABELS_UPTO and picture.query_tokens:
        axes.set_yticks(range(queries), [_token_label(token) for token in picture.query_tokens], fontsize=font)


def draw_heads(pictures: Sequence[HeadPicture], *, columns: int | None = None) -> NotebookFigure:
    """Draws several heads side by side; up to four are labeled with tokens."""
    columns = columns or min(4, max(1, len(pictures)))
    lines = -(-len(pictures) // columns)
    labels = len(pictures) <= 4
    side = 4.2 if labels else 1.9
    layout = ConstrainedLayoutEngine(h_pad=0.1, compress=True)  # keeps the aspect ratio
    figure = NotebookFigure(figsize=(side * columns + 0.4, side * lines + 0.9), layout=layout)
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False)
    for index, axes in enumerate(panels.flat):
        if index < len(pictures):
            draw_head(axes, pictures[index], labels=labels)
        else:
            axes.set_axis_off()
    add_legend(figure, any(picture.causal for picture in pictures))
    return figure


def add_legend(figure: Figure, causal: bool) -> None:
    """Adds a legend of the colors below the figure."""
    handles = [
        Patch(facecolor=WEIGHTS(0.0), edgecolor="#999999", label="small weight"),
        Patch(facecolor=WEIGHTS(1.0), edgecolor="#999999", label="weight 1 or the largest"),
        Patch(facecolor="white", edgecolor="#999999", label="exactly 0 (dot)"),
    ]
    if causal:
        handles.append(Patch(facecolor=HIDDEN, edgecolor="#999999", label="masked"))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=8)


def _token_label(token: str) -> str:
    return plain_label(shown_piece(token), LONGEST_TOKEN)
