"""Figures of all heads: alphas, densities, diversity, alignment, a table of measures. A figure without data is None."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from entformer.analysis.measures import HEAD_MEASURES
from entformer.analysis.style import ATTENTION_COLORS, ATTENTION_TYPES, COLORS, MARKERS, add_legend, draw_grid, line_style
from entformer.text.numbers import format_alpha, format_number

Data = dict[str, Any]

ENDS = {"": "row i: the word is predicted", "_shifted": "row i + 1: the word is read"}  # of the names of error rates
WIDE, HIGH = 1.0, 0.62  # inches of a panel
GAP = 0.12  # between panels, as a share of one


def alpha_trajectories(data: Data) -> Figure | None:
    """Fig. 2: alpha of every head over training; a row per run, a column per attention type, a color per layer."""
    runs = [run for run in data["runs"] if run["alpha_paths"]]
    if not runs:
        return None
    attn_types = [attn_type for attn_type in ATTENTION_TYPES if any(attn_type in run["alpha_paths"] for run in runs)]
    layers = max(len(paths) for run in runs for paths in run["alpha_paths"].values())
    shades = [colormaps["viridis"](0.85 * layer / max(1, layers - 1)) for layer in range(layers)]

    def draw(axes: Axes, row: int, column: int) -> None:
        run = runs[row]
        for layer, heads in enumerate(run["alpha_paths"].get(attn_types[column], [])):
            for path in heads:
                axes.plot(run["alpha_steps"], path, color=shades[layer], linewidth=1.1)
        if column == 0 and len(runs) > 1:
            axes.text(0.98, 0.96, run["name"], transform=axes.transAxes, ha="right", va="top", fontsize=8, color="#555555")
        axes.set_ylim(1.0, 2.0)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}")
        )

    titles = [ATTENTION_TYPES[attn_type] for attn_type in attn_types]
    figure = draw_grid(titles, "training steps", ["α"] * len(runs), draw, sharey=True)
    add_legend(figure, [Line2D([], [], color=shade, label=f"layer {layer}") for layer, shade in enumerate(shades)], 6)
    return figure


def alpha_heads(data: Data) -> Figure | None:
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


def alpha_distribution(data: Data) -> Figure | None:
    """Fig. 3: the distribution of alpha; a row per attention type, a column per run with learned alphas."""
    runs = [run for run in data["runs"] if run["alpha_paths"]]

    def draw(axes: Axes, heads: list[Data], color: str) -> None:
        alphas = [head["alpha"] for head in heads if head["alpha"] is not None]
        axes.hist(alphas, bins=np.linspace(1.0, 2.0, 21).tolist(), color=color, edgecolor="white", linewidth=0.5)
        axes.set_xlim(1.0, 2.0)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))

    return _by_type_and_run(runs, draw, "α", "heads", height=1.5) if runs else None


def density_distribution(data: Data) -> Figure:
    """Fig. 4: the distribution of density over heads and sentences; a row per attention type, a column per run."""

    def draw(axes: Axes, heads: list[Data], color: str) -> None:
        if heads:
            counts = np.sum([head["density_histogram"] for head in heads], axis=0, dtype=float)
            left, width = np.arange(len(counts)) / len(counts), 1 / len(counts)
            axes.bar(left, counts / max(1.0, counts.sum()), width, align="edge", color=color, edgecolor="white")
        axes.set_xlim(0, 1)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))

    return _by_type_and_run(data["runs"], draw, "density", "heads × sentences", sharey="row", height=1.5)


def density_by_layer(data: Data) -> Figure:
    """Fig. 5: mean density of the heads of each layer, sorted: line k joins the k-th sparsest heads."""

    def draw(axes: Axes, heads: list[Data], color: str) -> None:
        layers = sorted({head["layer"] for head in heads})
        by_layer = [sorted(head["density"] for head in heads if head["layer"] == layer) for layer in layers]
        for path in zip(*by_layer, strict=False):
            axes.plot(layers, path, color=color, marker="o", markersize=3, linewidth=1.1, alpha=0.85)
        axes.set_ylim(0, 1.03)
        _layer_axis(axes)

    return _by_type_and_run(data["runs"], draw, "layer", "density", height=1.7)


def _by_type_and_run(
    runs: list[Data],
    draw_heads: Callable[[Axes, list[Data], str], None],
    xlabel: str,
    ylabel: str,
    *,
    sharey: Literal["row"] | bool = True,
    height: float,
) -> Figure:
    """Draws a panel for every attention type (rows) and run (columns) with `draw_heads(axes, heads, color)`."""
    attn_types = _attn_types(runs)

    def draw(axes: Axes, row: int, column: int) -> None:
        own = [head for head in runs[column]["heads"] if head["attn_type"] == attn_types[row]]
        draw_heads(axes, own, ATTENTION_COLORS[attn_types[row]])

    labels = [f"{ATTENTION_TYPES[attn_type].replace(' ', chr(10), 1)}\n{ylabel}" for attn_type in attn_types]
    return draw_grid([run["name"] for run in runs], xlabel, labels, draw, sharey=sharey, height=height)


def alpha_from_start(data: Data) -> Figure | None:
    """Final against initial alpha of every head, a panel per run: on the diagonal alpha has not changed."""
    runs = [run for run in data["runs"] if run.get("alpha_correlation")]
    if not runs:
        return None

    def draw(axes: Axes, _: int, column: int) -> None:
        axes.plot([1, 2], [1, 2], color="#bbbbbb", linewidth=0.8, zorder=0)
        for (attn_type, label), marker in zip(ATTENTION_TYPES.items(), MARKERS, strict=False):
            own = [(head["alpha_initial"], head["alpha"]) for head in runs[column]["heads"] if head["attn_type"] == attn_type]
            pairs = [pair for pair in own if None not in pair]
            if pairs:
                x, y = zip(*pairs, strict=True)
                axes.scatter(x, y, s=18, color=ATTENTION_COLORS[attn_type], marker=marker, label=label)

    def title(run: Data) -> str:
        correlation = run["alpha_correlation"]["all"]
        note = "" if correlation is None else f"\ncorrelation {format_number(correlation, exact=(0.0, 1.0))}"
        return f"{run['name']}{note}"

    ylabel = f"α after {runs[0]['step']:,} steps" if len(runs) == 1 else "α after training"
    figure = draw_grid([title(run) for run in runs], "α before training", [ylabel], draw, sharey=True, height=2.8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 3), frameon=False)
    return figure


def head_diversity(data: Data) -> Figure | None:
    """Fig. 6: Jensen-Shannon divergence of the heads of each layer; a row per base, a column per attention type."""
    bases = {"js_diversity_keys": "base: keys", "js_diversity_heads": "base: heads"}
    return _by_layer(data, {name: f"JS divergence\n{base}" for name, base in bases.items()})


def null_rate(data: Data) -> Figure | None:
    """The null rate of each layer, as ReLA allows; None where no run has a query without nonzero weight."""
    if not any(layer["null_rate"] for run in data["runs"] for layer in run["layers"]):
        return None
    return _by_layer(data, {"null_rate": "null rate"})


def _by_layer(data: Data, measures: dict[str, str]) -> Figure | None:
    """Draws measures of layers: a row per measure, a column per attention type, a curve per run."""
    runs = data["runs"]
    attn_types = _attn_types(runs)
    known = [name for name in measures if any(layer[name] is not None for run in runs for layer in run["layers"])]
    if not known:
        return None

    def draw(axes: Axes, row: int, column: int) -> None:
        for number, run in enumerate(runs):
            own = [layer for layer in run["layers"] if layer["attn_type"] == attn_types[column]]
            points = [(layer["layer"], layer[known[row]]) for layer in own if layer[known[row]] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), **line_style(number))
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
        _layer_axis(axes)

    titles = [ATTENTION_TYPES[attn_type] for attn_type in attn_types]
    figure = draw_grid(titles, "layer", [measures[name] for name in known], draw, height=2.2)
    if len(runs) > 1:
        add_legend(figure, [Line2D([], [], label=run["name"], **line_style(index)) for index, run in enumerate(runs)])
    return figure


def alignment_error(data: Data) -> Figure | None:
    """AER by decoder layer: best head solid, mean of normalized weights dashed, of raw weights dotted; row i left, i + 1 right.

    The mean of raw weights is drawn where it differs, which it does only where rows need not sum to one (ReLA).
    """
    runs = [(number, run) for number, run in enumerate(data["runs"]) if run["alignment"]]
    if not runs:
        return None
    unequal = [
        number
        for number, run in runs
        if any(abs(layer[f"aer{end}_raw"] - layer[f"aer{end}"]) > 1e-3 for layer in run["alignment"]["layers"] for end in ENDS)
    ]

    def draw(axes: Axes, _: int, column: int) -> None:
        end = list(ENDS)[column]
        for number, run in runs:
            layers = run["alignment"]["layers"]
            for measure, line in ((f"best_head_aer{end}", "-"), (f"aer{end}", "--"), (f"aer{end}_raw", ":")):
                if line != ":" or number in unequal:
                    style = line_style(number) | ({} if line == "-" else {"linestyle": line, "markerfacecolor": "white"})
                    axes.plot([layer["layer"] for layer in layers], [layer[measure] for layer in layers], **style)
        _layer_axis(axes)

    figure = draw_grid(list(ENDS.values()), "decoder layer", ["alignment error rate"], draw, sharey=True, height=2.6)
    handles = [Line2D([], [], label=run["name"], **line_style(number)) for number, run in runs]
    lines: dict[str, Any] = {"best head": "-", "mean of heads": "--", **({"mean of raw weights": ":"} if unequal else {})}
    handles += [Line2D([], [], color="#555555", linestyle=style, label=label) for label, style in lines.items()]
    add_legend(figure, handles, 5)
    return figure


def head_measures(data: Data) -> Figure:
    """A table of every head of every run: a row per head, a column per measure from 0 to 1."""
    runs = data["runs"]
    columns = [
        measure
        for measure in HEAD_MEASURES
        if measure.format in ("alpha", "percent") and any(_values(run, measure.name) for run in runs)
    ]
    tallest = max(len(run["heads"]) for run in runs)
    width = 0.52 * len(columns) + 1.3
    figure = Figure(figsize=(width * len(runs), 0.17 * tallest + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), squeeze=False)
    for axes, run in zip(panels[0], runs, strict=True):
        shades = np.full((len(run["heads"]), len(columns)), np.nan)
        for line, head in enumerate(run["heads"]):
            for column, measure in enumerate(columns):
                value = head.get(measure.name)
                if value is not None:
                    is_alpha = measure.format == "alpha"
                    shades[line, column] = value - is_alpha  # from 0 to 1
                    ink = "white" if shades[line, column] > 0.55 else "#222222"
                    text = format_alpha(value) if is_alpha else format_number(value)
                    axes.text(column, line, text, ha="center", va="center", fontsize=5.5, color=ink)
        axes.imshow(shades, cmap="cividis_r", vmin=0.0, vmax=1.0, aspect="auto")
        titles = [measure.title for measure in columns]
        axes.set_xticks(range(len(columns)), titles, rotation=60, ha="left", rotation_mode="anchor", fontsize=7)
        axes.xaxis.tick_top()
        axes.set_yticks(
            range(len(run["heads"])), [f"{h['attn_type']}.{h['layer']}.{h['head']}" for h in run["heads"]], fontsize=6
        )
        axes.tick_params(length=0)
        axes.set_xlabel(run["name"])
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def _layer_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")


def _attn_types(runs: list[Data]) -> list[str]:
    return [name for name in ATTENTION_TYPES if any(head["attn_type"] == name for run in runs for head in run["heads"])]


def _values(run: Data, name: str) -> list[float]:
    found = [value for head in run["heads"] if (value := head.get(name)) is not None]
    return found if name != "null_rate" or any(found) else []  # zero by construction unless the normalizer is ReLA
