"""The demo's second part: two models trained side by side. In: an output folder. Out: two run folders, and what was seen.

Each model is trained by a process with one thread: two of them use two cores, and the result does not depend on how many
cores the machine has. What the trainings write to their metrics.jsonl is what is shown here.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from entformer.checkpoint.folder import RunFolder
from entformer.errors import ArgumentError, RunFailed
from entformer.text.numbers import format_alpha, format_percent
from entformer.training.console import time_text
from entformer.training.corpora import open_prepared
from entformer.training.recipe import Recipe
from entformer.training.recipe_file import load_recipe
from entformer.training.resume import changes
from entformer.training.signals import StopSignals

RECIPE = "demo"
DATA = "data"  # the prepared corpus, in the output folder
LOOK = 0.5  # seconds between looks at the trainings
PLAIN_LINES = 20  # of progress, where there is no terminal
QUICK = (
    *("training.steps=20", "training.warmup=5", "training.validate_every=10", "training.log_every=5"),
    *("training.validate_beam=0", "training.metric=loss", "decoding.beam=2"),  # so little training gives no translations
)


@dataclass
class DemoModel:
    """One of the two models."""

    name: str
    title: str
    settings: tuple[str, ...]
    folder: RunFolder
    recipe: Recipe
    trained: "Seen" = field(default_factory=lambda: Seen())
    test_scores: list[dict[str, Any]] = field(default_factory=list)  # for the report, once the test set is translated

    @property
    def steps(self) -> int:
        return self.recipe.training.steps

    def finished(self) -> bool:
        """Whether the run folder holds the last checkpoint already."""
        latest = self.folder.latest()
        return latest is not None and latest.step >= self.steps and latest.state()["validated"] == latest.step

    def command(self) -> list[str]:
        """The training, in the words of `entformer train`."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        return ["train", RECIPE, "--out", str(self.folder.path), "--threads", "1", *settings]


@dataclass
class Seen:
    """Where a training stands, by its metrics.jsonl."""

    step: int = 0
    seconds: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    alphas: tuple[float, float] | None = None  # the lowest and the highest
    validations: dict[int, float] = field(default_factory=dict)  # step -> BLEU

    def describe(self) -> str:
        if self.loss is None or self.accuracy is None:
            return "starting"
        learned = f", alpha {format_alpha(self.alphas[0])} to {format_alpha(self.alphas[1])}" if self.alphas else ""
        return f"loss {self.loss:.2f}, accuracy {format_percent(self.accuracy)}{learned}"


def demo_models(out: Path, *, quick: bool) -> list[DemoModel]:
    """The two models, which differ in nothing but what turns scores into weights."""
    data = f"data.prepared={json.dumps(str(out / DATA), ensure_ascii=False)}"
    same = (data, *(QUICK if quick else ()))
    differ = {
        "softmax": ("softmax", ("name=demo-softmax", "model.attention.normalizer=softmax", "model.attention.alpha=null")),
        "entmax": ("learned alpha", ("name=demo-entmax",)),
    }
    models = []
    for name, (title, own) in differ.items():
        settings = (*own, *same)
        models.append(DemoModel(name, title, settings, RunFolder(out / name), load_recipe(RECIPE, settings)))
    return models


def check_folders(models: Sequence[DemoModel], *, fresh: bool) -> None:
    """Clear the folders away if told to; otherwise make sure that what they hold can be used."""
    for model in models:
        model.folder.claim()  # a folder with other things in it is refused, never removed
        if fresh:
            with model.folder.locked():
                _clear(model.folder)
        try:
            changes(model.folder, model.recipe)
        except ArgumentError as problem:
            raise ArgumentError(
                f"{model.folder.path} holds a model that was trained with other settings; "
                "add --fresh to train it anew, or give another --out."
            ) from problem


def _clear(folder: RunFolder) -> None:
    """Remove what training and preparing write, and nothing else that somebody may have put there."""
    for place in (folder.checkpoints, folder.validations, folder.averaged):
        shutil.rmtree(place, ignore_errors=True)
    pointers = (folder.path / "best.json", folder.path / "last.json")
    for file in (folder.recipe, folder.model, folder.subwords, folder.metrics, folder.log, *pointers):
        file.unlink(missing_ok=True)
    data = folder.path.parent / DATA
    if (data / "prep.json").is_file():  # prepared by us, whole or damaged
        shutil.rmtree(data)


