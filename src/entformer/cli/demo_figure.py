"""Draws the demo's figure. In: keys, their weights under a few mappings, and their weights along alpha. Out: a PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from entformer.text.numbers import format_number

# One color per key that matters; the rest is grey. These stay apart for color-blind readers.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#8e44ad", "#b8860b")
GREY = "#9a9a9a"


def draw_demo(
    path: Path,
    *,
    keys: Sequence[str],
    weights: Mapping[str, Sequence[float]],
    marks: Mapping[str, float],
    alphas: Sequence[float],
    curves: Sequence[Sequence[float]],
) -> None:
    """Write the figure.

    Args:
        path: where to.
        keys: a word per key.
        weights: mapping's name -> a weight per key.
        marks: mapping's name -> its alpha, marked on the right-hand panel.
        alphas: the alphas of the curves.
        curves: per key, its weight at each of `alphas`.
    """
    figure = Figure(figsize=(13.0, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.35, 1.0), wspace=0.03)[0]
    colors = _colours([curve[0] for curve in curves])
    _draw_bars(left, keys, weights, colors)
    _draw_curves(right, keys, marks, alphas, curves, colors)
    figure.savefig(path, dpi=150)


def _colours(weights: Sequence[float]) -> list[str]:
    """The strongest keys get the colors, in order of weight."""
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    return [COLORS[order.index(i)] if order.index(i) < len(COLORS) else GREY for i in range(len(weights))]


def _draw_bars(figure: SubFigure, keys: Sequence[str], weights: Mapping[str, Sequence[float]], colors: Sequence[str]) -> None:
    figure.suptitle("the same scores, four mappings", fontsize=13)
    panels = figure.subplots(1, len(weights), sharey=True, sharex=True)
    rows = range(len(keys))
    longest = max(max(column) for column in weights.values())
    for panel, (name, column) in zip(panels, weights.items(), strict=True):
        panel.barh(rows, column, color=colors, height=0.72)
        for row, weight in enumerate(column):
            if weight == 0.0:
                panel.plot(0.02 * longest, row, marker="o", markersize=6, markerfacecolor="white", markeredgecolor="#c0392b")
                panel.text(0.08 * longest, row, "0", va="center", fontsize=10, color="#c0392b", fontweight="bold")
            else:
                panel.text(
                    weight + 0.03 * longest,
                    row,
                    format_number(weight, exact=(0.0, 1.0)),
                    va="center",
                    fontsize=8.5,
                    color="#333333",
                )
        support = sum(weight > 0.0 for weight in column)
        panel.set_title(f"{name}\n{support} of {len(keys)} keys", fontsize=10.5)
        panel.set_xlim(0.0, 1.28 * longest)
        panel.set_xticks([])
        panel.tick_params(length=0)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    panels[0].set_yticks(rows, keys, fontsize=11)
    panels[0].invert_yaxis()


def _draw_curves(
    figure: SubFigure,
    keys: Sequence[str],
    marks: Mapping[str, float],
    alphas: Sequence[float],
    curves: Sequence[Sequence[float]],
    colors: Sequence[str],
) -> None:
    figure.suptitle("weight of each key as alpha grows", fontsize=13)
    panel = figure.subplots()
    for key, curve, color in zip(keys, curves, colors, strict=True):
        alive = [weight > 0.0 for weight in curve]
        last = len(alive) - 1 - alive[::-1].index(True)
        panel.plot(alphas[: last + 1], curve[: last + 1], color=color, linewidth=2.2 if color != GREY else 1.2)
        if last + 1 < len(alphas):  # where the weight becomes exactly zero
            panel.plot(
                alphas[last + 1], 0.0, marker="o", markersize=6, markerfacecolor="white", markeredgecolor=color, clip_on=False
            )
        if color != GREY:
            panel.text(alphas[0] - 0.015, curve[0], key, color=color, ha="right", va="center", fontsize=10.5)
    top = max(max(curve) for curve in curves)
    for name, alpha in marks.items():
        panel.axvline(alpha, color="#cccccc", linewidth=0.8, zorder=0)
        panel.text(alpha, 1.08 * top, name, ha="center", va="bottom", fontsize=8.5, color="#555555")
    panel.set_xlim(alphas[0], alphas[-1])
    panel.set_ylim(0.0, 1.08 * top)
    panel.set_xlabel("alpha   (○ weight becomes exactly 0)")
    panel.set_yticks([])
    for level in (0.25, 0.5, 0.75):
        panel.axhline(level, color="#e6e6e6", linewidth=0.8, zorder=0)
        panel.text(alphas[-1] + 0.01, level, f"{level:g}", va="center", fontsize=8.5, color="#555555")
    panel.spines[["top", "right", "left"]].set_visible(False)
