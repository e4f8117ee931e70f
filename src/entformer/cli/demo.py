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
    from entformer.cli.demo_training import DemoModel
    from entformer.cli.test_sets import TestSet
    from entformer.decoding.records import AttentionRecord, HeadKey
    from entformer.decoding.scoring import Scores

ATTENTION_TYPES = {"encoder": "encoder self", "decoder": "decoder self", "cross": "decoder to source"}
QUICK_SENTENCES = 20  # test sentences of --quick
DENSITY_SENTENCES = 50
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

    from entformer.cli.demo_row import show_row
    from entformer.cli.demo_training import check_directories, make_models

    start = time.perf_counter()
    console = Console(highlight=False)
    torch.set_num_threads(1)  # batches this small gain nothing from more
    error: Exception | None = None
    try:
        writable_directory(out)
        models = make_models(out, quick=quick)
        check_directories(models, fresh=fresh)
        show_row(console, out / "demo.png")
        stopped, scores = _train_and_evaluate(models, out, console, quick=quick)
        if not stopped:
            try:
                write_demo_report(models, scores, out, console, sentences=QUICK_SENTENCES if quick else REPORT_SENTENCES)
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


# ---- two models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """Nonzero weights of one or several heads. Keys a query may not attend to (later ones in the decoder) do not count."""

    nonzero: int = 0
    allowed: int = 0
    queries: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.nonzero + other.nonzero, self.allowed + other.allowed, self.queries + other.queries)

    @property
    def density(self) -> float:
        return self.nonzero / max(self.allowed, 1)


@dataclass(frozen=True)
class Evaluation:
    """Results of one model on the test set."""

    model: "DemoModel"
    translations: list[str]
    validation: list[dict[str, Any]]  # scores on the validation set: {"name", "value", "signature", "about"}
    scores: "Scores"  # on the test set
    alphas: "dict[HeadKey, float]"
    heads: "dict[HeadKey, Count]"

    @property
    def test_scores(self) -> list[dict[str, Any]]:
        """The scores on the test set, as the report shows them."""
        about = f"on {self.scores.lines:,} sentences of the test set, beam {self.model.recipe.decoding.beam}"
        return [
            {"name": f"test {name}", "value": score.value, "signature": score.signature, "about": about}
            for name, score in (("BLEU", self.scores["bleu"]), ("chrF", self.scores["chrf"]))
        ]

    def count(self, attn_type: str) -> Count:
        return sum((count for key, count in self.heads.items() if key.kind == attn_type), Count())


def _train_and_evaluate(
    models: "Sequence[DemoModel]", out: Path, console: Console, *, quick: bool
) -> tuple[int, list[list[dict[str, Any]]]]:
    """Returns the signal that stopped the training (0 if none did) and the test scores of each model."""
    from entformer.cli.demo_training import train_side_by_side
    from entformer.cli.test_sets import prepared_test_set
    from entformer.files import write_json

    console.print("\n[bold]Two translation models, English to German[/bold], on a small built-in corpus")
    console.print(f"  The same Transformer twice, {models[0].steps} steps each: with softmax attention, and with")
    console.print("  alpha-entmax attention in which every head learns its own alpha.")
    if stopped := train_side_by_side(models, console):
        return stopped, []
    test_set = prepared_test_set("test", models[0].recipe.data.prepared, None)
    if quick:
        sources, references = test_set.sources[:QUICK_SENTENCES], test_set.references[:QUICK_SENTENCES]
        test_set = replace(test_set, sources=sources, references=references)
    evaluated = [_evaluate(model, test_set, out / f"{model.name}.test.de", console) for model in models]
    _show_scores(console, evaluated, test_set)
    _show_samples(console, evaluated, test_set)
    _show_heads(console, evaluated, sentences=min(DENSITY_SENTENCES, len(test_set.sources)))
    results = {one.model.name: _as_dict(one) for one in evaluated}
    write_json(out / "demo.json", {"test_set": test_set.shown, "sentences": len(test_set.sources), "models": results})
    return 0, [one.test_scores for one in evaluated]


