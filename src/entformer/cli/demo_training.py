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
from dataclasses import dataclass, field
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
    validations: dict[int, float] = field(default_factory=dict)  # step -> BLEU

    def describe(self) -> str:
        if self.loss is None or self.accuracy is None:
            return "starting"
        learned = f", alpha {format_alpha(self.alphas[0])} to {format_alpha(self.alphas[1])}" if self.alphas else ""
        return f"loss {self.loss:.2f}, accuracy {format_percent(self.accuracy)}{learned}"


@dataclass
class DemoModel:
    """One of the two models."""

    name: str
    title: str
    settings: tuple[str, ...]
    folder: RunFolder
    recipe: Recipe
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def steps(self) -> int:
        return self.recipe.training.steps

    @property
    def seconds_left(self) -> float:
        return (self.steps - self.metrics.step) * self.metrics.seconds / max(self.metrics.step, 1)

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
        model.folder.claim()  # refuses a directory with other content
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
    for model in models:
        if model.finished():
            console.print(f"  {model.title}: already trained, in {model.folder.path}", markup=False, soft_wrap=True)
    waiting = [model for model in models if not model.finished()]
    if not waiting:
        return 0
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        children = [stack.enter_context(_start(model)) for model in waiting]
        show = stack.enter_context(progress_bar(console if console.is_terminal else Console(quiet=True), "  "))
        display = Display(console, waiting, show)
        running = True
        while running:
            time.sleep(POLL_SECONDS)
            running = any(child.process.poll() is None for child in children)
            display.update()
            if signals.received:
                for child in children:
                    child.process.send_signal(signals.received)  # ignored by a process that has ended
                for child in children:
                    child.process.wait()
                return signals.received
            for child in children:
                child.check()
    return 0


# ---- the two processes ---------------------------------------------------------------------------------------------------


@dataclass
class _Child:
    """A running training."""

    model: DemoModel
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]

    def check(self) -> None:
        """Raises RunFailed if the training failed."""
        code = self.process.poll()
        if code in (None, 0):
            return
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").strip().splitlines()
        why = lines[-1].removeprefix("entformer: ") if lines else "no error message"
        raise RunFailed(f"training the {self.model.title} model ended with exit code {code}: {why}")


@contextlib.contextmanager
def _start(model: DemoModel) -> Iterator[_Child]:
    """Trains a model in a process of its own session: Ctrl-C reaches only the demo, which forwards it once."""
    settings = [word for setting in model.settings for word in ("--set", setting)]
    arguments = ["train", "demo", "--out", str(model.folder.path), "--threads", "1", *settings]
    with tempfile.TemporaryFile() as stderr:
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
                yield _Child(model, process, stderr)
            finally:
                process.terminate()  # saves and stops; ignored by a process that has ended


def stop_with_parent() -> None:
    """Sends SIGTERM to this process when standard input closes."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# ---- their progress ------------------------------------------------------------------------------------------------------


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
            found.validations[entry["step"]] = entry["bleu"]
        elif entry["kind"] == "alphas":
            alphas = [alpha for kind in ("encoder", "decoder", "cross") for layer in entry.get(kind, ()) for alpha in layer]
            found.alphas = (min(alphas), max(alphas)) if alphas else None
    return found


class Display:
    """Progress of the trainings: a bar for each on a terminal, otherwise a line for every twentieth."""

    def __init__(self, console: Console, models: Sequence[DemoModel], show: ShowProgress) -> None:
        self._console, self._models, self._show = console, models, show
        self._lines = 0
        self._printed = {(model.name, step) for model in models for step in read_metrics(model.folder.metrics).validations}

    def update(self) -> None:
        for model in self._models:
            model.metrics = metrics = read_metrics(model.folder.metrics)
            for step, bleu in metrics.validations.items():
                if (model.name, step) not in self._printed:
                    self._printed.add((model.name, step))
                    self._print(f"{model.title:<13}  step {step:>4}: validation BLEU {bleu:.1f}")
            self._show(f"{model.title:<13}", metrics.step, model.steps, f"{metrics.step}/{model.steps}  {metrics.describe()}")
        slowest = min(self._models, key=lambda model: model.metrics.step / model.steps)
        reached = PLAIN_LINES * slowest.metrics.step // slowest.steps
        if reached > self._lines and not self._console.is_terminal:
            self._lines = reached
            parts = "; ".join(f"{model.title}: {model.metrics.describe()}" for model in self._models)
            left = time_text(max(model.seconds_left for model in self._models))
            self._print(f"step {slowest.metrics.step:>4} of {slowest.steps}  {parts}; {left} left")

    def _print(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)
