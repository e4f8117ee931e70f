"""Draws benchmark reports. In: a `RowReport`. Out: a PNG of time relative to softmax against row length."""

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from entformer.bench.rows import DIRECTIONS, RowReport

# Colours that stay apart in print and for colour-blind readers; one per kind of alpha, ours and the peer's alike.
COLOURS = {"1": "#7f7f7f", "1.5": "#0072b2", "2": "#009e73", "learned": "#d55e00", "per head": "#8e44ad"}
LABELS = {"1": "α = 1", "1.5": "α = 1.5", "2": "α = 2", "learned": "α learned", "per head": "α learned per head"}


def draw_rows(report: RowReport, path: Path) -> None:
    """Write the figure: a panel per direction and scale, solid lines ours, dashed lines the entmax package."""
    scales = report.plan.scales
    figure = Figure(figsize=(11.0, 1.4 + 3.7 * len(scales)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(scales), len(DIRECTIONS), sharex=True, sharey=True, squeeze=False)
    for row, scale in enumerate(scales):
        for column, direction in enumerate(DIRECTIONS):
            _panel(panels[row, column], report, scale, direction)
    for panel in panels[-1]:
        panel.set_xlabel("row length n")
    for panel in panels[:, 0]:
        panel.set_ylabel("time / torch.softmax")
    handles, labels = panels[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle("alpha-entmax of rows: time relative to torch.softmax (below 1 is faster)", x=0.01, ha="left", fontsize=13)
    figure.supxlabel("\n".join(textwrap.wrap(str(report.signature), 150)), x=0.01, ha="left", fontsize=7.5, color="#555555")
    figure.savefig(path, dpi=150)


def _panel(panel: Axes, report: RowReport, scale: float, direction: str) -> None:
    chosen = [r for r in report.results if r.scale == scale and r.direction == direction]
    panel.axhline(1.0, color="black", linewidth=1.0, zorder=1, label="torch.softmax")
    for alpha, colour in COLOURS.items():
        mine = [r for r in chosen if r.alpha == alpha]
        n = [r.n for r in mine]
        panel.fill_between(n, [r.ours_low for r in mine], [r.ours_high for r in mine], color=colour, alpha=0.15, linewidth=0)
        panel.plot(n, [r.ours for r in mine], color=colour, marker="o", markersize=4, label=f"entformer, {LABELS[alpha]}")
    for alpha, colour in COLOURS.items():
        theirs = [(r.n, r.peer) for r in chosen if r.alpha == alpha and r.peer is not None]
        if theirs:
            label = f"entmax {report.signature.entmax}, {LABELS[alpha]}"
            panel.plot(*zip(*theirs, strict=True), color=colour, linestyle="--", marker="x", markersize=4, label=label)
    panel.set_title(f"{direction}, scores ~ N(0, {scale:g}²)", loc="left", fontsize=10)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(FixedLocator(list(report.plan.lengths)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_minor_locator(NullLocator())
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
