"""Tokens per second of each of two training processes over those of one, and the share of a step that goes to communication.

    python benchmarks/parallel_speed.py [--preset tiny] [--tokens 4096] [--rounds 10] [--steps 2] [--json FILE]

Two processes with one thread each, on two cores, take turns in blocks of whole training steps of the translation model
(forward, backward, clipping, AdamW, and the three small sums of the training loop), on the same batches:

    one     process 0 trains alone, process 1 sleeps
    apart   both train at the same time, each for itself: no communication, but shared memory and caches
    ddp     training.parallel: ddp
    sum     training.parallel: sum

`ratio` is the time of process 0 for the block of "one" over that of the block in question: the tokens per second of a process
over those of a process alone. `communication` is 1 - time(apart) / time: what communicating adds to a step, waiting for the
other process included. Both are medians over rounds, with quartiles. `in_calls` is the share of time inside of the calls that
communicate (with ddp, gradients are summed in the background, and these calls are the small ones alone).
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from entformer.bench.harness import SEED
from entformer.bench.training import LENGTHS, SMOOTHING, make_batches
from entformer.data.batch import Batch
from entformer.models.config import PRESETS, AttentionConfig, Seq2SeqConfig
from entformer.models.fused_loss import LossSums
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.training.optim import make_optimizer
from entformer.training.parallel import make_engine
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.update import Updater

MODES = ("one", "apart", "ddp", "sum")
VOCABULARY = 9712  # of Multi30k
BATCHES = 3


def _loss(model: Any, batch: Batch) -> LossSums:
    found: LossSums = model.loss(batch)
    return found


class Stepper:
    """A model that trains in one of the modes."""

    def __init__(self, mode: str, preset: str, batches: list[Batch], ranks: Ranks) -> None:
        self.batches, self.ranks, self.index, self.waited = batches, ranks, 0, 0.0
        torch.manual_seed(SEED)
        attention = dict.fromkeys(KINDS, AttentionConfig(normalizer="entmax", alpha_parametrization="projected"))
        model = Seq2Seq(
            Seq2SeqConfig(**{"vocab_size": VOCABULARY, **PRESETS[preset], **attention, "label_smoothing": SMOOTHING})
        ).train()
        config = TrainingConfig.model_validate({"clip": 1.0})
        options: dict[str, Any] = {"sample": batches[0], "precision": "float32", "build": lambda: model}
        self.engine = make_engine(mode, model, _loss, ranks, **options)
        self.engine.reduce = self._timed(self.engine.reduce)  # type: ignore[method-assign]
        self.sum = self._timed(ranks.sum)
        self.updater = Updater(self.engine, make_optimizer(model, config), config, print)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            found = call(*args)
            self.waited += time.perf_counter() - began
            return found

        return timed

    def block(self, steps: int) -> tuple[float, float, int]:
        """Returns the seconds of so many steps, those inside of calls that communicate, and the labels of this process."""
        began, self.waited, labels = time.perf_counter(), 0.0, 0
        for _ in range(steps):
            batch = self.batches[self.index % len(self.batches)]
            self.index += 1
            labels += batch.num_labels
            (tokens,) = self.sum([batch.num_labels])
            self.updater.update([batch], tokens=tokens, step=self.index, rate=1e-5)
            self.sum([0.0, 0.0])
            self.sum([0.0, 0.0, 0.0])
        return time.perf_counter() - began, self.waited, labels


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    together = Ranks("cpu")
    os.environ["WORLD_SIZE"] = "1"
    alone = Ranks("cpu")
    batches = make_batches(options.tokens, *LENGTHS["short"], VOCABULARY, count=2 * BATCHES)[rank::2]
    steppers = {
        "one": Stepper("auto", options.preset, batches, alone),
        "apart": Stepper("auto", options.preset, batches, alone),
        "ddp": Stepper("ddp", options.preset, batches, together),
        "sum": Stepper("sum", options.preset, batches, together),
    }
    found: dict[str, list[tuple[float, float, int]]] = {mode: [] for mode in MODES}
    for number in range(options.rounds + 1):
        for mode in MODES:
            together.sum([0.0])  # both begin at the same time
            if mode == "one" and rank > 0:
                continue
            measured = steppers[mode].block(options.steps)
            if number:  # the first round warms up
                found[mode].append(measured)
    together.sum([0.0])
    if rank == 0:
        print(json.dumps({"seconds": found, "parameters": sum(p.numel() for p in steppers["one"].engine.parameters)}))
    for stepper in steppers.values():
        stepper.engine.close()
    steppers.clear()
    together.close()


def _spread(values: list[float]) -> dict[str, float]:
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": round(median(values), 4), "low": round(low, 4), "high": round(high, 4)}


def summarize(measured: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of every mode."""
    seconds = {mode: [block[0] for block in own] for mode, own in measured["seconds"].items()}
    summary: dict[str, Any] = {"parameters": measured["parameters"], "modes": {}}
    for mode, own in measured["seconds"].items():
        figures: dict[str, Any] = {"tokens_per_second": _spread([labels / taken for taken, _, labels in own])}
        if mode != "one":
            figures["ratio"] = _spread([one / taken for one, taken in zip(seconds["one"], seconds[mode], strict=True)])
        if mode in ("ddp", "sum"):
            apart = zip(seconds["apart"], seconds[mode], strict=True)
            figures["communication"] = _spread([1.0 - without / taken for without, taken in apart])
            figures["in_calls"] = _spread([waited / taken for taken, waited, _ in own])
        summary["modes"][mode] = figures
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--tokens", type=int, default=4096, help="of each process in a step")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2, help="in a block")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    processes = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("parallel_speed: a process failed.")
    summary = summarize(json.loads(printed[0]))
    text = json.dumps({"preset": options.preset, "tokens": options.tokens, "rounds": options.rounds, **summary}, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
