"""Figures about all heads: alphas, densities, diversity, alignment, a table. In: ReportData. Out: a Figure, or None."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from entformer.text.numbers import format_alpha, format_number

Data = dict[str, Any]

ENDS = ("", "_shifted")  # of the names of error rates: row i, row i + 1
KINDS = {"encoder": "encoder self-attention", "cross": "cross attention", "decoder": "decoder self-attention"}
# Okabe and Ito's colors, told apart by color-blind readers; markers tell them apart in grey print.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
KIND_COLOURS = {"encoder": COLORS[0], "cross": COLORS[1], "decoder": COLORS[2]}
MEASURES = {
    "alpha_initial": "α at start",
    "alpha": "α",
    "density": "density",
    "positional.-1": "previous",
    "positional.0": "current",
    "positional.1": "next",
    "merging_pieces": "merges",
    "merging_with_self": "merges, with self",
    "interrogation": "question",
    "interrogation_contrast": "as a statement",
    "first_key": "first",
    "last_key": "end",
    "normalized_entropy": "broad",
    "null_rate": "null",
    "aer": "AER",
    "aer_shifted": "AER shifted",
}


def alpha_trajectories(data: Data) -> Figure | None:
    """Fig. 2: alpha of every head over training; a line of panels per run, a column per kind, a color per layer."""
    runs = [run for run in data["runs"] if run["alpha_paths"]]
    if not runs:
        return None
    kinds = [kind for kind in KINDS if any(kind in run["alpha_paths"] for run in runs)]
    figure, panels = _grid(len(runs), len(kinds), sharey=True)
    layers = max(len(run["alpha_paths"][kind]) for run in runs for kind in kinds if kind in run["alpha_paths"])
    shades = [colormaps["viridis"](0.85 * layer / max(1, layers - 1)) for layer in range(layers)]
    for line, run in enumerate(runs):
        for column, kind in enumerate(kinds):
            axes = panels[line, column]
            for layer, heads in enumerate(run["alpha_paths"].get(kind, [])):
                for path in heads:
                    axes.plot(run["alpha_steps"], path, color=shades[layer], linewidth=1.1)
            _title(axes, KINDS[kind] if line == 0 else "", run["name"] if column == 0 and len(runs) > 1 else "")
            axes.set_ylim(1.0, 2.0)
            axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}")
            )
            if line == len(runs) - 1:
                axes.set_xlabel("training steps")
            if column == 0:
                axes.set_ylabel("α")
    handles = [Line2D([], [], color=shade, label=f"layer {layer}") for layer, shade in enumerate(shades)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, layers), frameon=False)
    return figure


def alpha_distribution(data: Data) -> Figure | None:
    """Fig. 3: how many heads of each kind have which alpha; a column per run with learned alphas."""
    runs = [run for run in data["runs"] if run["alpha_paths"]]
    if not runs:
        return None
    kinds = _kinds(runs)
    figure, panels = _grid(len(kinds), len(runs), sharey=True, height=1.5)
    for column, run in enumerate(runs):
        for line, kind in enumerate(kinds):
            axes = panels[line, column]
            alphas = [head["alpha"] for head in run["heads"] if head["kind"] == kind and head["alpha"] is not None]
            axes.hist(
                alphas, bins=np.linspace(1.0, 2.0, 21).tolist(), color=KIND_COLOURS[kind], edgecolor="white", linewidth=0.5
            )
            axes.set_xlim(1.0, 2.0)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            _title(axes, run["name"] if line == 0 and len(runs) > 1 else "", "")
            if column == 0:
                axes.set_ylabel(f"{KINDS[kind].replace(' ', chr(10), 1)}\nheads")
    for axes in panels[-1]:
        axes.set_xlabel("α")
    return figure


def density_distribution(data: Data) -> Figure:
    """Fig. 4: the share of (head, sentence) pairs with which density; a column per run, a line per kind."""
    kinds = _kinds(data["runs"])
    figure, panels = _grid(len(kinds), len(data["runs"]), sharey="row", height=1.5)
    for column, run in enumerate(data["runs"]):
        for line, kind in enumerate(kinds):
            axes = panels[line, column]
            counts = np.sum([head["density_histogram"] for head in run["heads"] if head["kind"] == kind], axis=0, dtype=float)
            bins = np.size(counts)
            if bins > 1:
                left = np.arange(bins) / bins
                axes.bar(
                    left, counts / max(1.0, counts.sum()), 1 / bins, align="edge", color=KIND_COLOURS[kind], edgecolor="white"
                )
            axes.set_xlim(0, 1)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            _title(axes, run["name"] if line == 0 else "", "")
            if column == 0:
                axes.set_ylabel(f"{KINDS[kind].replace(' ', chr(10), 1)}\nheads × sentences")
    for axes in panels[-1]:
        axes.set_xlabel("density")
    return figure


def density_by_layer(data: Data) -> Figure:
    """Fig. 5: mean density of the heads of each layer, sorted: line k joins the k-th sparsest heads."""
    kinds = _kinds(data["runs"])
    figure, panels = _grid(len(kinds), len(data["runs"]), sharey=True, height=1.7)
    for column, run in enumerate(data["runs"]):
        for line, kind in enumerate(kinds):
            axes = panels[line, column]
            layers = _layers(run, kind)
            for path in zip(*(sorted(_of_layer(run, kind, layer, "density")) for layer in layers), strict=False):
                axes.plot(layers, path, color=KIND_COLOURS[kind], marker="o", markersize=3, linewidth=1.1, alpha=0.85)
            axes.set_ylim(0, 1.03)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
            _title(axes, run["name"] if line == 0 else "", "")
            if column == 0:
                axes.set_ylabel(f"{KINDS[kind].replace(' ', chr(10), 1)}\ndensity")
    for axes in panels[-1]:
        axes.set_xlabel("layer")
    return figure


def alpha_from_start(data: Data) -> Figure | None:
    """Final against initial alpha of every head, a panel per run: on the diagonal a head is where it started."""
    runs = [run for run in data["runs"] if run.get("alpha_correlation")]
    if not runs:
        return None
    figure, panels = _grid(1, len(runs), sharey=True, height=2.8)
    for axes, run in zip(panels[0], runs, strict=True):
        axes.plot([1, 2], [1, 2], color="#bbbbbb", linewidth=0.8, zorder=0)
        for kind, marker in zip(KINDS, MARKERS, strict=False):
            own = [(head["alpha_initial"], head["alpha"]) for head in run["heads"] if head["kind"] == kind]
            pairs = [pair for pair in own if None not in pair]
            if pairs:
                axes.scatter(*zip(*pairs, strict=True), s=18, color=KIND_COLOURS[kind], marker=marker, label=KINDS[kind])
        correlation = run["alpha_correlation"]["all"]
        told = "" if correlation is None else f"\ncorrelation {format_number(correlation, exact=(0.0, 1.0))}"
        _title(axes, f"{run['name']}{told}", "")
        axes.set_xlabel("α before training")
    panels[0, 0].set_ylabel(f"α after {runs[0]['step']:,} updates" if len(runs) == 1 else "α after training")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 3), frameon=False)
    return figure


def head_diversity(data: Data) -> Figure | None:
    """Fig. 6: Jensen-Shannon divergence of the heads of each layer; a column per kind, a line per run, a base per line."""
    bases = {"js_diversity_keys": "base: keys", "js_diversity_heads": "base: heads"}
    return _by_layer(data, {name: f"JS divergence\n{base}" for name, base in bases.items()})


def null_rate(data: Data) -> Figure | None:
    """The share of rows without weight in each layer, as ReLA allows; left out where no run has any."""
    if not any(layer["null_rate"] for run in data["runs"] for layer in run["layers"]):
        return None
    return _by_layer(data, {"null_rate": "null rate\n(rows without weight)"})


def _by_layer(data: Data, measures: dict[str, str]) -> Figure | None:
    """Measures of layers: a line of panels per measure, a column per kind, a curve per run."""
    kinds = _kinds(data["runs"])
    known = [name for name in measures if any(layer[name] is not None for run in data["runs"] for layer in run["layers"])]
    if not known:
        return None
    figure, panels = _grid(len(known), len(kinds), height=2.2)
    for line, name in enumerate(known):
        for column, kind in enumerate(kinds):
            axes = panels[line, column]
            for number, run in enumerate(data["runs"]):
                points = [(layer["layer"], layer[name]) for layer in run["layers"] if layer["kind"] == kind]
                points = [point for point in points if point[1] is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), label=run["name"], **_look(number))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(y=0.12)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
            _title(axes, KINDS[kind] if line == 0 else "", "")
            if line == len(known) - 1:
                axes.set_xlabel("layer")
            if column == 0:
                axes.set_ylabel(measures[name])
    _legend_of_runs(figure, data)
    return figure


def alignment_error(data: Data) -> Figure | None:
    """AER by decoder layer: best head solid, mean of shares dashed, raw mean dotted; from row i left, row i + 1 right.

    The raw mean is drawn where it differs, which it does only where rows need not sum to one (ReLA).
    """
    runs = [(number, run) for number, run in enumerate(data["runs"]) if run["alignment"]]
    if not runs:
        return None
    unequal = [
        number
        for number, run in runs
        if any(abs(layer[f"aer{end}_raw"] - layer[f"aer{end}"]) > 1e-3 for layer in run["alignment"]["layers"] for end in ENDS)
    ]
    figure, panels = _grid(1, 2, sharey=True, height=2.6)
    for axes, end, title in zip(panels[0], ENDS, ("row i: the word is predicted", "row i + 1: the word is read"), strict=True):
        for number, run in runs:
            layers = [layer["layer"] for layer in run["alignment"]["layers"]]
            best, mean = ([layer[f"{name}{end}"] for layer in run["alignment"]["layers"]] for name in ("best_head_aer", "aer"))
            axes.plot(layers, best, **_look(number))
            axes.plot(layers, mean, **{**_look(number), "linestyle": "--", "markerfacecolor": "white"})
            if number in unequal:
                raw = [layer[f"aer{end}_raw"] for layer in run["alignment"]["layers"]]
                axes.plot(layers, raw, **{**_look(number), "linestyle": ":", "markerfacecolor": "white"})
        axes.set_xlabel("decoder layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
        _title(axes, title, "")
    panels[0, 0].set_ylabel("alignment error rate")
    handles = [Line2D([], [], label=run["name"], **_look(number)) for number, run in runs]
    handles += [Line2D([], [], color="#555555", label="best head")]
    handles += [Line2D([], [], color="#555555", linestyle="--", label="mean of shares")]
    handles += [Line2D([], [], color="#555555", linestyle=":", label="raw mean")] if unequal else []
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False)
    return figure


def head_measures(data: Data) -> Figure:
    """Every head of every run with its measures: a line per head, a column per measure, numbers in the cells."""
    runs = data["runs"]
    columns = {name: title for name, title in MEASURES.items() if any(_values(run, name) for run in runs)}
    tallest = max(len(run["heads"]) for run in runs)
    width = 0.52 * len(columns) + 1.3
    figure = Figure(figsize=(width * len(runs), 0.17 * tallest + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), squeeze=False)
    for axes, run in zip(panels[0], runs, strict=True):
        table = np.full((len(run["heads"]), len(columns)), np.nan)
        for line, head in enumerate(run["heads"]):
            for column, name in enumerate(columns):
                value = _value(head, name)
                if value is not None:
                    table[line, column] = value
                    shade = value - 1 if name.startswith("alpha") else value
                    ink = "white" if shade > 0.55 else "#222222"
                    axes.text(column, line, _cell(name, value), ha="center", va="center", fontsize=5.5, color=ink)
        shades = table - np.array([1.0 if name.startswith("alpha") else 0.0 for name in columns])
        axes.imshow(shades, cmap="cividis_r", vmin=0.0, vmax=1.0, aspect="auto")
        axes.set_xticks(range(len(columns)), list(columns.values()), rotation=60, ha="left", rotation_mode="anchor", fontsize=7)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(run["heads"])), [f"{h['kind']}.{h['layer']}.{h['head']}" for h in run["heads"]], fontsize=6)
        axes.tick_params(length=0)
        axes.set_xlabel(run["name"])
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


# ---- parts -----------------------------------------------------------------------------------------------------------------


def _grid(lines: int, columns: int, *, sharey: bool | str = False, height: float = 2.3) -> tuple[Figure, Any]:
    figure = Figure(figsize=(max(3.6, 2.6 * columns + 0.6), height * lines + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(lines, columns, squeeze=False, sharey=sharey, sharex=lines > 1)  # type: ignore[arg-type]


def _title(axes: Axes, left: str, right: str) -> None:
    if left:
        axes.set_title(left, loc="left")
    if right:
        axes.annotate(right, (0.98, 0.96), xycoords="axes fraction", ha="right", va="top", fontsize=8, color="#555555")


def _look(number: int) -> dict[str, Any]:
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.5,
    }


def _legend_of_runs(figure: Figure, data: Data) -> None:
    if len(data["runs"]) > 1:
        handles = [Line2D([], [], label=run["name"], **_look(number)) for number, run in enumerate(data["runs"])]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)


def _kinds(runs: list[Data]) -> list[str]:
    return [kind for kind in KINDS if any(head["kind"] == kind for run in runs for head in run["heads"])]


def _layers(run: Data, kind: str) -> list[int]:
    return sorted({head["layer"] for head in run["heads"] if head["kind"] == kind})


def _of_layer(run: Data, kind: str, layer: int, name: str) -> list[float]:
    return [head[name] for head in run["heads"] if head["kind"] == kind and head["layer"] == layer]


def _cell(name: str, value: float) -> str:
    return format_alpha(value) if name.startswith("alpha") else format_number(value)


def _value(head: Data, name: str) -> float | None:
    field, _, part = name.partition(".")
    value = head[field].get(part) if part else head.get(field)
    return None if value is None else float(value)


def _values(run: Data, name: str) -> list[float]:
    found = [value for head in run["heads"] if (value := _value(head, name)) is not None]
    return found if name != "null_rate" or any(found) else []  # zero by construction unless the normalizer is ReLA
