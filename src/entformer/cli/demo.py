"""`entformer demo`: from one row of scores to two trained translation models and a report on their heads, without network.

A second run reuses what is finished and resumes what is not.
"""

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from entformer.cli.output import progress_bar, writable_directory
from entformer.errors import RunFailed

if TYPE_CHECKING:
    from torch import Tensor

    from entformer.cli.demo_training import DemoModel
    from entformer.cli.test_sets import TestSet
    from entformer.decoding.scoring import Scores

KEYS = ("the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired")
SCORES = (-0.5, 2.6, 0.6, -1.9, -0.7, 1.9, -1.3, 1.1, -0.9, 1.5)  # made up: how much "it" might attend to each word
NORMALIZERS = {"softmax": 1.0, "α = 1.25": 1.25, "1.5-entmax": 1.5, "sparsemax": 2.0}
HIDDEN_ALPHA = 1.73
COLORS = ("#0072b2", "#d55e00", "#009e73", "#8e44ad", "#b8860b")  # of the highest weights; distinct for color-blind readers
GRAY = "#9a9a9a"
ATTENTION_TYPES = {"encoder": "encoder self", "decoder": "decoder self", "cross": "decoder to source"}
QUICK_SENTENCES = 20  # test sentences of --quick
REPORT_SENTENCES = 200
EXAMPLES = 8  # sentences of the report shown one by one
MIN_ROLE_SCORE = 0.5


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for models and report.")] = Path("entformer-demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train both models again instead of reusing earlier results.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train for twenty steps only, to check that everything works.")
    ] = False,
) -> None:
    """See what alpha-entmax does, train and compare two small translation models, and get a report on their heads.

    Takes a few minutes and needs no network. Rerun the same command to resume after Ctrl-C, or to see the results again.
    """
    import torch

    from entformer.analysis.html_report import write_report
    from entformer.cli.demo_training import check_directories, make_models, train_side_by_side

    start = time.perf_counter()
    console = Console(highlight=False)
    torch.set_num_threads(1)  # batches this small gain nothing from more
    error: Exception | None = None
    try:
        writable_directory(out)
        models = make_models(out, quick=quick)
        check_directories(models, fresh=fresh)
        show_row(console, out / "demo.png")
        console.print("\n[bold]Two translation models, English to German[/bold], on a small built-in corpus")
        console.print(f"  The same Transformer twice, {models[0].steps} steps each: with softmax attention, and with")
        console.print("  alpha-entmax attention in which every head learns its own alpha.")
        stopped = train_side_by_side(models, console)
        if not stopped:
            data = _evaluate(models, out, console, quick=quick)
            try:
                write_report(data, out / "report.html", out / "figures", formats=("png",))
            except Exception as err:  # the results are still shown
                error = err
    except KeyboardInterrupt:
        stopped = int(signal.SIGINT)
    if stopped:
        name = "Ctrl-C" if stopped == signal.SIGINT else "SIGTERM"
        console.print(f"\nStopped by {name}. Everything so far is saved; resume with:")
        console.print(f"  {shlex.join([_program(), *sys.argv[1:]])}", markup=False, soft_wrap=True)
        raise typer.Exit(128 + stopped)
    _show_files(console, models, out, time.perf_counter() - start, reported=error is None)
    if error is not None:
        again = shlex.join([_program(), "report", *(str(model.folder.path) for model in models)])
        why = f"{type(error).__name__}: {error}".rstrip(".")
        raise RunFailed(f"the report could not be written ({why}); everything else is saved. Try: {again}") from error


# ---- one row of scores ---------------------------------------------------------------------------------------------------


def show_row(console: Console, figure: Path) -> None:
    """Shows one row of scores under four normalizers, and alpha learned by gradient descent; draws `figure`."""
    import torch

    from entformer.kernels.entmax.api import entmax
    from entformer.text.numbers import format_alpha

    scores = torch.tensor(SCORES)
    weights = {name: entmax(scores, alpha) for name, alpha in NORMALIZERS.items()}
    longest = max(float(p.max()) for p in weights.values())
    console.print('\n[bold]One row of scores, four normalizers[/bold]: weights of the word "it" (scores made up)')
    table = Table("key", "score", *weights, box=None, padding=(0, 1), pad_edge=False)
    for i, (key, score) in enumerate(zip(KEYS, SCORES, strict=True)):
        table.add_row(key, f"{score:+.1f}", *(_bar(float(p[i]), longest) for p in weights.values()))
    table.add_row("support", "", *(f"{int((p > 0).sum())} of {len(KEYS)}" for p in weights.values()), style="dim")
    console.print(table)
    console.print("A [bold red]0[/bold red] is exact: that key gets no weight and no gradient.")

    target = entmax(scores, HIDDEN_ALPHA)
    raw = torch.tensor(-2.2, requires_grad=True)  # alpha = 1 + sigmoid(raw) starts near 1.1: almost softmax
    path = []
    for _ in range(150):
        alpha = 1.0 + torch.sigmoid(raw)
        (grad,) = torch.autograd.grad((entmax(scores, alpha) - target).square().sum(), raw)
        raw.data -= 10.0 * grad
        path.append(alpha.item())
    found = " → ".join(format_alpha(path[step]) for step in (0, 5, 20, 149))
    console.print("\n[bold]Alpha is learned by gradient descent[/bold], like any parameter")
    console.print(f"  recovering alpha = {HIDDEN_ALPHA} from its weights: {found}")
    alphas = torch.linspace(1.0, 2.0, 201)
    _draw_row(figure, alphas, entmax(scores.expand(len(alphas), -1), alphas.unsqueeze(-1)).T)
    console.print("  a figure of the weights as alpha grows:", Text(str(figure)), soft_wrap=True)


