"""The tables and figures of docs/learning-alpha.md.

    python experiments/learned_alpha.py collect RUN FILE.json [--beam 5]
    python experiments/learned_alpha.py tables FOLDER [--out FOLDER] [--baseline softmax] [--resamples 1000]

`collect` translates the test set with the last checkpoint of a run, so that nothing was chosen by a score, and keeps what the
tables need: alphas along the training, densities, losses, and for every sentence the counts from which BLEU is computed.
`tables` reads a folder of these files and writes results.md, trajectories.png, distribution.png and longest.png. Runs whose names end in -a
and -b are two seeds of the alphas with the same weights and data otherwise.
"""

import argparse
import base64
import json
import statistics
import zlib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sacrebleu.metrics import BLEU

from entformer.analysis.alphas import HeadId, alpha_marks, initial_alphas
from entformer.analysis.history import alpha_paths, metrics_of
from entformer.checkpoint import LoadedRun, RunFolder, load_run
from entformer.cli.test_sets import prepared_of_run
from entformer.data.batching import collate
from entformer.data.prepared import Prepared
from entformer.decoding.translate import Translator
from entformer.training.density_target import measure

KINDS = ("encoder", "decoder", "cross")
COLORS = {"encoder": "#0072b2", "cross": "#d55e00", "decoder": "#009e73"}
PAIRS = 500  # of the validation set, that densities are measured on
ORDERS = 4  # of the n-grams of BLEU
FALL = 1500  # steps in which alphas fall; `draw_longest` begins there
THIN = 2  # of the logged alphas, every second one is kept
Table = dict[str, list[list[float]]]  # attention type -> layers -> heads


# ---- one run ------------------------------------------------------------------------------------------------------------


def collect(path: Path, beam: int) -> dict[str, Any]:
    """Everything that the tables need to know about a run."""
    run = load_run(path, "last")
    metrics = metrics_of(RunFolder(path).metrics)
    prepared = prepared_of_run(path)
    kinds = {kind: own.alpha_parametrization for kind, own in run.model.config.kinds.items() if own.learned}
    steps, paths = alpha_paths(metrics, -1)
    losses = [(line["step"], round(line["loss"], 4)) for line in metrics if line["kind"] == "valid"]
    counts, signature = sentence_counts(run, prepared, beam)
    return {
        "step": run.step,
        "forms": kinds,
        "final": {kind: rounded(values.tolist()) for kind, values in run.model.alphas().items() if kind in kinds},
        "initial": as_table(initial_alphas(metrics)),
        "density": {kind: round(value, 4) for kind, value in densities(run, prepared).items()},
        "losses": losses,
        "path_steps": (steps or [])[::THIN],
        "paths": {k: [[rounded(path[::THIN]) for path in heads] for heads in layers] for k, layers in (paths or {}).items()},
        "signature": signature,
        "counts": base64.b64encode(zlib.compress(counts.astype("<u2").tobytes(), 9)).decode(),
    }


