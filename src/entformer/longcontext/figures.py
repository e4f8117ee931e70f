"""Figures of sweeps and of the theory, with matplotlib."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from entformer.longcontext.methods import scaled_heads, sort_methods
from entformer.longcontext.theory import MAPPINGS, ROWS, Spread

__all__ = ["draw_language", "draw_scaling", "draw_sweep", "draw_theory", "sweep_figures"]

# Colors that are distinct in print and for color-blind readers; positions have line styles.
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#8e44ad",
    "#b8860b",
    "#56b4e9",
    "#222222",
    "#cc79a7",
    "#7f7f7f",
    "#66a61e",
    "#a6761d",
)
STYLES = ("-", "--", ":", "-.")
FORMATS: dict[str, dict[Any, Any] | None] = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Format -> metadata without a date, so that equal data give equal files."""
EDITABLE: dict[Any, Any] = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "entformer"}
"""Keeps text editable."""
Record = dict[str, Any]


def sweep_figures(records: Sequence[Record], name: str) -> dict[str, bytes]:
    """Returns file names (starting with `name`) and contents: curves and learned scaling, each in three formats."""
    drawn = {}
    with rc_context(EDITABLE):
        for kind, figure in (("curves", draw_sweep(records)), ("scaling", draw_scaling(records))):
            if figure is None:
                continue
            for ending, dated in FORMATS.items():
                content = BytesIO()
                figure.savefig(content, format=ending, dpi=200, metadata=dated)
                figure.set_layout_engine("none")  # the layout is done; computing it again takes as long as drawing
                drawn[f"{name}-{kind}.{ending}"] = content.getvalue()
    return drawn


