"""Draws the trajectory of every alpha, a small panel per head."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from entformer.analysis.style import ATTENTION_COLORS, ATTENTION_TYPES, COLORS

WIDE, HIGH = 1.0, 0.62  # inches of a panel
GAP = 0.12  # between panels, as a share of one


def alpha_heads(data: dict[str, Any]) -> Figure | None:
    """Draws a panel per head, alpha = 1 at the bottom and 2 at the top; a ring is the initial value, a dot the current one.

    Runs are side by side, attention types and layers below one another. Heads at a bound or in the tail of the sigmoid have a
    frame. Returns None if no run has recorded alphas.
    """
    runs = [run for run in data["runs"] if run["alpha_paths"]]
    if not runs:
        return None
    depths = {name: max(len(run["alpha_paths"].get(name, ())) for run in runs) for name in ATTENTION_TYPES}
    rows = [(attn_type, layer) for attn_type, depth in depths.items() for layer in range(depth)]
    widths = [max(len(heads) for layers in run["alpha_paths"].values() for heads in layers) for run in runs]
    figure = Figure(figsize=(1.6 + WIDE * sum(widths) + 0.5 * len(runs), 0.9 + HIGH * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), squeeze=False, width_ratios=widths)[0]
    for axes, run, width in zip(panels, runs, widths, strict=True):
        steps, marks = run["alpha_steps"], run.get("alpha_marks") or {}
        span = max(steps[-1] - steps[0], 1)
        for row, (attn_type, layer) in enumerate(rows):
            color = ATTENTION_COLORS[attn_type]
            for head, path in enumerate([*run["alpha_paths"].get(attn_type, ()), *([()] * len(rows))][layer]):
                x = [head + (1 - GAP) * (step - steps[0]) / span for step in steps]
                y = [-row + (1 - GAP) * (alpha - 1.0) for alpha in path]
                marked = f"{attn_type}.{layer}.{head}" in marks
                edge, line = (COLORS[1], 1.6) if marked else ("#dddddd", 0.7)
                axes.add_patch(Rectangle((head, -row), 1 - GAP, 1 - GAP, facecolor="none", edgecolor=edge, linewidth=line))
                axes.plot(x, y, color=color, linewidth=1.1)
                axes.plot(x[0], y[0], "o", markersize=3.5, markerfacecolor="white", markeredgecolor=color)
                axes.plot(x[-1], y[-1], "o", markersize=3.5, color=color)
        axes.set_xlim(-0.1, width)
        axes.set_ylim(-len(rows) + 0.9, 1.0)
        axes.set_xticks([head + (1 - GAP) / 2 for head in range(width)], [f"head {head}" for head in range(width)], fontsize=8)
        axes.set_yticks([])
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_title(run["name"], loc="left")
    names = [f"{ATTENTION_TYPES[attn_type]}, layer {layer}" if layer == 0 else f"layer {layer}" for attn_type, layer in rows]
    panels[0].set_yticks([-row + (1 - GAP) / 2 for row in range(len(rows))], names, fontsize=8)
    return figure