def rounded(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    return [rounded(value) for value in values] if isinstance(values, list) else round(float(values), 3)


def as_table(alphas: dict[HeadId, float]) -> Table:
    """{(kind, layer, head): alpha} by kind, layer and head."""
    found: Table = {}
    for (kind, layer, _), alpha in sorted(alphas.items()):
        layers = found.setdefault(kind, [])
        if layer == len(layers):
            layers.append([])
        layers[layer].append(round(alpha, 3))
    return found


def densities(run: LoadedRun, prepared: Prepared) -> dict[str, float]:
    """Mean density of the heads of each kind on the first pairs of the validation set."""
    store = prepared.store("valid")
    found = measure(run.model, collate(store, np.arange(min(PAIRS, len(store))))).density
    kinds = groupby(sorted(found), key=lambda place: place[0])
    return {kind: float(torch.cat([found[place] for place in places]).mean()) for kind, places in kinds}


def sentence_counts(run: LoadedRun, prepared: Prepared, beam: int) -> tuple[np.ndarray, str]:
    """Per sentence of the test set: matching n-grams of each order, length of the translation and of the reference."""
    sources, references = prepared.text("test" if "test" in prepared.splits else "valid")
    metric = BLEU(tokenize="none" if prepared.tokenized else "13a", lowercase=prepared.lowercase, effective_order=True)
    rows = []
    for one, reference in zip(Translator(run, beam=beam).translate(sources), references, strict=True):
        score = metric.sentence_score(one.text, [reference])
        rows.append([*score.counts, score.sys_len, score.ref_len])
    return np.array(rows), f"beam:{beam}|{metric.get_signature()}"


# ---- tables -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One run, as `collect` has stored it."""

    name: str
    data: dict[str, Any]
    counts: np.ndarray  # (sentences, 6)

    @classmethod
    def read(cls, path: Path) -> "Row":
        data = json.loads(path.read_text(encoding="utf-8"))
        counts = np.frombuffer(zlib.decompress(base64.b64decode(data["counts"])), "<u2").astype(np.int64)
        return cls(path.stem, data, counts.reshape(-1, ORDERS + 2))

    def alphas(self, which: str) -> dict[HeadId, float]:
        return {
            (kind, layer, head): alpha
            for kind, layers in self.data[which].items()
            for layer, heads in enumerate(layers)
            for head, alpha in enumerate(heads)
        }

    @property
    def correlation(self) -> float | None:
        initial, final = self.alphas("initial"), self.alphas("final")
        places = [place for place in final if place in initial]
        return correlation([initial[place] for place in places], [final[place] for place in places])


def bleu(counts: np.ndarray) -> float:
    """Corpus BLEU of some sentences."""
    lengths = counts[:, ORDERS]
    totals = [int(np.maximum(lengths - order, 0).sum()) for order in range(ORDERS)]
    matches = [int(counts[:, order].sum()) for order in range(ORDERS)]
    score = BLEU.compute_bleu(matches, totals, int(lengths.sum()), int(counts[:, ORDERS + 1].sum()), smooth_method="exp")
    return float(score.score)


def paired_bootstrap(baseline: np.ndarray, system: np.ndarray, resamples: int) -> tuple[float, float, float, float]:
    """Difference of BLEU, its 95% interval, and the p-value of no difference, over resampled sentences."""
    generator = np.random.default_rng(12345)
    difference = bleu(system) - bleu(baseline)
    drawn = []
    for _ in range(resamples):
        chosen = generator.integers(len(system), size=len(system))
        drawn.append(bleu(system[chosen]) - bleu(baseline[chosen]))
    found = np.array(drawn)
    low, high = np.percentile(found, [2.5, 97.5])
    p_value = (1 + int((np.abs(found - found.mean()) >= abs(difference)).sum())) / (resamples + 1)
    return difference, float(low), float(high), p_value


def correlation(first: list[float], second: list[float]) -> float | None:
    if len(first) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(first, second)


def layer_means(row: Row) -> dict[tuple[str, int], float]:
    final = row.alphas("final")
    groups = groupby(sorted(final), key=lambda place: place[:2])
    return {group: statistics.mean(final[place] for place in places) for group, places in groups}


def shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def main_table(rows: list[Row], baseline: Row, resamples: int) -> list[str]:
    lines = [
        f"| run | steps | validation loss | BLEU | against {baseline.name}: difference (95% interval), p "
        "| density: encoder / decoder / cross | alpha: least, mean, most | correlation with the start "
        "| heads at 1 / at 2 / in the tail |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        versus = ""
        if row is not baseline and row.data["step"] == baseline.data["step"]:  # more steps are not better attention
            difference, low, high, p_value = paired_bootstrap(baseline.counts, row.counts, resamples)
            versus = f"{difference:+.2f} ({low:+.2f} to {high:+.2f}), {p_value:.3f}"
        final = row.alphas("final")
        alphas = list(final.values())
        spread = f"{min(alphas):.2f}, {statistics.mean(alphas):.2f}, {max(alphas):.2f}" if alphas else "-"
        marks = list(alpha_marks(final, row.data["forms"]).values())
        ends = " / ".join(str(marks.count(mark)) for mark in ("at 1", "at 2", "sigmoid tail")) if alphas else "-"
        density = " / ".join(shown(row.data["density"].get(kind)) for kind in KINDS)
        loss = row.data["losses"][-1][1] if row.data["losses"] else None
        lines.append(
            f"| {row.name} | {row.data['step']:,} | {shown(loss, 3)} | {bleu(row.counts):.2f} | {versus} | {density} "
            f"| {spread} | {shown(row.correlation)} | {ends} |"
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
        over = []
        for which in ("initial", "final"):
            one, two = first.alphas(which), second.alphas(which)
            over.append(correlation([one[place] for place in sorted(one)], [two[place] for place in sorted(one)]))
        means = layer_means(first), layer_means(second)
        over.append(
            correlation([means[0][group] for group in sorted(means[0])], [means[1][group] for group in sorted(means[0])])
        )
        lines.append(f"| {name.removesuffix('-a')} | {' | '.join(map(shown, over))} |")
    return lines


def draw(rows: list[Row], out: Path) -> None:
    """Figures 2 and 3 of Correia et al. (2019), a row of panels per run; of two seeds the first."""
    learned = [row for row in rows if row.data["final"] and not row.name.endswith("-b")]
    if not learned:
        return
    for name, height in (("trajectories", 1.7), ("distribution", 1.3)):
        figure = Figure(figsize=(9.5, 0.5 + height * len(learned)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(learned), 3, squeeze=False, sharex=name == "distribution", sharey=True)
        for line, row in enumerate(learned):
            steps, paths = row.data["path_steps"], row.data["paths"]
            for axes, kind in zip(panels[line], KINDS, strict=True):
                if name == "distribution":
                    own = [alpha for place, alpha in row.alphas("final").items() if place[0] == kind]
                    axes.hist(own, bins=np.linspace(1.0, 2.0, 21).tolist(), color=COLORS[kind], edgecolor="white")
                else:
                    for heads in paths.get(kind, []):
                        for path in heads:
                            axes.plot(steps, path, color=COLORS[kind], linewidth=0.8, alpha=0.8)
                    axes.set_ylim(0.98, 2.02)
                if line == 0:
                    axes.set_title(f"{kind} {'attention' if kind == 'cross' else 'self-attention'}", fontsize=9)
            panels[line, 0].set_ylabel(f"{row.name}\n{'heads' if name == 'distribution' else 'alpha'}", fontsize=8)
        for axes in panels[-1]:
            axes.set_xlabel("alpha" if name == "distribution" else "step", fontsize=8)
        figure.savefig(out / f"{name}.png", dpi=100, bbox_inches="tight")


def draw_longest(rows: list[Row], out: Path) -> None:
    """Alphas of the longest run after their fall, on an axis of their own: which heads turn, and when."""
    longest = max((row for row in rows if row.data["final"]), key=lambda row: int(row.data["step"]), default=None)
    if longest is None or not longest.data["path_steps"]:
        return
    steps, paths = np.array(longest.data["path_steps"]), longest.data["paths"]
    after = steps >= min(FALL, steps[-1] / 2)
    figure = Figure(figsize=(9.5, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, kind in zip(panels, KINDS, strict=True):
        for layer, heads in enumerate(paths.get(kind, [])):
            for head, path in enumerate(heads):
                shade = 0.35 + 0.65 * layer / max(len(paths[kind]) - 1, 1)
                label = f"layer {layer}" if head == 0 else None
                axes.plot(steps[after], np.array(path)[after], color=COLORS[kind], linewidth=0.9, alpha=shade, label=label)
        axes.set_title(f"{kind} {'attention' if kind == 'cross' else 'self-attention'}", fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.legend(fontsize=7, loc="upper left", frameon=False)
    panels[0].set_ylabel(f"{longest.name}\nalpha", fontsize=8)
    figure.savefig(out / "longest.png", dpi=100, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("collect", help="the results of one run")
    one.add_argument("run", type=Path)
    one.add_argument("file", type=Path)
    one.add_argument("--beam", type=int, default=5)
    several = commands.add_parser("tables", help="tables and figures of several")
    several.add_argument("folder", type=Path)
    several.add_argument("--out", type=Path, default=None, help="where to write; FOLDER if not given")
    several.add_argument("--baseline", default="softmax", help="the run that others are compared with")
    several.add_argument("--resamples", type=int, default=1000)
    given = parser.parse_args()
    if given.command == "collect":
        given.file.parent.mkdir(parents=True, exist_ok=True)
        given.file.write_text(json.dumps(collect(given.run, given.beam)) + "\n", encoding="utf-8")
        return
    rows = [Row.read(path) for path in sorted(given.folder.glob("*.json"))]
    baseline = next((row for row in rows if row.name == given.baseline), rows[0])
    out = given.out or given.folder
    out.mkdir(parents=True, exist_ok=True)
    text = [*main_table(rows, baseline, given.resamples), "", *agreement_table(rows)]
    (out / "results.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    draw(rows, out)
    draw_longest(rows, out)
    print("\n".join(text))


if __name__ == "__main__":
    main()
