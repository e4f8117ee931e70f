"""Training of the demo's two models side by side, each in a process with one thread.

Two processes use two cores, and the result does not depend on the number of cores. Progress is read from the metrics.jsonl that
each training writes.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from entformer.checkpoint.folder import RunFolder
from entformer.cli.output import ShowProgress, progress_bar
from entformer.errors import ArgumentError, RunFailed
from entformer.text.numbers import format_alpha, format_percent
from entformer.training.console import time_text
from entformer.training.corpora import open_prepared
from entformer.training.recipe import Recipe
from entformer.training.recipe_file import load_recipe
from entformer.training.resume import changes
from entformer.training.signals import StopSignals

DATA = "data"  # the prepared corpus, in the output directory
POLL_SECONDS = 0.5
PLAIN_LINES = 20  # of progress, without a terminal
# Runs `entformer train`, and stops it when the demo is gone: standard input is a pipe whose other end only the demo holds.
CHILD = "from entformer.cli import demo_training, main; demo_training.stop_with_parent(); main.main()"
QUICK = (
    *("training.steps=20", "training.warmup=5", "training.validate_every=10", "training.log_every=5"),
    *("training.validate_beam=0", "training.metric=loss", "decoding.beam=2"),  # too few steps for useful translations
)
MODELS = {
    "softmax": ("softmax", ("name=demo-softmax", "model.attention.normalizer=softmax", "model.attention.alpha=null")),
    "entmax": ("learned alpha", ("name=demo-entmax",)),
}


@dataclass
class Metrics:
    """The latest values of a metrics.jsonl."""

    step: int = 0
    seconds: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    alphas: tuple[float, float] | None = None  # lowest and highest
    bleu: float | None = None  # of the last validation

    def describe(self) -> str:
        if self.loss is None or self.accuracy is None:
            return "starting"
        learned = f", alpha {format_alpha(self.alphas[0])} to {format_alpha(self.alphas[1])}" if self.alphas else ""
        validated = "" if self.bleu is None else f", validation BLEU {self.bleu:.1f}"
        return f"loss {self.loss:.2f}, accuracy {format_percent(self.accuracy)}{learned}{validated}"


@dataclass
class DemoModel:
    """One of the two models."""

    name: str
    title: str
    settings: tuple[str, ...]
    folder: RunFolder
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.recipe.training.steps

    def finished(self) -> bool:
        """Returns whether the last checkpoint exists and is validated."""
        latest = self.folder.latest()
        return latest is not None and latest.step >= self.steps and latest.state()["validated"] == latest.step


def make_models(out: Path, *, quick: bool) -> list[DemoModel]:
    """Returns the two models, which differ in their normalizer only."""
    data = f"data.prepared={json.dumps(str(out / DATA), ensure_ascii=False)}"
    models = []
    for name, (title, own) in MODELS.items():
        settings = (*own, data, *(QUICK if quick else ()))
        models.append(DemoModel(name, title, settings, RunFolder(out / name), load_recipe("demo", settings)))
    return models


def check_directories(models: Sequence[DemoModel], *, fresh: bool) -> None:
    """Removes earlier results if `fresh`; otherwise checks that they can be used."""
    for model in models:
        model.folder.create()  # refuses a directory with other content
        if fresh:
            with model.folder.locked():
                _clear(model.folder)
        try:
            changes(model.folder, model.recipe)
        except ArgumentError as err:
            raise ArgumentError(
                f"{model.folder.path} contains a model that was trained with other settings; "
                "add --fresh to train again, or choose another --out."
            ) from err


def _clear(folder: RunFolder) -> None:
    """Removes what training and preparing write, and nothing else."""
    for path in (folder.checkpoints, folder.validations, folder.averaged):
        shutil.rmtree(path, ignore_errors=True)
    pointers = (folder.path / "best.json", folder.path / "last.json")
    for file in (folder.recipe, folder.model, folder.subwords, folder.metrics, folder.log, *pointers):
        file.unlink(missing_ok=True)
    data = folder.path.parent / DATA
    if (data / "prep.json").is_file():  # written by the demo, complete or damaged
        shutil.rmtree(data)


def train_side_by_side(models: Sequence[DemoModel], console: Console) -> int:
    """Trains the models that are not trained yet. Returns the signal that stopped it, 0 if none did."""
    data = models[0].recipe.data
    if data.prepared is not None:
        open_prepared(data, data.prepared, lambda _: None)  # once, before both processes need it
    waiting = []
    for model in models:
        if model.finished():
            console.print(f"  {model.title}: already trained, in {model.folder.path}", markup=False, soft_wrap=True)
        else:
            waiting.append(model)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in waiting]
        processes = [stack.enter_context(_start(*one)) for one in zip(waiting, errors, strict=True)]
        show = stack.enter_context(progress_bar(console if console.is_terminal else Console(quiet=True), "  "))
        lines = 0
        running = bool(waiting)
        while running:
            time.sleep(POLL_SECONDS)
            running = any(process.poll() is None for process in processes)
            lines = _show_progress(waiting, console, show, lines)
            if signals.received:
                for process in processes:
                    process.send_signal(signals.received)  # ignored by a process that has ended
                for process in processes:
                    process.wait()
                return signals.received
            for model, process, stderr in zip(waiting, processes, errors, strict=True):
                if (code := process.poll()) not in (None, 0):
                    stderr.seek(0)
                    messages = stderr.read().decode(errors="replace").strip().splitlines() or ["no error message"]
                    why = messages[-1].removeprefix("entformer: ")
                    raise RunFailed(f"training the {model.title} model ended with exit code {code}: {why}")
    return 0


@contextlib.contextmanager
def _start(model: DemoModel, stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Trains a model in a process of its own session: Ctrl-C reaches only the demo, which forwards it once."""
    settings = [word for setting in model.settings for word in ("--set", setting)]
    arguments = ["train", "demo", "--out", str(model.folder.path), "--threads", "1", *settings]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()  # saves and stops; ignored by a process that has ended