def draw_language(models: Sequence[Record]) -> Figure:
    """Plots perplexity against context length and against position, and retrieval of a fact, a line per language model."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    for color, one in zip(COLORS * len(models), models, strict=False):
        left.plot(list(one["perplexity"]), list(one["perplexity"].values()), "o-", color=color, label=one["name"])
        middle.plot(*zip(*one["by_position"], strict=True), color=color)
        middle.axvline(one["train_length"], color="#bbbbbb", linewidth=0.8)
        means = {n: 100 * sum(found.values()) / len(found) for n, found in one["needle"].items()}
        right.plot(list(means), list(means.values()), "o-", color=color)
    names = (
        ("tokens of context", "perplexity, same tokens"),
        ("position", "perplexity"),
        ("tokens of context", "facts retrieved, %"),
    )
    for axes, (x, y) in zip((left, middle, right), names, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    left.legend(frameon=False, fontsize=8)
    return figure


def draw_sweep(records: Sequence[Record]) -> Figure:
    """Plots accuracy, entropy and support size against length: a line per method and positions, a band over its seeds."""
    methods = sort_methods(record["method"] for record in records)
    positions = list(dict.fromkeys(record["positions"] for record in records))
    single_answer = all(record["exact_match"] == record["token_accuracy"] for record in records)
    panels: list[tuple[str, Callable[[Record], float | None]]] = [
        ("accuracy, %" if single_answer else "token accuracy, %", lambda r: 100.0 * float(r["token_accuracy"])),
        ("largest weight (mean of heads)", lambda r: _of_heads(r, "top"))
        if single_answer
        else ("exact match, %", lambda r: 100.0 * float(r["exact_match"])),
        ("attention entropy / ln n (mean of heads)", lambda r: _of_heads(r, "entropy")),
        ("keys with nonzero weight (mean of heads)", lambda r: _of_heads(r, "support")),
    ]
    figure = Figure(figsize=(12.5, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2)
    for panel, (title, value) in zip(grid.flat, panels, strict=True):
        for number, method in enumerate(methods):
            for style, position in enumerate(positions):
                mine = [r for r in records if r["method"] == method and r["positions"] == position]
                label = method if len(positions) == 1 else f"{method}, {position}"
                _line(panel, mine, value, label, COLORS[number % len(COLORS)], STYLES[style % len(STYLES)])
        _finish(panel, title, [record["length"] for record in records])
        if title.endswith("%"):
            panel.set_ylim(-3.0, 103.0)
        panel.axvline(records[0]["train_length"], color="#aaaaaa", linewidth=0.8, linestyle=":")
    grid[1, 1].set_yscale("log", base=2)
    grid[1, 1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    seeds = len({record["seed"] for record in records})
    title = f"{records[0]['task']}: trained up to length {records[0]['train_length']} (dotted), mean and range of {seeds} seeds"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    return figure


def draw_scaling(records: Sequence[Record]) -> Figure | None:
    """Plots learned beta and gamma of every scaled head at the longest length; returns None if no head is scaled."""
    longest = max(record["length"] for record in records)
    scaled = [r for r in records if r["length"] == longest and r.get("heads") and r["heads"].get("beta")]
    if not scaled:
        return None
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    names = list(dict.fromkeys((r["method"], r["positions"]) for r in scaled))
    for panel, what in zip(panels, ("beta", "gamma"), strict=True):
        for number, (method, place) in enumerate(names):
            for record in scaled:
                if (record["method"], record["positions"]) != (method, place):
                    continue
                heads = [layer[head] for layer in record["heads"][what] for head in scaled_heads(place, len(layer))]
                places = [number + 0.6 * (head + 1) / (len(heads) + 1) - 0.3 for head in range(len(heads))]
                panel.scatter(places, heads, s=18, alpha=0.7, color=COLORS[number % len(COLORS)], linewidths=0)
        panel.axhline(0.0, color="#aaaaaa", linewidth=0.8)
        panel.set_xticks(range(len(names)), [f"{method}\n{place}" for method, place in names], fontsize=8)
        panel.set_title(what, loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    title = f"{scaled[0]['task']}: learned scaling (a dot per head and seed; mean over tokens at length {longest})"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def draw_theory(found: Sequence[Spread], path: Path) -> None:
    """Plots largest weight, entropy and support against n."""
    figure = Figure(figsize=(13.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(ROWS), 3)
    for row, (kind, about) in enumerate(ROWS.items()):
        for panel, (what, title) in zip(
            grid[row],
            (("top", "largest weight"), ("entropy", "entropy / ln n"), ("support", "keys with nonzero weight")),
            strict=True,
        ):
            for number, mapping in enumerate(MAPPINGS):
                mine = [spread for spread in found if spread.rows == kind and spread.mapping == mapping]
                ys = [getattr(spread, what) for spread in mine]
                panel.plot(
                    [spread.n for spread in mine], ys, STYLES[number], color=COLORS[number], linewidth=2.0, label=mapping
                )
            _finish(panel, f"{title}: {about}", [spread.n for spread in found])
        grid[row][2].set_yscale("log", base=2)
        grid[row][2].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(MAPPINGS), frameon=False, fontsize=9)
    figure.suptitle("Attention weights of one row as the context grows, scores unchanged", x=0.01, ha="left", fontsize=13)
    figure.savefig(path, dpi=150)


def _of_heads(record: Record, what: str) -> float | None:
    heads = record.get("heads")
    if not heads or not heads.get(what):
        return None
    values = [float(value) for layer in heads[what] for value in layer]
    return sum(values) / len(values)


def _line(
    panel: Axes, records: Sequence[Record], value: Callable[[Record], float | None], label: str, color: str, style: str
) -> None:
    """Draws the mean over seeds and their range."""
    points: dict[int, list[float]] = {}
    for record in records:
        if (y := value(record)) is not None:
            points.setdefault(record["length"], []).append(y)
    if not points:
        return
    lengths = sorted(points)
    means = [sum(points[length]) / len(points[length]) for length in lengths]
    low, high = ([pick(points[length]) for length in lengths] for pick in (min, max))
    panel.fill_between(lengths, low, high, color=color, alpha=0.12, linewidth=0)
    panel.plot(lengths, means, color=color, linestyle=style, marker="o", markersize=3.5, label=label)


def _finish(panel: Axes, title: str, lengths: Sequence[int]) -> None:
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_xscale("log", base=2)
    marks = sorted(set(lengths))
    panel.xaxis.set_major_locator(FixedLocator(marks[:: -(-len(marks) // 7)]))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("length")
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
