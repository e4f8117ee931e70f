"""Time and memory of a training step as functions of the model, the batch and the number of processes, fitted to measurements.

    python benchmarks/scale_plan.py --out FILE.json [--repeats 3] [--processes 1]   # measures one process, fits, checks
    python benchmarks/scale_plan.py --out FILE.json [--repeats 3] [--processes 2]   # two; the file keeps what it has of one
    python benchmarks/scale_plan.py --from FILE.json                                # the tables of docs/scale.md again

A step of one process costs a sum of terms, each a count (`counts`) times a coefficient:

    seconds = c1 layers + c2 FLOPs + c3 outputs + c4 scores + c5 pairs of attention + c6 pairs with weight + c7 weights
    bytes   = b0 + b1 weights + b2 outputs + b3 pairs with weight / head size

FLOPs are 6 per weight and token; outputs are those of all matrices of layers, tokens x (weights of layers) / width; scores are
tokens x vocabulary; pairs (query, key) x width, of which a share `density` has weight. Coefficients are fitted by least squares
of relative errors, none below 0, to small language and translation models with learned alphas. A step of N processes takes,
besides, what it takes to sum the gradients: a latency and 8 (N - 1) / N bytes per weight at some bandwidth, both fitted to two
processes (`training.parallel: sum`, where nothing overlaps).
Models with other sizes than those of the fit, larger ones among them, are predicted and measured: the errors are printed.

Seconds of one process are its CPU time with one thread, the smallest of the repeats; those of two are wall time.
"""

import argparse
import json
import multiprocessing
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.data.batch import Batch
from entformer.data.text import TextBatch
from entformer.models.attention_settings import AttentionModel
from entformer.models.config import AttentionConfig, Seq2SeqConfig
from entformer.models.fused_loss import LossSums
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMAttentionConfig, LMConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.training.density_target import measure
from entformer.training.optim import make_optimizer
from entformer.training.parallel import make_engine
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.update import Updater

HEAD = 32
TIME = ("layers", "flops", "outputs", "scores", "pairs", "support", "weights")
MEMORY = ("one", "weights", "outputs", "attention")


@dataclass(frozen=True)
class Setting:
    """A model and its batch."""

    kind: str  # "lm" or "translation"
    layers: int  # of the encoder and of the decoder each
    width: int
    vocabulary: int
    tokens: int  # of the text, or of the target and of the source each
    length: int
    gain: float = 1.0  # of the queries, which makes weights sparser

    @property
    def name(self) -> str:
        sizes = f"{self.layers} layers, width {self.width}, vocabulary {self.vocabulary}"
        return f"{self.kind}, {sizes}, {self.tokens} tokens of length {self.length}, queries x {self.gain:g}"


def _settings() -> list[Setting]:
    lm = [
        (1, 64, 500, 512, 64, 1.0),
        (2, 64, 500, 1024, 256, 6.0),
        (2, 128, 500, 256, 64, 1.0),
        (2, 128, 4000, 1024, 64, 1.0),
        (4, 128, 500, 1024, 512, 1.0),
        (4, 128, 500, 1024, 512, 10.0),
        (1, 256, 500, 512, 128, 1.0),
        (2, 256, 8000, 256, 128, 6.0),
        (2, 256, 1000, 1024, 1024, 1.0),
        (2, 256, 1000, 1024, 1024, 12.0),
    ]
    translation = [
        (1, 64, 1000, 512, 16, 1.0),
        (2, 128, 4000, 512, 32, 1.0),
        (2, 128, 1000, 1024, 128, 6.0),
        (1, 256, 1000, 512, 64, 1.0),
    ]
    return [Setting("lm", *one) for one in lm] + [Setting("translation", *one) for one in translation]


FITTED = _settings()
HELD_OUT = [
    Setting("translation", 3, 320, 6000, 1536, 48, 3.0),
    Setting("lm", 4, 320, 2000, 2048, 512, 8.0),
    Setting("translation", 4, 256, 12000, 1024, 24, 2.0),
    Setting("lm", 6, 192, 3000, 1536, 96, 2.0),
]
PAIRS = [Setting("lm", 1, 128, vocabulary, 128, 32) for vocabulary in (500, 4000, 16000, 48000)]  # weights, for two processes
HELD_OUT_PAIR = Setting("translation", 2, 192, 8000, 512, 32)