def stop_with_parent() -> None:
    """Sends SIGTERM to this process when standard input closes."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def read_metrics(path: Path) -> Metrics:
    """Returns the latest values of a metrics.jsonl."""
    found = Metrics()
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # the line is incomplete
        if entry["kind"] == "train":
            found.step, found.seconds = entry["step"], entry["seconds"]
            found.loss, found.accuracy = entry["loss"], entry["accuracy"]
        elif entry["kind"] == "valid" and entry["bleu"] is not None:
            found.bleu = entry["bleu"]
        elif entry["kind"] == "alphas":
            alphas = [alpha for kind in ("encoder", "decoder", "cross") for layer in entry.get(kind, ()) for alpha in layer]
            found.alphas = (min(alphas), max(alphas)) if alphas else None
    return found


def _show_progress(models: Sequence[DemoModel], console: Console, show: ShowProgress, lines: int) -> int:
    """Updates a bar per model; without a terminal, prints a line for every twentieth. Returns the number of lines so far."""
    found = {model.title: read_metrics(model.folder.metrics) for model in models}
    steps = models[0].steps
    for title, metrics in found.items():
        show(f"{title:<13}", metrics.step, steps, f"{metrics.step}/{steps}  {metrics.describe()}")
    slowest = min(found.values(), key=lambda metrics: metrics.step)
    reached = PLAIN_LINES * slowest.step // steps
    if reached > lines and not console.is_terminal:
        parts = "; ".join(f"{title}: {metrics.describe()}" for title, metrics in found.items())
        left = time_text((steps - slowest.step) * slowest.seconds / slowest.step)
        console.print(f"  step {slowest.step:>4} of {steps}  {parts}; {left} left", markup=False, soft_wrap=True)
    return max(reached, lines)
