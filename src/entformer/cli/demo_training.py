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
from typing import IO, Any, cast

from rich.console import Console

from entformer.analysis.history import metrics_of
from entformer.checkpoint.folder import RunFolder
from entformer.cli.output import ShowProgress, progress_bar
from entformer.errors import ArgumentError, RunFailed
from entformer.tasks.corpora import open_prepared
from entformer.text.numbers import format_alpha, format_percent
from entformer.training.console import time_text
from entformer.training.recipe import Recipe
from entformer.training.recipe_file import load_recipe
from entformer.training.resume import changes
from entformer.training.signals import StopSignals
from entformer.training.trends import describe_trends

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
        models.append(DemoModel(name, title, settings, RunFolder(out / name), cast(Recipe, load_recipe("demo", settings))))
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


def describe_progress(latest: dict[str, dict[str, Any]]) -> str:
    """Returns the latest values of a metrics.jsonl, given by kind of entry, for a progress bar."""
    if "train" not in latest:
        return "starting"
    text = f"loss {latest['train']['loss']:.2f}, accuracy {format_percent(latest['train']['accuracy'])}"
    layers = [layer for name in ("encoder", "decoder", "cross") for layer in latest.get("alphas", {}).get(name, ())]
    if alphas := [alpha for layer in layers for alpha in layer]:
        text += f", alpha {format_alpha(min(alphas))} to {format_alpha(max(alphas))}"
    if (bleu := latest.get("valid", {}).get("bleu")) is not None:
        text += f", validation BLEU {bleu:.1f} (step {latest['valid']['step']:,})"
    return text


def _show_progress(models: Sequence[DemoModel], console: Console, show: ShowProgress, lines: int) -> int:
    """Updates a bar per model; without a terminal, prints a line for every twentieth. Returns the number of lines so far."""
    steps = models[0].steps
    reached: list[tuple[int, float]] = []
    parts = []
    for model in models:
        metrics = metrics_of(model.folder.metrics)
        latest = {entry["kind"]: entry for entry in metrics}
        train = latest.get("train", {"step": 0, "seconds": 0.0})
        text = describe_progress(latest)
        lines_below = filter(None, (f"{train['step']}/{steps}  {text}", describe_trends(metrics)))
        show(f"{model.title:<13}", train["step"], steps, "\n".join(lines_below))
        reached.append((train["step"], train["seconds"]))
        parts.append(f"{model.title}: {text}")
    step, seconds = min(reached)
    if PLAIN_LINES * step // steps > lines and not console.is_terminal:
        left = time_text((steps - step) * seconds / step)
        console.print(f"  step {step:>4} of {steps}  {'; '.join(parts)}; {left} left", markup=False, soft_wrap=True)
    return max(PLAIN_LINES * step // steps, lines)