def build(setting: Setting) -> tuple[AttentionModel, Any]:
    """Returns the model and a batch of random tokens, all of the same length."""
    torch.manual_seed(1)
    options = {"normalizer": "entmax", "alpha": "learned", "alpha_init": 1.5, "alpha_parametrization": "projected"}
    sizes: dict[str, Any] = {
        "vocab_size": setting.vocabulary,
        "width": setting.width,
        "heads": setting.width // HEAD,
        "hidden": 4 * setting.width,
    }
    rows = setting.tokens // setting.length
    ids = torch.randint(4, setting.vocabulary, (rows, setting.length + 1))
    examples = tuple(range(rows))
    model: AttentionModel
    batch: Any
    if setting.kind == "lm":
        attention = LMAttentionConfig(**options)  # type: ignore[arg-type]
        sizes |= {"tied_output": True, "scaled_embedding": True}  # scores of moderate size: others give subnormal numbers
        config = LMConfig(layers=setting.layers, positions="rotary", attention=attention, **sizes)
        model, batch = CausalLM(config), TextBatch(ids[:, :-1].clone(), ids[:, 1:].clone(), None, examples)
    else:
        layers = {"encoder_layers": setting.layers, "decoder_layers": setting.layers}
        attention = dict.fromkeys(KINDS, AttentionConfig(**options))  # type: ignore[arg-type,assignment]
        model = Seq2Seq(Seq2SeqConfig(**sizes, **layers, **attention, dropout=0.1, label_smoothing=0.1))  # type: ignore[arg-type]
        lengths = torch.full((rows,), setting.length)
        batch = Batch(ids[:, 1:].clone(), ids, lengths, lengths, examples)
    with torch.no_grad():
        for _, _, layer in model.attention_layers():
            weight = next(own for name, own in layer.named_parameters() if name in ("in_proj_weight", "q_proj.weight"))
            weight[: setting.width] *= setting.gain
    return model.train(), batch


def loss(model: Any, batch: Any) -> LossSums:
    found: LossSums = model.loss(batch) if isinstance(batch, Batch) else model.loss(batch.inputs, batch.labels)
    return found


def counts(setting: Setting, density: float, weights: float) -> dict[str, float]:
    """Returns the counts of a step that coefficients multiply.

    Args:
        density: The share of pairs with weight.
        weights: Parameters of the model.
    """
    width, layers, tokens = setting.width, setting.layers, setting.tokens
    blocks = layers if setting.kind == "lm" else 2 * layers
    causal, whole = tokens * (setting.length + 1) / 2, tokens * setting.length
    pairs = layers * width * (causal if setting.kind == "lm" else causal + 2 * whole)
    return {
        "one": 1.0,
        "layers": float(blocks),
        "flops": 6.0 * tokens * weights,
        "outputs": tokens * (weights / width - setting.vocabulary),
        "scores": float(tokens * setting.vocabulary),
        "pairs": pairs,
        "support": pairs * density,
        "attention": pairs * density / HEAD,
        "weights": weights,
    }


# ---- measurements --------------------------------------------------------------------------------------------------------


def _updater(setting: Setting, parallel: str, ranks: Ranks) -> tuple[Updater, AttentionModel, Any]:
    model, batch = build(setting)
    config = TrainingConfig.model_validate({"clip": 1.0, "weight_decay": 0.0})
    options: dict[str, Any] = {"sample": batch, "precision": "float32", "build": lambda: model}
    engine = make_engine(parallel, model, loss, ranks, **options)
    return Updater(engine, make_optimizer(model, config), config, print), model, batch


