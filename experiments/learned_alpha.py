"""The tables and figures of docs/learning-alpha.md. In: a folder of runs. Out: results.md, trajectories.png, distribution.png.

    python experiments/learned_alpha.py RUNS [--out FOLDER] [--baseline softmax] [--beam 5] [--resamples 1000]

RUNS holds run folders such as softmax, entmax15, projected-1-a and projected-1-b. Runs whose names end in -a and -b are two
seeds of the alphas with the same weights and data otherwise. The test set is translated once, by the last checkpoint, so that
nothing was chosen by a score, and kept in the run folder. Runs that are under way count with their last checkpoint.
"""

import argparse
import statistics
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from entformer.analysis.alphas import alpha_marks, initial_alphas
from entformer.analysis.history import alpha_paths, metrics_of
from entformer.checkpoint import LoadedRun, RunFolder, load_run
from entformer.cli.test_sets import prepared_of_run
from entformer.data.batching import collate
from entformer.data.prepared import Prepared
from entformer.decoding.scoring import paired_bootstrap
from entformer.decoding.translate import Translator
from entformer.training.density_target import measure

KINDS = ("encoder", "decoder", "cross")
COLORS = {"encoder": "#0072b2", "cross": "#d55e00", "decoder": "#009e73"}
PAIRS = 500  # of the validation set, that densities are measured on


class Row:
    """One run: what the table says about it."""

    def __init__(self, path: Path, beam: int) -> None:
        self.name = path.name
        folder = RunFolder(path)
        run = load_run(path, "last")
        self.step = run.step
        self.metrics = metrics_of(folder.metrics)
        config = run.model.config
        self.forms = {kind: own.alpha_parametrization for kind, own in config.kinds.items() if own.learned}
        learned = {kind: values for kind, values in run.model.alphas().items() if kind in self.forms}
        self.final = {
            (kind, layer, head): alpha
            for kind, layers in learned.items()
            for layer, heads in enumerate(layers.tolist())
            for head, alpha in enumerate(heads)
        }
        self.initial = initial_alphas(self.metrics)
        prepared = prepared_of_run(path)
        self.density = densities(run, prepared)
        self.prepared = prepared
        self.lines = translations(path, run, prepared, beam)

    @property
    def correlation(self) -> float | None:
        places = [place for place in self.final if place in self.initial]
        return correlation([self.initial[place] for place in places], [self.final[place] for place in places])


def densities(run: LoadedRun, prepared: Prepared) -> dict[str, float]:
    """Mean density of the heads of each kind on the first pairs of the validation set."""
    store = prepared.store("valid")
    found = measure(run.model, collate(store, np.arange(min(PAIRS, len(store))))).density
    kinds = groupby(sorted(found), key=lambda place: place[0])
    return {kind: float(torch.cat([found[place] for place in places]).mean()) for kind, places in kinds}


def split_of(prepared: Prepared) -> str:
    return "test" if "test" in prepared.splits else "valid"


def translations(path: Path, run: LoadedRun, prepared: Prepared, beam: int) -> list[str]:
    """Of the test set, by the last checkpoint; made again only if the checkpoint is another one."""
    file = path / f"test-beam{beam}-step{run.step}.txt"
    if not file.is_file():
        sources, _ = prepared.text(split_of(prepared))
        lines = [one.text for one in Translator(run, beam=beam).translate(sources)]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file.read_text(encoding="utf-8").splitlines()


def correlation(first: list[float], second: list[float]) -> float | None:
    if len(first) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(first, second)


def layer_means(row: Row) -> dict[tuple[str, int], float]:
    groups = groupby(sorted(row.final), key=lambda place: place[:2])
    return {group: statistics.mean(row.final[place] for place in places) for group, places in groups}


def shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def main_table(rows: list[Row], baseline: Row, resamples: int) -> list[str]:
    lines = [
        f"| run | steps | BLEU | against {baseline.name}: difference, p | density: encoder / decoder / cross "
        "| alpha: least, mean, most | correlation with the start | heads at 1 / at 2 / in the tail |",
        "|---|---|---|---|---|---|---|---|",
    ]
    _, references = baseline.prepared.text(split_of(baseline.prepared))
    how: dict[str, Any] = {"tokenized": baseline.prepared.tokenized, "lowercase": baseline.prepared.lowercase}
    for row in rows:
        found = paired_bootstrap(baseline.lines, row.lines, references, resamples=resamples, **how)
        own = next(one for one in found if one.name in ("bleu", "tokenized_bleu"))
        versus = "" if row is baseline else f"{own.difference:+.2f}, {own.p_value:.3f}"
        alphas = list(row.final.values())
        spread = f"{min(alphas):.2f}, {statistics.mean(alphas):.2f}, {max(alphas):.2f}" if alphas else "-"
        marks = list(alpha_marks(row.final, row.forms).values())
        ends = " / ".join(str(marks.count(mark)) for mark in ("at 1", "at 2", "sigmoid tail")) if alphas else "-"
        density = " / ".join(shown(row.density.get(kind)) for kind in KINDS)
        score = f"{own.system:.2f} ± {own.system_ci95:.2f}"
        lines.append(
            f"| {row.name} | {row.step:,} | {score} | {versus} | {density} | {spread} | {shown(row.correlation)} | {ends} |"
        )
    return lines


def agreement_table(rows: list[Row]) -> list[str]:
    named = {row.name: row for row in rows}
    lines = [
        "| pair of alpha seeds | initial alphas, all heads | final alphas, all heads | means of layers and types |",
        "|---|---|---|---|",
    ]
    for name, first in named.items():
        second = named.get(f"{name.removesuffix('-a')}-b")
        if not name.endswith("-a") or second is None:
            continue
        places = sorted(first.final)
        over = [
            correlation([one[place] for place in places], [two[place] for place in places])
            for one, two in ((first.initial, second.initial), (first.final, second.final))
        ]
        means = layer_means(first), layer_means(second)
        over.append(
            correlation([means[0][group] for group in sorted(means[0])], [means[1][group] for group in sorted(means[0])])
        )
        lines.append(f"| {name.removesuffix('-a')} | {' | '.join(map(shown, over))} |")
    return lines


def draw(rows: list[Row], out: Path) -> None:
    """Figures 2 and 3 of Correia et al. (2019), a row of panels per run."""
    learned = [row for row in rows if row.final]
    for name, height in (("trajectories", 1.7), ("distribution", 1.3)):
        figure = Figure(figsize=(9.5, 0.5 + height * len(learned)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(learned), 3, squeeze=False, sharex=name == "distribution", sharey=True)
        for line, row in enumerate(learned):
            steps, paths = alpha_paths(row.metrics, -1)
            for axes, kind in zip(panels[line], KINDS, strict=True):
                if name == "distribution":
                    own = [alpha for place, alpha in row.final.items() if place[0] == kind]
                    axes.hist(own, bins=np.linspace(1.0, 2.0, 21).tolist(), color=COLORS[kind], edgecolor="white")
                elif paths is not None and steps is not None:
                    for heads in paths.get(kind, []):
                        for path in heads:
                            axes.plot(steps, path, color=COLORS[kind], linewidth=0.8, alpha=0.8)
                    axes.set_ylim(0.98, 2.02)
                if line == 0:
                    axes.set_title(f"{kind} {'attention' if kind == 'cross' else 'self-attention'}", fontsize=9)
            panels[line, 0].set_ylabel(f"{row.name}\n{'heads' if name == 'distribution' else 'alpha'}", fontsize=8)
        for axes in panels[-1]:
            axes.set_xlabel("alpha" if name == "distribution" else "step", fontsize=8)
        figure.savefig(out / f"{name}.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=None, help="where to write; RUNS if not given")
    parser.add_argument("--baseline", default="softmax", help="the run that others are compared with")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--resamples", type=int, default=1000)
    given = parser.parse_args()
    folders = [
        path for path in sorted(given.runs.iterdir()) if (path / "model.json").is_file() and (path / "last.json").is_file()
    ]
    rows = [Row(path, given.beam) for path in folders]
    baseline = next((row for row in rows if row.name == given.baseline), rows[0])
    out = given.out or given.runs
    out.mkdir(parents=True, exist_ok=True)
    text = [*main_table(rows, baseline, given.resamples), "", *agreement_table(rows)]
    (out / "results.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    draw(rows, out)
    print("\n".join(text))


if __name__ == "__main__":
    main()
