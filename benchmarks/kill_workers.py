"""Disturbs a training in two processes, lets it end, and compares it with one that was not disturbed.

    python benchmarks/kill_workers.py --out /tmp/faults [--parallel sum] [--fault kill] [--count 10] [--runs 1]

A run trains a small translation model of the built-in corpus with `entformer train --nproc 2 --max-restarts COUNT`. Faults:

    kill    SIGKILL to a random worker at COUNT random moments, half of them while processes start, the others some steps later
    hang    SIGSTOP to a random worker at COUNT random moments; the other waits `training.timeout_minutes`
    disk    the disk of the run (a tmpfs, which needs root) is filled at a random step, and freed when the run has ended
    term    SIGTERM to the launcher at COUNT random moments

Printed, as JSON: exit codes and messages, whether the last weights are bitwise those of the undisturbed run, and whether
the numbers of examples that `training.log_batches` writes are those of the undisturbed run, every step once.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from entformer.checkpoint import RunFolder
from entformer.checkpoint.weights import read_tensors
from entformer.training.metrics import metrics_of

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 32, "hidden": 64}
TRAINING = {"tokens": 256, "warmup": 10, "validate_every": 40, "validate_beam": 0, "metric": "loss", "average": "none"}
LOGGING = {"save_minutes": 0.01, "log_batches": True, "log_every": 10}
DISK = 16  # MB


class Training:
    """One run, disturbed or not."""

    def __init__(self, recipe: Path, run: Path, restarts: int) -> None:
        self.recipe, self.run, self.restarts = recipe, run, restarts
        self.errors = run.with_suffix(".stderr")
        self.process: subprocess.Popen[bytes] | None = None
        self.begun = 0  # bytes of `errors` before the last start

    def start(self) -> None:
        processes = ["--nproc", "2", "--max-restarts", str(self.restarts), "--threads", "1"]
        command = [sys.executable, "-m", "entformer", "train", str(self.recipe), "--out", str(self.run), *processes]
        self.begun = self.errors.stat().st_size if self.errors.exists() else 0
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait()

    def workers(self) -> list[int]:
        """Returns the processes that the launcher started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            if self.process is not None and parent == self.process.pid:
                found.append(int(path.parent.name))
        return sorted(found)

    def steps(self) -> int:
        """Returns the steps done so far."""
        return max((line["step"] for line in metrics_of(self.run / "metrics.jsonl") if line["kind"] == "batches"), default=0)

    def said(self) -> list[str]:
        """Returns the error messages of the command and of its processes since it was last started."""
        text = self.errors.read_bytes()[self.begun :].decode(errors="replace")
        return [line for line in text.splitlines() if line.startswith("entformer: ")]

    def batches(self) -> list[tuple[int, Any]]:
        return [
            (line["step"], line["examples"]) for line in metrics_of(self.run / "metrics.jsonl") if line["kind"] == "batches"
        ]

    def until(self, moment: tuple[str, float]) -> bool:
        """Waits for two workers, then until the moment: seconds, or steps after now. Returns whether the run still runs."""
        kind, amount = moment
        while self.running and len(self.workers()) < 2:
            time.sleep(0.05)
        began, first = time.monotonic(), self.steps()
        while self.running and (time.monotonic() - began if kind == "seconds" else self.steps() - first) < amount:
            time.sleep(0.02)
        return self.running


def moments(rng: random.Random, count: int, steps: int, startup: float, some_at_start: bool) -> list[tuple[str, float]]:
    """Returns random moments, relative to one another."""
    at_start = [some_at_start and rng.random() < 0.5 for _ in range(count)]
    share = 0.9 * steps / max(count - sum(at_start), 1)  # so that all come before the end
    return [("seconds", rng.uniform(0.0, startup)) if early else ("steps", rng.uniform(0.0, share)) for early in at_start]