def _memory(field: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return 1024.0 * int(line.split()[1])
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _warm_up() -> None:
    """Takes a step of a tiny model, so that libraries are in memory."""
    updater, _, batch = _updater(Setting("lm", 1, HEAD, 50, 32, 8), "auto", Ranks("cpu"))
    updater.update([batch], tokens=batch.num_labels, step=1, rate=1e-9)


def measure_one(setting: Setting) -> dict[str, float]:
    """Returns CPU seconds and peak bytes of a step, and the density of its attention. For a process of its own."""
    _warm_up()
    before = _memory("VmRSS")
    updater, model, batch = _updater(setting, "auto", Ranks("cpu"))
    densities = measure(model, batch).density
    updater.update([batch], tokens=batch.num_labels, step=1, rate=1e-9)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
    times = []
    for step in range(2, 5):
        began = time.process_time()
        updater.update([batch], tokens=batch.num_labels, step=step, rate=1e-9)
        times.append(time.process_time() - began)
    return {
        "seconds": min(times),
        "bytes": _memory("VmHWM") - before,
        "density": float(torch.stack([own.mean() for own in densities.values()]).mean()),
        "weights": float(sum(parameter.numel() for parameter in model.parameters())),
    }


def measure_pair(setting: Setting) -> dict[str, float]:
    """Returns the wall seconds of a step in two processes and of its sum of gradients. For one of the two."""
    ranks = Ranks("cpu")
    updater, model, batch = _updater(setting, "sum", ranks)
    engine, within = updater.engine, [0.0]
    reduce = engine.reduce

    def timed(sums: torch.Tensor) -> None:
        ranks.sum([0.0])  # both processes are here
        began = time.perf_counter()
        reduce(sums)
        within[0] = time.perf_counter() - began

    engine.reduce = timed  # type: ignore[method-assign]
    steps, sums = [], []
    for step in range(1, 9):
        began = time.perf_counter()
        updater.update([batch], tokens=2.0 * batch.num_labels, step=step, rate=1e-9)
        steps.append(time.perf_counter() - began)
        sums.append(within[0])
    weights = float(sum(parameter.numel() for parameter in model.parameters()))
    found = {"seconds": min(steps[1:]), "sum": min(sums[1:]), "weights": weights}
    ranks.close()
    return found


def _in_processes(work: Callable[[Setting], dict[str, float]], setting: Setting, size: int = 1) -> dict[str, float]:
    """Runs a measurement in new processes; returns that of the first."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    receive, send = context.Pipe(duplex=False)

    def run(rank: int) -> None:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), **address})
        cores = sorted(os.sched_getaffinity(0))
        if size > 1:
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        found = work(setting)
        if rank == 0:
            send.send(found)

    processes = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(f"scale_plan: the measurement of {setting.name} failed.")
    found: dict[str, float] = receive.recv()
    return found


def measure_all(processes: int, repeats: int, file: Path) -> None:
    """Adds measurements to a file: of every setting the best of the repeats, which take turns, and of those on file."""
    work, settings = (
        (measure_one, [*FITTED, *HELD_OUT, HELD_OUT_PAIR]) if processes == 1 else (measure_pair, [*PAIRS, HELD_OUT_PAIR])
    )
    name = {1: "one", 2: "two"}[processes]
    measured = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"one": [], "two": []}
    best = {Setting(**row.pop("setting")): row for row in measured[name]}
    for _ in range(repeats):
        for setting in settings:
            found = _in_processes(work, setting, processes)
            best[setting] = {key: min(value, best.get(setting, found)[key]) for key, value in found.items()}
            print(f"{setting.name}: {best[setting]['seconds']:.3f} s", file=sys.stderr)
        measured[name] = [{"setting": asdict(setting), **own} for setting, own in best.items()]
        file.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


# ---- fit -----------------------------------------------------------------------------------------------------------------


def fit(rows: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns coefficients, none below 0, with the least squares of relative errors."""
    scaled = rows / values[:, None]
    sizes = np.abs(scaled).max(0)
    kept = list(range(rows.shape[1]))
    while True:
        solved = np.linalg.lstsq(scaled[:, kept] / sizes[kept], np.ones(len(values)), rcond=None)[0]
        if (solved >= 0).all():
            break
        del kept[int(solved.argmin())]
    out = np.zeros(rows.shape[1])
    out[kept] = solved / sizes[kept]
    return out


class Plan:
    """The fitted functions."""

    def __init__(self, measured: dict[str, Any]) -> None:
        one = {Setting(**row["setting"]): row for row in measured["one"]}
        two = {Setting(**row["setting"]): row for row in measured["two"]}
        self.one, self.two = one, two
        rows = [one[setting] for setting in FITTED]
        table = [counts(setting, row["density"], row["weights"]) for setting, row in zip(FITTED, rows, strict=True)]
        self.time = self._fit(table, TIME, [row["seconds"] for row in rows])
        self.memory = self._fit(table, MEMORY, [row["bytes"] for row in rows])
        pairs = [two[setting] for setting in PAIRS if setting in two]
        sums = [{"latency": 1.0, "bytes": 4.0 * row["weights"]} for row in pairs]  # 8 (N - 1) / N bytes a weight, N = 2
        self.sum = self._fit(sums, ("latency", "bytes"), [row["sum"] for row in pairs]) if pairs else {}

    @staticmethod
    def _fit(table: list[dict[str, float]], names: tuple[str, ...], values: list[float]) -> dict[str, float]:
        found = fit(np.array([[row[name] for name in names] for row in table]), np.array(values))
        return dict(zip(names, map(float, found), strict=True))

    def seconds(self, setting: Setting, density: float, weights: float, ranks: int = 1) -> float:
        own = counts(setting, density, weights)
        alone = sum(coefficient * own[name] for name, coefficient in self.time.items())
        return alone if ranks == 1 else alone + self.sum["latency"] + self.sum["bytes"] * 8 * (ranks - 1) / ranks * weights

    def bytes(self, setting: Setting, density: float, weights: float) -> float:
        own = counts(setting, density, weights)
        return sum(coefficient * own[name] for name, coefficient in self.memory.items())

    def errors(self, settings: list[Setting]) -> list[tuple[Setting, dict[str, float], float, float]]:
        """Returns every setting with its measurement and the predicted seconds and bytes."""
        found = []
        for setting in settings:
            row = self.one[setting]
            facts = (setting, row["density"], row["weights"])
            found.append((setting, row, self.seconds(*facts), self.bytes(*facts)))
        return found


def report(plan: Plan) -> str:
    """Returns coefficients and errors as Markdown."""
    lines = ["| coefficient | value |", "|---|---|"]
    lines += [f"| seconds per {name} | {value:.3g} |" for name, value in plan.time.items()]
    lines += [f"| bytes per {name} | {value:.3g} |" for name, value in plan.memory.items()]
    lines += [f"| sum of gradients: seconds per {name} | {value:.3g} |" for name, value in plan.sum.items()]
    fitted = plan.errors(FITTED)
    for what, errors in (
        ("seconds", [abs(seconds / row["seconds"] - 1) for _, row, seconds, _ in fitted]),
        ("bytes", [abs(size / row["bytes"] - 1) for _, row, _, size in fitted]),
    ):
        lines.append(f"\nFitted settings, {what}: error {np.median(errors):.0%} in the median, at most {max(errors):.0%}.")
    lines += [
        "",
        "| held out | density | seconds: predicted, measured | error | MB: predicted, measured | error |",
        "|---|---|---|---|---|---|",
    ]
    for setting, row, seconds, size in plan.errors(HELD_OUT):
        times = f"{seconds:.3f}, {row['seconds']:.3f} | {seconds / row['seconds'] - 1:+.0%}"
        sizes = f"{size / 1e6:.0f}, {row['bytes'] / 1e6:.0f} | {size / row['bytes'] - 1:+.0%}"
        lines.append(f"| {setting.name} | {row['density']:.2f} | {times} | {sizes} |")
    if HELD_OUT_PAIR not in plan.two:
        return "\n".join(lines)
    pair, alone = plan.two[HELD_OUT_PAIR], plan.one[HELD_OUT_PAIR]
    predicted = plan.seconds(HELD_OUT_PAIR, alone["density"], alone["weights"], 2)
    times = f"{predicted:.3f}, {pair['seconds']:.3f} | {predicted / pair['seconds'] - 1:+.0%}"
    lines.append(f"| two processes: {HELD_OUT_PAIR.name} | {alone['density']:.2f} | {times} | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", dest="measured", type=Path)
    options = parser.parse_args()
    if (options.out is None) == (options.measured is None):
        parser.error("give --out to measure, or --from to read measurements")
    torch.set_num_threads(1)
    if options.out is not None:
        measure_all(options.processes, options.repeats, options.out)
    print(report(Plan(json.loads((options.out or options.measured).read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