def _bar(weight: float, longest: float) -> Text:
    """Returns a bar and a number; an exact zero is a dot and a bare 0, unlike a small weight."""
    from entformer.text.numbers import format_short

    if weight == 0.0:
        return Text.assemble((f"{'·':<9}", "dim"), ("    0", "bold red"))
    eighths = max(1, round(72 * weight / longest))
    cells = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text.assemble((f"{cells:<9}", "cyan"), f" {format_short(weight):>4}")


def _draw_row(path: Path, alphas: "Tensor", curves: "Tensor") -> None:
    """Draws `curves` (keys, alphas): the weight of each key as alpha grows, with the four normalizers marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    panel = figure.subplots()
    rank = curves[:, 0].argsort(descending=True).argsort().tolist()
    for key, curve, position in zip(KEYS, curves, rank, strict=True):
        color = COLORS[position] if position < len(COLORS) else GRAY
        panel.plot(alphas, curve.where(curve > 0, float("nan")), color=color, linewidth=1.2 if color == GRAY else 2.2)
        if color != GRAY:
            panel.text(0.985, float(curve[0]), key, color=color, ha="right", va="center")
    for name, alpha in NORMALIZERS.items():
        panel.axvline(alpha, color="#cccccc", linewidth=0.8, zorder=0)
        count = int((curves[:, int((alphas < alpha).sum())] > 0).sum())
        label = f"{name}\n{count} of {len(KEYS)} keys"
        panel.text(alpha, 1.02, label, ha="center", va="bottom", fontsize=8.5, transform=panel.get_xaxis_transform())
    panel.set(xlim=(1.0, 2.0), ylim=(0.0, None), xlabel="alpha   (a line ends where the weight becomes exactly 0)")
    panel.yaxis.tick_right()
    panel.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=150)


# ---- two models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Evaluated:
    """A model, its translations of the test set, and its part of the report."""

    model: "DemoModel"
    translations: list[str]
    scores: "Scores"
    report: dict[str, Any]

    def mean(self, measure: str, attn_type: str) -> float:
        """Returns the mean of a measure over the heads of an attention type."""
        values = [float(head[measure]) for head in self.report["heads"] if head["attn_type"] == attn_type]
        return sum(values) / len(values)

    def as_dict(self) -> dict[str, Any]:
        validation = [score for score in self.report["scores"] if score["name"].startswith("validation ")]
        heads = [
            {"kind": head["attn_type"], "layer": head["layer"], "head": head["head"]}
            | {"alpha": head["alpha"], "density": head["density"]}
            for head in self.report["heads"]
        ]
        return {
            "run": str(self.model.folder.path),
            "steps": self.model.steps,
            **self.scores.as_dict(),
            "validation": {score["name"].removeprefix("validation "): score["value"] for score in validation},
            "density": {attn_type: self.mean("density", attn_type) for attn_type in ATTENTION_TYPES},
            "heads": heads,
        }


def _evaluate(models: "Sequence[DemoModel]", out: Path, console: Console, *, quick: bool) -> dict[str, Any]:
    """Translates and scores the test set with both models, analyzes their heads, shows the results and returns the report."""
    from entformer.analysis.data import report_data
    from entformer.cli.report import prepare_run
    from entformer.cli.test_sets import prepared_test_set
    from entformer.cli.translate import translate_all
    from entformer.decoding.scoring import corpus_scores, paired_bootstrap
    from entformer.decoding.translate import Translator
    from entformer.files import write_json, write_text

    test_set = prepared_test_set("test", models[0].recipe.data.prepared, None)
    if quick:
        sources, references = test_set.sources[:QUICK_SENTENCES], test_set.references[:QUICK_SENTENCES]
        test_set = replace(test_set, sources=sources, references=references)
    sentences = QUICK_SENTENCES if quick else REPORT_SENTENCES
    options: dict[str, Any] = {"tokenized": test_set.tokenized, "lowercase": test_set.lowercase}
    translations: list[list[str]] = []
    all_scores, runs = [], []
    with progress_bar(console, "  ") as show:
        for model in models:
            translator = Translator(model.folder.path, window=100)  # a larger window is hardly faster, and its progress jumps
            lines = translate_all(translator, test_set.sources, f"{model.title}: translating test sentences", show)
            write_text(out / f"{model.name}.test.de", "".join(f"{line}\n" for line in lines))
            scores = corpus_scores(lines, test_set.references, **options)
            about = f"on {scores.lines:,} sentences of the test set, beam {model.recipe.decoding.beam}"
            test_scores = [
                {"name": f"test {title}", "value": scores[name].value, "signature": scores[name].signature, "about": about}
                for name, title in (("bleu", "BLEU"), ("chrf", "chrF"))
            ]
            if translations:
                compared = paired_bootstrap(translations[0], lines, test_set.references, **options)
                for score, one in zip(test_scores, compared, strict=False):
                    score["comparison"] = {
                        "baseline": models[0].title,
                        "difference": one.difference,
                        "low": one.difference_low,
                        "high": one.difference_high,
                        "p_value": one.p_value,
                    }
            runs.append(replace(prepare_run(model.folder.path, model.title, sentences=sentences), scores=test_scores))
            translations.append(lines)
            all_scores.append(scores)
        data = report_data(runs, examples=EXAMPLES, title="The demo: softmax and learned alpha", progress=show)
    evaluated = [_Evaluated(*parts) for parts in zip(models, translations, all_scores, data["runs"], strict=True)]
    results = {one.model.name: one.as_dict() for one in evaluated}
    write_json(out / "demo.json", {"test_set": test_set.shown, "sentences": len(test_set.sources), "models": results})
    _show_scores(console, evaluated, test_set)
    _show_samples(console, evaluated, test_set)
    _show_heads(console, evaluated)
    return data


def _show_scores(console: Console, evaluated: Sequence[_Evaluated], test_set: "TestSet") -> None:
    from entformer.text.numbers import format_number

    beam = evaluated[0].model.recipe.decoding.beam
    console.print(f"\n[bold]Translation quality[/bold] on {len(test_set.sources)} unseen test sentences, beam {beam}")
    names = [score["name"] for score in evaluated[0].report["scores"]]
    table = _table("  model", "exact", *(name.replace("validation ", "valid. ") for name in names))
    for one in evaluated:
        exact = sum(line == reference for line, reference in zip(one.translations, test_set.references, strict=True))
        cells = [format_number(score["value"], 1) for score in one.report["scores"]]
        table.add_row(f"  {one.model.title}", str(exact), *cells)
    console.print(table)
    console.print("  exact: translations that equal the reference; valid.: on the validation set.")
    for score in evaluated[-1].report["scores"]:
        if (found := score.get("comparison")) is not None:
            interval = f"95% interval {found['low']:+.1f} to {found['high']:+.1f}, p = {found['p_value']:.3f}"
            console.print(f"  Difference in {score['name']}: {found['difference']:+.1f} ({interval})")
    console.print("  Intervals and p by paired bootstrap over the test sentences.")
    console.print("  The checkpoint was selected on the validation set, not on the test set.")
    for score in evaluated[0].report["scores"][:2]:
        console.print(f"  {score['name']}: {score['signature']}", style="dim", markup=False, soft_wrap=True)


def _show_samples(console: Console, evaluated: Sequence[_Evaluated], test_set: "TestSet") -> None:
    """Shows a question, a subordinate clause, a long compound word and an error, if any."""
    references, indices = test_set.references, range(len(test_set.references))
    candidates = (
        [i for i in indices if references[i].endswith("?")],
        [i for i in indices if ", weil " in references[i] or ", dass " in references[i]],
        sorted(indices, key=lambda i: -max(map(len, references[i].split()))),
        [i for i in indices if evaluated[-1].translations[i] != references[i]],
    )
    chosen: list[int] = []
    for group in candidates:
        chosen += [i for i in group if i not in chosen][:1]
    console.print("\n[bold]Translations[/bold]: some test sentences; the last one has an error, if there is any")
    for i in chosen:
        rows = [("English", Text(test_set.sources[i])), ("reference", Text(references[i]))]
        for one in evaluated:
            mark = ("✓", "green") if one.translations[i] == references[i] else ("✗", "red")
            rows.append((one.model.title, Text.assemble(one.translations[i], "  ", mark)))
        for name, text in rows:
            console.print(Text.assemble((f"  {name:<13} ", "dim"), text), soft_wrap=True)
        console.print()


def _show_heads(console: Console, evaluated: Sequence[_Evaluated]) -> None:
    """Shows the learned alpha and the density of every head, the density of both models, and the most specialized heads."""
    from entformer.text.numbers import format_alpha, format_number, format_percent

    learned = evaluated[-1].report
    console.print("[bold]Learned alphas[/bold]: alpha of every head (1 is softmax, 2 is sparsemax) and its")
    console.print(f"density over {learned['data']['sentences']} test sentences; below, alpha before training")
    grid = _table("  attention", "layer", *(f"head {head}" for head in range(1 + max(own["head"] for own in learned["heads"]))))
    rows: dict[tuple[str, int], list[Text]] = {}
    for head in learned["heads"]:
        before = head["alpha_initial"]
        start = "" if before is None else f"\n{format_alpha(before)}"
        alpha, density = format_alpha(head["alpha"]), f" {format_percent(head['density']):>4}"
        rows.setdefault((head["attn_type"], head["layer"]), []).append(Text.assemble((alpha, "cyan"), (density + start, "dim")))
    for attn_type, title in ATTENTION_TYPES.items():
        for (_, layer), cells in ((key, cells) for key, cells in rows.items() if key[0] == attn_type):
            grid.add_row("" if layer else f"  {title}", str(layer), *cells)
    console.print(grid)
    if learned["alpha_sentence"] is not None:
        console.print(f"  {learned['alpha_sentence']}")
    console.print("\n[bold]Density[/bold]: percentage of keys with nonzero weight (mean number per query)")
    table = _table("  attention", *(one.model.title for one in evaluated))
    for attn_type, title in ATTENTION_TYPES.items():
        both = [(one.mean("density", attn_type), one.mean("support", attn_type)) for one in evaluated]
        table.add_row(f"  {title}", *(f"{format_percent(density)} ({support:.1f})" for density, support in both))
    console.print(table)
    console.print("  All other weights of the learned-alpha model are exactly 0.")
    scored = [
        (*ranking["heads"][0][::-1], one.model.title, ranking["role"])
        for one in evaluated
        for ranking in one.report["roles"]
        if ranking["role"] not in ("broad context", "rarely active")  # how much a head attends to, not to what
    ]
    console.print("\n[bold]What the heads do[/bold]: the most specialized heads (at most 1); the report has all")
    for score, head, title, role in sorted(scored, reverse=True)[:2]:
        if score >= MIN_ROLE_SCORE:
            console.print(f"    {title:<13} {head:<13} {role:<16} {format_number(score)}", markup=False, soft_wrap=True)


def _table(first: str, *others: str) -> Table:
    """Returns a table whose headings wrap on narrow terminals, so that rows keep their names."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", min_width=max(map(len, name.split())))
    return table


