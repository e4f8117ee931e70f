"""The look of all figures: fonts, colors, markers, names of attention types."""

from typing import Any

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


def make_grid(rows: int, columns: int, *, sharey: bool | str = False, height: float = 2.3) -> tuple[Figure, Any]:
    """Creates a figure with a grid of panels, each `height` inches high."""
    figure = Figure(figsize=(max(3.6, 2.6 * columns + 0.6), height * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey, sharex=rows > 1)  # type: ignore[arg-type]


def set_title(axes: Axes, title: str, note: str = "") -> None:
    """Sets a title, and a note inside the panel, where they are not empty."""
    if title:
        axes.set_title(title, loc="left")
    if note:
        axes.annotate(note, (0.98, 0.96), xycoords="axes fraction", ha="right", va="top", fontsize=8, color="#555555")


def line_style(index: int) -> dict[str, Any]:
    """Returns the color and marker of a run."""
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    return {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.5}


def add_legend(figure: Figure, handles: list[Line2D], columns: int = 4) -> None:
    """Adds a legend below the figure."""
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)), frameon=False)
