"""`entformer demo`: from one row of scores to two translation models, in minutes, without network. Out: tables and a folder.

    1. what alpha-entmax does to a row of scores                       cli/demo_mappings.py, cli/demo_figure.py
    2. softmax and learned alpha trained on the built-in corpus        cli/demo_training.py, cli/demo_child.py
    3. BLEU, sample sentences, alphas, densities                       cli/demo_results.py
    4. a report of both models, to open in a browser                   cli/demo_report.py

Run again it takes what is finished and goes on with what is not.
"""

import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from entformer.cli.demo_mappings import show_mappings
from entformer.cli.demo_report import SENTENCES, make_report
from entformer.cli.demo_results import WATCHED, evaluate, show_heads, show_samples, show_scores, write_summary
from entformer.cli.demo_training import DemoModel, check_folders, demo_models, stopped_by, train_side_by_side
from entformer.cli.output import writable_folder
from entformer.cli.test_sets import prepared_test_set
from entformer.errors import RunFailed
from entformer.training.console import time_text

FEW = 20  # test sentences of --quick, and of its report


def run(out: Path, *, fresh: bool = False, quick: bool = False) -> int:
    """Show everything; files go to `out`. The exit code: 0, or 128 + the signal that stopped it."""
    began = time.perf_counter()
    console = Console()
    problem: Exception | None = None
    torch.set_num_threads(1)  # batches this small gain nothing from more, and on a busy machine threads wait for each other
    try:
        writable_folder(out)
        models = demo_models(out, quick=quick)
        check_folders(models, fresh=fresh)
        show_mappings(console, out / "demo.png")
        stopped = _train_and_evaluate(models, out, console, quick=quick)
        if not stopped:
            problem = _report(models, out, console, quick=quick)
    except KeyboardInterrupt:
        stopped = int(signal.SIGINT)
    if stopped:
        console.print(f"\nStopped by {stopped_by(stopped)}. Everything so far is saved; go on with:", highlight=False)
        console.print(f"  {shlex.join([program(), *sys.argv[1:]])}", markup=False, highlight=False, soft_wrap=True)
        return 128 + stopped
    _show_places(console, models, out, time.perf_counter() - began, reported=problem is None)
    if problem is not None:
        again = shlex.join([program(), "report", *(str(model.folder.path) for model in models)])
        why = f"{type(problem).__name__}: {problem}".rstrip(".")
        raise RunFailed(f"the report could not be made ({why}); everything else is saved. Try: {again}") from problem
    return 0


def _train_and_evaluate(models: list[DemoModel], out: Path, console: Console, *, quick: bool) -> int:
    """Parts 2 and 3; the signal that stopped them, 0 if none did."""
    training = models[0].recipe.training
    console.print("\n[bold]Two translation models, English to German[/bold], on a small built-in corpus")
    console.print(f"  the same Transformer twice, {training.steps} updates each: one attends by softmax, the")
    console.print("  other by alpha-entmax, and every head of it learns its own alpha")
    if stopped := train_side_by_side(models, console):
        return stopped
    test_set = prepared_test_set("test", models[0].recipe.data.prepared, None)
    if quick:
        test_set = replace(test_set, sources=test_set.sources[:FEW], references=test_set.references[:FEW])
    evaluated = [evaluate(model, test_set, out / f"{model.name}.test.de", console) for model in models]
    for one in evaluated:
        one.model.test_scores = one.named_scores
    show_scores(console, evaluated, test_set)
    show_samples(console, evaluated, test_set)
    show_heads(console, evaluated, trace=min(WATCHED, len(test_set.sources)))
    write_summary(out / "demo.json", evaluated, test_set)
    return 0


def _report(models: list[DemoModel], out: Path, console: Console, *, quick: bool) -> Exception | None:
    """Part 4. What went wrong is given back: whatever it was, the results before it are still to be shown."""
    try:
        make_report(models, out, console, sentences=FEW if quick else SENTENCES)
    except Exception as problem:
        return problem
    return None


def _show_places(console: Console, models: list[DemoModel], out: Path, seconds: float, *, reported: bool) -> None:
    softmax, learned = (shlex.quote(str(model.folder.path)) for model in models)
    name = program()
    report = {
        (out / "report.html").resolve().as_uri(): "the report: open it in a browser; it is one file and needs no network",
        f"{shlex.quote(str(out / 'report.json'))}, {shlex.quote(str(out / 'figures'))}": "its numbers and its figures",
    }
    places = {
        **(report if reported else {}),
        f"{learned}, {softmax}": "the two runs: weights, vocabulary, recipe, metrics.jsonl, train.log",
        shlex.quote(str(out / "demo.json")): "every number above",
        shlex.quote(str(out / "demo.png")): "the figure",
    }
    commands = {
        f"{name} translate {learned}": "type English, read German",
        f"{name} report {softmax} {learned}": "over more sentences, with figures for papers",
        f"{name} score --run {learned} --compare {softmax}": "is the difference more than rng?",
        f"{name} train multi30k-entmax": "the same on real photo captions (downloads Multi30k; takes long)",
        f"{name} config list": "all recipes that are ready to run",
    }
    console.print(f"\n[bold]Where everything is[/bold] (this took {time_text(seconds)})")
    for title, rows in (("", places), ("[bold]How to go on[/bold]", commands)):
        if title:
            console.print(f"\n{title}")
        for what, why in rows.items():
            console.print(f"  {what}", markup=False, highlight=False, soft_wrap=True)
            console.print(f"      {why}", style="dim", markup=False, highlight=False, soft_wrap=True)


def program() -> str:
    """How to call entformer from here: by name if that finds this one, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which("entformer")
    if found is not None and called.exists() and os.path.samefile(found, called):
        return "entformer"
    return shlex.quote(os.path.relpath(called)) if called.name == "entformer" else "entformer"