def _show_files(console: Console, models: "Sequence[DemoModel]", out: Path, seconds: float, *, reported: bool) -> None:
    from entformer.training.console import time_text

    softmax, learned = (shlex.quote(str(model.folder.path)) for model in models)
    report = {
        (out / "report.html").resolve().as_uri(): "the report, one file to open in a browser",
        f"{shlex.quote(str(out / 'report.json'))}, {shlex.quote(str(out / 'figures'))}": "its numbers and figures",
    }
    files = {
        **(report if reported else {}),
        f"{learned}, {softmax}": "the two runs: weights, vocabulary, recipe, metrics.jsonl, train.log",
        shlex.quote(str(out / "demo.json")): "all numbers above",
        shlex.quote(str(out / "demo.png")): "the figure",
    }
    name = _program()
    commands = {
        f"{name} translate {learned}": "type English, read German",
        f"{name} report {softmax} {learned}": "a report over more sentences, with figures for papers",
        f"{name} score --run {learned} --compare {softmax}": "test whether the difference is significant",
        f"{name} train multi30k-entmax": "train on real photo captions (downloads Multi30k; takes long)",
        f"{name} config list": "list all built-in recipes",
        f"{name} explore {learned}": "type a sentence, change a head's alpha, see the translation change",
    }
    for title, rows in ((f"Files[/bold] (the demo took {time_text(seconds)})", files), ("Next steps[/bold]", commands)):
        console.print(f"\n[bold]{title}")
        for what, why in rows.items():
            console.print(f"  {what}", markup=False, soft_wrap=True)
            console.print(f"      {why}", style="dim", markup=False, soft_wrap=True)


def _program() -> str:
    """Returns how to call this entformer: by name if that finds it, otherwise by its path."""
    called, found = Path(sys.argv[0]), shutil.which("entformer")
    if called.name != "entformer" or (found is not None and called.exists() and os.path.samefile(found, called)):
        return "entformer"
    return shlex.quote(os.path.relpath(called))
