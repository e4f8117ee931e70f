"""Draws benchmark reports. In: a report. Out: a PNG of time relative to softmax, against row length or against density."""

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from entformer.bench.attention import AttentionReport, AttentionResult
from entformer.bench.attention_racers import PEER
from entformer.bench.rows import DIRECTIONS, RowReport

# Colours that stay apart in print and for colour-blind readers; one per kind of alpha, ours and the peer's alike.
COLOURS = {"1": "#7f7f7f", "1.5": "#0072b2", "2": "#009e73", "learned": "#d55e00", "per head": "#8e44ad"}
LABELS = {"1": "α = 1", "1.5": "α = 1.5", "2": "α = 2", "learned": "α learned", "per head": "α learned per head"}

MARKERS = {
    "1.5": ("o", "α = 1.5"),
    "learned": ("D", "α learned, all heads at 1.49"),
    "learned spread": ("P", "α learned, heads from 1.18 to 1.82"),
    "2": ("^", "α = 2"),
    "rela": ("s", "ReLA"),
    "1.01": ("v", "α = 1.01"),
    "softmax": ("h", "softmax through our door"),
    "entmax package": ("X", "entmax package, α = 1.5"),
}
LENGTH_COLOURS = ("#d9a400", "#d55e00", "#0072b2", "#4b2e83", "#222222")  # short to long
DENSITIES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
RATIOS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 5, 10, 20, 50, 100)


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


def draw_attention(report: AttentionReport, path: Path) -> None:
    """Write the figure: a point per contestant and setting, a colour per length, a marker per contestant.

    Only plain attention on the plan's threads is drawn: there the lengths differ in nothing but length.
    """
    chosen = [r for r in report.results if r.setting.kind == "plain" and r.setting.threads == report.plan.threads]
    shapes = list(dict.fromkeys(r.setting.shape for r in sorted(chosen, key=lambda r: r.setting.keys)))
    colours = {shape: LENGTH_COLOURS[min(i, len(LENGTH_COLOURS) - 1)] for i, shape in enumerate(shapes)}
    figure = Figure(figsize=(13.0, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, sharex=True, width_ratios=(1.0, 1.0))
    _density_panel(left, chosen, colours, "forward+backward")
    _density_panel(right, chosen, colours, "forward")
    left.set_ylabel("time / SDPA")
    seen = [name for name in MARKERS if any(r.contestant == name for r in chosen)]
    lengths = [Line2D([], [], color=colour, linewidth=2.5, label=f"({shape})") for shape, colour in colours.items()]
    marks = [
        Line2D([], [], color="#555555", linestyle="none", marker=MARKERS[name][0], markersize=7, label=MARKERS[name][1])
        for name in seen
    ]
    figure.legend(
        handles=[_heading("batch, heads, length, size"), *lengths, _heading(""), _heading("contestant"), *marks],
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )
    scales = ", ".join(f"{scale:g}" for scale in sorted({r.setting.scale for r in chosen}))
    figure.suptitle(
        "Sparse attention: time relative to torch's fused softmax attention (SDPA), against density",
        x=0.01,
        ha="left",
        fontsize=13,
    )
    foot = f"Random normal queries, keys and values, logits times {scales}. {report.signature}"
    figure.supxlabel("\n".join(textwrap.wrap(foot, 170)), x=0.01, ha="left", fontsize=7.5, color="#555555")
    figure.savefig(path, dpi=150)


def _heading(text: str) -> Line2D:
    """A line of the legend without a sign."""
    return Line2D([], [], linestyle="none", label=text)


def _density_panel(panel: Axes, results: list[AttentionResult], colours: dict[str, str], direction: str) -> None:
    panel.axhspan(1e-3, 1.0, color="#e8f3ec", zorder=0)
    panel.axhline(1.0, color="black", linewidth=1.2, zorder=1)
    for shape, colour in colours.items():
        points = []
        for r in results:
            pace = r.forward_backward if direction == "forward+backward" else r.forward
            if r.setting.shape == shape and pace is not None:
                points.append((r.density, pace.ratio, r.contestant))
        ours = sorted(p[:2] for p in points if p[2] != PEER)
        if ours:
            panel.plot(*zip(*ours, strict=True), color=colour, linewidth=1.0, alpha=0.35, zorder=2)
        for density, ratio, name in points:
            panel.scatter(
                density, ratio, s=70, marker=MARKERS[name][0], color=colour, edgecolor="white", linewidth=0.7, zorder=3
            )
    panel.set_title(direction, loc="left", fontsize=11)
    panel.set_xlabel("density: share of weights that are not zero")
    panel.set_xscale("log")
    panel.set_yscale("log")
    ratios = [pace.ratio for r in results for pace in (r.forward, r.forward_backward) if pace is not None]  # of both panels
    bottom, top, least = min([0.5, *ratios]) / 1.3, max([2.0, *ratios]) * 1.3, min([0.1, *(r.density for r in results)]) / 1.5
    panel.set_xlim(least, 1.4)
    panel.set_ylim(bottom, top)
    panel.text(1.05 * least, 1.03, "SDPA, softmax", va="bottom", fontsize=8.5)
    panel.text(1.05 * least, 0.97, "faster than softmax", va="top", fontsize=8.5, color="#2e7d4f")
    panel.xaxis.set_major_locator(FixedLocator([d for d in DENSITIES if d > least]))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_locator(FixedLocator([ratio for ratio in RATIOS if bottom < ratio < top]))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
