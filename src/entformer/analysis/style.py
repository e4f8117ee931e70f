"""The look of all figures: fonts, colors, markers, names of attention types."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

ATTENTION_TYPES = {"encoder": "encoder self-attention", "cross": "cross attention", "decoder": "decoder self-attention"}
# Okabe and Ito's colors, which color-blind readers can distinguish; markers distinguish series in gray print.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ATTENTION_COLORS = dict(zip(ATTENTION_TYPES, COLORS, strict=False))
RC_PARAMS: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # and can be edited
    "svg.hashsalt": "entformer",  # equal data, equal file
    "figure.dpi": 150.0,
    "text.usetex": False,  # names of runs are not TeX
}


def draw_grid(
    titles: Sequence[str],
    xlabel: str,
    ylabels: Sequence[str],
    draw: Callable[[Axes, int, int], None],
    *,
    sharey: Literal["row"] | bool = False,
    height: float = 2.3,
) -> Figure:
    """Draws a grid of panels with `draw(axes, row, column)`: a title above each column, a label beside each row.

    A panel is `height` inches high.
    """
    rows, columns = len(ylabels), len(titles)
    figure = Figure(figsize=(max(3.6, 2.6 * columns + 0.6), height * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=sharey, sharex=rows > 1)
    for (row, column), axes in np.ndenumerate(panels):
        draw(axes, row, column)
        if row == 0:
            axes.set_title(titles[column], loc="left")
        if column == 0:
            axes.set_ylabel(ylabels[row])
        if row == rows - 1:
            axes.set_xlabel(xlabel)
    return figure


def line_style(index: int) -> dict[str, Any]:
    """Returns the color and marker of a run."""
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    return {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.5}


def add_legend(figure: Figure, handles: list[Line2D], columns: int = 4) -> None:
    """Adds a legend below the figure."""
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)), frameon=False)
