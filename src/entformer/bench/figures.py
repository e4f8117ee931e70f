"""Plots of benchmark reports: time relative to the baseline, against row length or density."""

import textwrap
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from entformer.bench.harness import Report

# Distinguishable in print and for color-blind readers.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#8e44ad", "#7f7f7f", "#d9a400", "#4b2e83", "#56b4e9", "#222222", "#cc79a7")
RATIOS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)


def plot_report(report: Report, path: Path, *, x: str, x_label: str) -> None:
    """Writes a PNG with one panel per direction.

    Args:
        x: key of `Measurement.details` for the horizontal axis; a label such as "n" or "density".
    """
    directions = list(dict.fromkeys(m.direction for m in report.measurements))
    names = list(dict.fromkeys(m.implementation for m in report.measurements))
    figure = Figure(figsize=(6.2 * len(directions), 5.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(directions), sharex=True, sharey=True, squeeze=False)[0]
    for panel, direction in zip(panels, directions, strict=True):
        panel.axhline(1.0, color="black", linewidth=1.2, label=report.baseline)
        for index, name in enumerate(names):
            chosen = [m for m in report.measurements if m.direction == direction and m.implementation == name]
            points = sorted((m.details[x], m.ratio, m.ratio_low, m.ratio_high) for m in chosen)
            if not points:
                continue
            at, ratio, low, high = (list(column) for column in zip(*points, strict=True))
            errors = [[r - lo for r, lo in zip(ratio, low, strict=True)], [hi - r for r, hi in zip(ratio, high, strict=True)]]
            style = "--" if "package" in name else "none"
            color = COLORS[index % len(COLORS)]
            panel.errorbar(at, ratio, yerr=errors, color=color, linestyle=style, marker="o", markersize=4, label=name)
        panel.set_title(direction, loc="left")
        panel.set_xlabel(x_label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(FixedLocator(RATIOS))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"time / {report.baseline}")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(f"Time relative to {report.baseline} (below 1 is faster)", x=0.01, ha="left", fontsize=13)
    figure.supxlabel("\n".join(textwrap.wrap(str(report.signature), 150)), x=0.01, ha="left", fontsize=7.5, color="#555555")
    figure.savefig(path, dpi=150)