def train_side_by_side(models: Sequence[DemoModel], console: Console) -> int:
    """Train what is not trained yet. The signal that stopped it, 0 if none did."""
    data = models[0].recipe.data
    if data.prepared is not None:
        open_prepared(data, data.prepared, lambda _: None)  # once, before both of them want it
    for model in models:
        if model.finished():
            told = f"  {model.title}: trained already, in {model.folder.path}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
    waiting = [model for model in models if not model.finished()]
    if not waiting:
        return 0
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        children = [stack.enter_context(_training(model)) for model in waiting]
        display = stack.enter_context(Display(console, waiting))
        while any(child.process.poll() is None for child in children):
            time.sleep(LOOK)
            display.show()
            if signals.received:
                _stop(children, signals.received)
                return signals.received
            for child in children:
                child.check()
        for child in children:
            child.check()
        display.show()
    return 0


# ---- the two processes ---------------------------------------------------------------------------------------------------


@dataclass
class _Child:
    """A training under way."""

    model: DemoModel
    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def check(self) -> None:
        """Raise what the training died of, if it did."""
        code = self.process.poll()
        if code in (None, 0):
            return
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        why = lines[-1].removeprefix("entformer: ") if lines else "it said nothing"
        raise RunFailed(f"training the {self.model.title} model ended with exit code {code}: {why}")


@contextlib.contextmanager
def _training(model: DemoModel) -> Iterator[_Child]:
    """A process that trains `model`. It has a session of its own: Ctrl-C reaches the demo, which tells it once."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "entformer.cli.demo_child", *model.command()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        with process:
            try:
                yield _Child(model, process, said)
            finally:
                process.terminate()  # does nothing once it has ended; otherwise it saves and stops


def _stop(children: Sequence[_Child], number: int) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(number)
    for child in children:
        child.process.wait()


# ---- what is seen of them ------------------------------------------------------------------------------------------------


def read_metrics(path: Path) -> Seen:
    """The last numbers of each kind."""
    seen = Seen()
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # the line is being written
        if entry["kind"] == "train":
            seen.step, seen.seconds = entry["step"], entry["seconds"]
            seen.loss, seen.accuracy = entry["loss"], entry["accuracy"]
        elif entry["kind"] == "valid" and entry["bleu"] is not None:
            seen.validations[entry["step"]] = entry["bleu"]
        elif entry["kind"] == "alphas":
            alphas = [alpha for kind in ("encoder", "decoder", "cross") for layer in entry.get(kind, ()) for alpha in layer]
            seen.alphas = (min(alphas), max(alphas)) if alphas else None
    return seen


class Display:
    """Progress of the trainings: two moving bars at a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, models: Sequence[DemoModel]) -> None:
        self._console, self._models = console, models
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lines = 0
        self._told = {(model.name, step) for model in models for step in read_metrics(model.folder.metrics).validations}

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            columns = (
                TextColumn("  {task.fields[title]}"),
                BarColumn(24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.description}"),
            )
            self._bars = Progress(*columns, console=self._console, transient=True)
            for model in self._models:
                self._tasks[model.name] = self._bars.add_task("starting", total=model.steps, title=f"{model.title:<13}")
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self) -> None:
        """Look at the trainings and show what is new."""
        for model in self._models:
            model.trained = read_metrics(model.folder.metrics)
            for step, bleu in model.trained.validations.items():
                if (model.name, step) not in self._told:
                    self._told.add((model.name, step))
                    self._say(f"{model.title:<13}  step {step:>4}: validation BLEU {bleu:.1f}")
        if self._bars is None:
            self._show_line()
            return
        for model in self._models:
            text = f"{model.trained.describe()}, {time_text(_left(model))} left" if model.trained.step else "starting"
            self._bars.update(self._tasks[model.name], completed=model.trained.step, description=text)

    def _show_line(self) -> None:
        """A line whenever the slowest training has come a twentieth further."""
        slowest = min(self._models, key=lambda model: model.trained.step / model.steps)
        reached = PLAIN_LINES * slowest.trained.step // slowest.steps
        if reached > self._lines:
            self._lines = reached
            parts = [f"{model.title}: {model.trained.describe()}" for model in self._models]
            left = time_text(max(_left(model) for model in self._models))
            self._say(f"step {slowest.trained.step:>4} of {slowest.steps}  {'; '.join(parts)}; {left} left")

    def _say(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)


def _left(model: DemoModel) -> float:
    """Seconds until the last step, at the pace so far."""
    seen = model.trained
    return (model.steps - seen.step) * seen.seconds / max(seen.step, 1)


def stopped_by(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