def _evaluate(model: "DemoModel", test_set: "TestSet", file: Path, console: Console) -> Evaluation:
    """Translates and scores the test set with the best checkpoint, and records the attention of some sentences."""
    from entformer.analysis.history import metrics_of, validation_scores
    from entformer.decoding.scoring import corpus_scores
    from entformer.decoding.translate import Translator
    from entformer.files import write_text

    translator = Translator(model.folder.path, window=100)  # a larger window is hardly faster and shows progress later
    done = []
    with progress_bar(console, "  ") as show:
        for translation in translator.translate(test_set.sources):
            done.append(translation)
            show(f"{model.title}: translating test sentences", len(done), len(test_set.sources))
    lines = [translation.text for translation in done]
    write_text(file, "".join(f"{line}\n" for line in lines))
    records = [record for translation in done[:DENSITY_SENTENCES] for record in translator.attention(translation)]
    return Evaluation(
        model=model,
        translations=lines,
        validation=validation_scores(model.folder, metrics_of(model.folder.metrics), translator.run.step),
        scores=corpus_scores(lines, test_set.references, tokenized=test_set.tokenized, lowercase=test_set.lowercase),
        alphas=records[0].alphas,
        heads=count_attention(records),
    )


def count_attention(records: "Sequence[AttentionRecord]") -> "dict[HeadKey, Count]":
    """Returns the nonzero weights of every head over all records."""
    counts: dict[HeadKey, Count] = {}
    for record in records:
        for key, rows in record.heads.items():
            n = rows.queries
            allowed = n * (n + 1) // 2 if key.kind == "decoder" else n * rows.keys
            nonzero = int((rows.weight > 0).sum())  # softmax may round a weight to zero
            counts[key] = counts.get(key, Count()) + Count(nonzero, allowed, n)
    return counts


def _as_dict(one: Evaluation) -> dict[str, Any]:
    return {
        "run": str(one.model.folder.path),
        "steps": one.model.steps,
        **one.scores.as_dict(),
        "validation": {score["name"].removeprefix("validation "): score["value"] for score in one.validation},
        "density": {attn_type: one.count(attn_type).density for attn_type in ATTENTION_TYPES},
        "heads": [{**key._asdict(), "alpha": one.alphas.get(key), "density": n.density} for key, n in one.heads.items()],
    }


def _show_scores(console: Console, evaluated: Sequence[Evaluation], test_set: "TestSet") -> None:
    from entformer.text.numbers import format_number

    beam = evaluated[0].model.recipe.decoding.beam
    console.print(f"\n[bold]Translation quality[/bold] on {len(test_set.sources)} unseen test sentences, beam {beam}")
    values = [{score["name"]: score["value"] for score in (*one.test_scores, *one.validation)} for one in evaluated]
    names = list(dict.fromkeys(name for own in values for name in own))  # the report shows the same names and scores
    table = _table("  model", *names, "exact matches")
    for one, own in zip(evaluated, values, strict=True):
        exact = sum(line == reference for line, reference in zip(one.translations, test_set.references, strict=True))
        cells = [format_number(own.get(name), 1) for name in names]
        table.add_row(f"  {one.model.title}", *cells, f"{exact} of {len(test_set.references)}")
    console.print(table)
    console.print("  The checkpoint was selected on the validation set, not on the test set.")
    for score in evaluated[0].test_scores:
        console.print(f"  {score['name']}: {score['signature']}", style="dim", markup=False, soft_wrap=True)


def _show_samples(console: Console, evaluated: Sequence[Evaluation], test_set: "TestSet") -> None:
    console.print("\n[bold]Translations[/bold]: some test sentences; the last one has an error, if there is any")
    for i in _sample_lines(test_set.references, evaluated[-1].translations):
        rows = [("English", Text(test_set.sources[i])), ("reference", Text(test_set.references[i]))]
        for one in evaluated:
            mark = ("✓", "green") if one.translations[i] == test_set.references[i] else ("✗", "red")
            rows.append((one.model.title, Text.assemble(one.translations[i], "  ", mark)))
        for name, text in rows:
            console.print(Text.assemble((f"  {name:<13} ", "dim"), text), soft_wrap=True)
        console.print()


def _sample_lines(references: Sequence[str], translations: Sequence[str]) -> list[int]:
    """Selects a question, a subordinate clause, a long compound word and an error, if any."""
    indices = range(len(references))
    candidates = (
        [i for i in indices if references[i].endswith("?")],
        [i for i in indices if ", weil " in references[i] or ", dass " in references[i]],
        sorted(indices, key=lambda i: -max(map(len, references[i].split()))),
        [i for i in indices if translations[i] != references[i]],
    )
    chosen: list[int] = []
    for group in candidates:
        chosen += [i for i in group if i not in chosen][:1]
    return chosen


