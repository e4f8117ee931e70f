"""Kills random workers of a training at random moments and compares the run with an unbroken one.

    python benchmarks/kill_workers.py --kills 10 --out /tmp/kills [--parallel sum]

Trains a small translation model of the built-in corpus in two processes with `--max-restarts`, sends SIGKILL to a random worker
so many times, and prints whether the run finished, whether its weights are bitwise those of a run that was not disturbed, and
whether the logged numbers of the examples show every batch once.
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

import torch
import yaml

from entformer.checkpoint import RunFolder
from entformer.checkpoint.weights import read_tensors
from entformer.training.metrics import metrics_of

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 32, "hidden": 64}
TRAINING = {"tokens": 256, "warmup": 10, "validate_every": 100, "validate_beam": 0, "metric": "loss", "average": "none"}


def command(recipe: Path, out: Path, restarts: int) -> list[str]:
    processes = ["--nproc", "2", "--max-restarts", str(restarts), "--threads", "1"]
    return [sys.executable, "-m", "entformer", "train", str(recipe), "--out", str(out), *processes]


def workers(launcher: int) -> list[int]:
    """Returns the processes that the launcher started."""
    found = Path(f"/proc/{launcher}/task/{launcher}/children")
    return [int(pid) for pid in found.read_text(encoding="utf-8").split()] if found.exists() else []


def steps_done(run: Path) -> int:
    return max((line["step"] for line in metrics_of(run / "metrics.jsonl")), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--parallel", default="sum")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    recipe = options.out / "recipe.yaml"
    own = {"steps": options.steps, "parallel": options.parallel, "save_minutes": 0.02, "log_batches": True, "log_every": 5}
    content = {"data": {"corpus": "builtin", "size": 2000, "vocab_size": 400}, "model": SIZES, "training": {**TRAINING, **own}}
    recipe.write_text(yaml.safe_dump(content), encoding="utf-8")
    subprocess.run(command(recipe, options.out / "whole", 0), check=True, stderr=subprocess.DEVNULL)

    rng, run, killed, moments = random.Random(options.seed), options.out / "killed", 0, []
    process = subprocess.Popen(command(recipe, run, options.kills), stderr=subprocess.PIPE, text=True)
    seen = 0
    while process.poll() is None and killed < options.kills:
        time.sleep(rng.uniform(0.0, 0.5))
        children = workers(process.pid)
        # Half of the kills come at any moment, start included; the others after some steps, so that the run gets on.
        if len(children) == 2 and (killed % 2 or steps_done(run) >= seen + options.steps // (2 * options.kills)):
            time.sleep(rng.uniform(0.0, 3.0))
            seen = steps_done(run)
            victim = rng.choice(children)
            os.kill(victim, signal.SIGKILL)
            killed += 1
            moments.append(seen)
            while victim in workers(process.pid) and process.poll() is None:
                time.sleep(0.1)
    _, errors = process.communicate()
    ours, theirs = (RunFolder(options.out / name).latest() for name in ("killed", "whole"))
    result = {"kills": killed, "after_steps": moments, "exit_code": process.returncode}
    if ours is not None and theirs is not None:
        weights, expected = read_tensors(ours.weights), read_tensors(theirs.weights)
        batches = [
            [
                (line["step"], line["examples"])
                for line in metrics_of(options.out / name / "metrics.jsonl")
                if line["kind"] == "batches"
            ]
            for name in ("killed", "whole")
        ]
        result |= {
            "step": ours.step,
            "bitwise": ours.step == theirs.step and all(torch.equal(weights[name], expected[name]) for name in expected),
            "each_batch_once": batches[0] == batches[1] and len(batches[1]) == options.steps,
        }
    print(json.dumps(result))
    if process.returncode:
        print(errors[-3000:], file=sys.stderr)


if __name__ == "__main__":
    main()