def disturb(training: Training, fault: str, planned: list[tuple[str, float]], rng: random.Random) -> list[dict[str, Any]]:
    """Lets the faults happen; starts the same command again whenever it has ended before its time."""
    events: list[dict[str, Any]] = []
    training.start()
    for moment in planned:
        if not training.until(moment):
            break
        time.sleep(rng.uniform(0.0, 0.3))
        victims = training.workers()
        if not victims:
            break
        events.append({"after_step": training.steps()})
        if fault == "disk":
            filler = training.run.parent / "filler"
            with filler.open("wb", buffering=0) as file:
                while _write(file.fileno()):
                    pass
            events[-1] |= {"exit_code": training.wait(), "said": training.said()}
            filler.unlink()
            training.start()
        elif fault == "term":
            assert training.process is not None
            training.process.terminate()
            events[-1] |= {"exit_code": training.wait(), "said": training.said()}
            training.start()
        else:
            victim = rng.choice(victims)
            events[-1] |= {"process": victims.index(victim)}
            os.kill(victim, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            while training.running and victim in training.workers():
                time.sleep(0.05)
    return events


def _write(file: int) -> bool:
    try:
        return os.write(file, bytes(65536)) > 0
    except OSError:
        return False


def compare(training: Training, whole: Training, steps: int) -> dict[str, Any]:
    ours, theirs = (RunFolder(one.run).latest() for one in (training, whole))
    if ours is None or theirs is None:
        return {"step": None}
    weights, expected = read_tensors(ours.weights), read_tensors(theirs.weights)
    differences = {name: float((weights[name] - own).abs().max()) for name, own in expected.items()}
    return {
        "step": ours.step,
        "bitwise": ours.step == theirs.step and all(torch.equal(weights[name], own) for name, own in expected.items()),
        "largest_difference": max(differences.values()),
        "each_batch_once": training.batches() == whole.batches()
        and [step for step, _ in whole.batches()] == [*range(1, steps + 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=("kill", "hang", "disk", "term"), default="kill")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--parallel", choices=("sum", "ddp", "fsdp"), default="sum")
    parser.add_argument("--timeout", type=float, default=0.5, help="training.timeout_minutes")
    parser.add_argument("--startup", type=float, default=10.0, help="seconds within which processes start, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    recipe, restarts = options.out / "recipe.yaml", options.count if options.fault in ("kill", "hang") else 0
    own = {"steps": options.steps, "parallel": options.parallel, "timeout_minutes": options.timeout}
    content: dict[str, Any] = {
        "data": {"corpus": "builtin", "size": 2000, "vocab_size": 400, "prepared": str(options.out / "data")}
    }
    content |= {"model": SIZES, "training": {**TRAINING, **LOGGING, **own}}
    recipe.write_text(yaml.safe_dump(content), encoding="utf-8")

    whole = Training(recipe, options.out / f"whole-{options.parallel}", 0)
    if whole.steps() < options.steps:  # it may be there from an earlier call
        whole.start()
        if whole.wait():
            sys.exit("\n".join(whole.said()))
    for number in range(options.runs):
        rng = random.Random(1000 * options.seed + number)
        where = options.out / f"{options.fault}-{options.parallel}-{number}"
        where.mkdir()
        if options.fault == "disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}M", "entformer", str(where)], check=True)
        training = Training(recipe, where / "run", restarts)
        training.errors = options.out / f"{where.name}.stderr"
        planned = moments(rng, options.count, options.steps, options.startup, some_at_start=options.fault in ("kill", "hang"))
        began = time.monotonic()
        events = disturb(training, options.fault, planned, rng)
        result = {"fault": options.fault, "parallel": options.parallel, "exit_code": training.wait(), "faults": len(events)}
        result |= compare(training, whole, options.steps)
        print(json.dumps({**result, "seconds": round(time.monotonic() - began), "events": events}), flush=True)
        if options.fault == "disk":
            subprocess.run(["umount", str(where)], check=True)


if __name__ == "__main__":
    main()