def _show_heads(console: Console, evaluated: Sequence[Evaluation], sentences: int) -> None:
    """Shows the learned alpha and the density of every head, and the density of both models."""
    from entformer.analysis.alphas import initial_alphas
    from entformer.analysis.history import learned_alphas_of, metrics_of
    from entformer.text.numbers import format_alpha, format_percent

    learned = evaluated[-1]
    console.print("[bold]Learned alphas[/bold]: alpha of every head (1 is softmax, 2 is sparsemax) and its")
    console.print(f"density over {sentences} test sentences; below, alpha before training")
    initial = initial_alphas(metrics_of(learned.model.folder.metrics))
    grid = _table("  attention", "layer", *(f"head {head}" for head in range(1 + max(key.head for key in learned.heads))))
    rows: dict[tuple[str, int], list[Text]] = {}
    for key, count in sorted(learned.heads.items(), key=lambda item: (list(ATTENTION_TYPES).index(item[0].kind), *item[0][1:])):
        before = initial.get((key.kind, key.layer, key.head))
        start = "" if before is None else f"\n{format_alpha(before)}"
        alpha, density = format_alpha(learned.alphas[key]), f" {format_percent(count.density):>4}"
        rows.setdefault((key.kind, key.layer), []).append(Text.assemble((alpha, "cyan"), (density + start, "dim")))
    for (attn_type, layer), cells in rows.items():
        grid.add_row("" if layer else f"  {ATTENTION_TYPES[attn_type]}", str(layer), *cells)
    console.print(grid)
    final = {(key.kind, key.layer, key.head): alpha for key, alpha in learned.alphas.items()}
    alphas = learned_alphas_of(learned.model.folder, learned.model.recipe.model, final, learned.model.steps)
    if alphas["alpha_sentence"] is not None:
        console.print(f"  {alphas['alpha_sentence']}")
    console.print("\n[bold]Density[/bold]: percentage of keys with nonzero weight (mean number of keys per query)")
    table = _table("  attention", *(one.model.title for one in evaluated))
    for attn_type, title in ATTENTION_TYPES.items():
        counts = [one.count(attn_type) for one in evaluated]
        per_query = [f"{c.nonzero / max(c.queries, 1):.1f} of {c.allowed / max(c.queries, 1):.1f}" for c in counts]
        table.add_row(
            f"  {title}", *(f"{format_percent(c.density)} ({mean})" for c, mean in zip(counts, per_query, strict=True))
        )
    console.print(table)
    console.print("  All other weights of the learned-alpha model are exactly 0.")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


# ---- the report ----------------------------------------------------------------------------------------------------------


def write_demo_report(
    models: "Sequence[DemoModel]", scores: Sequence[list[dict[str, Any]]], out: Path, console: Console, *, sentences: int
) -> None:
    """Writes the page of `entformer report` for both models over a few sentences, and shows the most specialized heads."""
    from entformer.analysis.data import report_data
    from entformer.analysis.html_report import write_report
    from entformer.cli.report import prepare_run
    from entformer.text.numbers import format_number

    console.print(f"\n[bold]What the heads do[/bold]: a report on both models over {sentences} test sentences")
    with progress_bar(console, "  ") as show:
        runs = [
            replace(prepare_run(model.folder.path, model.title, sentences=sentences), scores=own)
            for model, own in zip(models, scores, strict=True)
        ]
        data = report_data(runs, examples=EXAMPLES, title="The demo: softmax and learned alpha", progress=show)
        show("drawing the figures")
        write_report(data, out / "report.html", out / "figures", formats=("png",))
    found = specialized_heads(data)
    console.print(
        "  The most specialized heads (1 is the maximum):" if found else "  No head is specialized; the page ranks all."
    )
    for score, run, head, role in found[:2]:
        console.print(f"    {run:<13} {head:<13} {role:<16} {format_number(score)}", markup=False, soft_wrap=True)


def specialized_heads(data: dict[str, Any]) -> list[tuple[float, str, str, str]]:
    """Returns (score, run, head, role) of heads with a high score, best first, each role and each head once."""
    scored = [
        (score, run["name"], head, ranking["role"])
        for run in data["runs"]
        for ranking in run["roles"]
        if ranking["role"] not in ("broad context", "rarely active")  # how much a head attends to, not to what
        for head, score in ranking["heads"]
        if score >= MIN_ROLE_SCORE
    ]
    best: list[tuple[float, str, str, str]] = []
    for found in sorted(scored, key=lambda found: -found[0]):
        if all(found[3] != other[3] and found[1:3] != other[1:3] for other in best):
            best.append(found)
    return best


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
