"""Applies the plan of `scale_plan.py` to GPUs that were not tried: Transformer-Base on WMT14 and a decoder of 1B weights.

    python benchmarks/scale_gpus.py --from FILE.json      # written by scale_plan.py --out

The functions are those of `scale_plan.py`. Bytes per weight and per activation are the fitted ones (activations in bfloat16
take half of them); seconds are those of the assumptions in `A100`, since a CPU says nothing about a GPU's. Prints the table of
docs/scale.md.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from scale_plan import Plan, Setting, counts


@dataclass(frozen=True)
class Hardware:
    """Assumptions about GPUs and what connects them."""

    flops: float = 0.4 * 312e12  # of bfloat16 products: 40% of the peak
    bandwidth: float = 0.7 * 2.0e12  # bytes per second of memory: 70% of the peak
    attention: float = 0.5 * 312e12  # FLOPs of FlashAttention-2, forward and backward
    dense: float = 0.15  # time of sparse attention over FlashAttention-2's without any block with support, and
    blocks: float = 1.7  # what is added if all blocks have some: a line through the predictions of docs/gpu.md
    per_layer: float = 0.6e-3  # seconds to start the kernels of a layer, forward and backward
    moved: float = 12.0  # bytes of memory traffic per output of a matrix, forward and backward
    inside: float = 230e9  # bytes per second of an all-reduce inside a machine of 8 (NVLink)
    between: float = 160e9  # between machines, with one network card of 200 Gb/s per GPU
    latency: float = 0.2e-3  # seconds of the sums of a step that hide behind nothing
    hidden: float = 0.6  # share of the time of computing behind which sums can hide
    memory: float = 80e9


A100 = Hardware()


@dataclass(frozen=True)
class Job:
    """A training on GPUs."""

    name: str
    setting: Setting  # tokens of one GPU in a step
    weights: float
    blocks: float  # share of the blocks of attention with support
    total: float  # target tokens, or tokens, of the training
    fsdp: bool = False
    recompute: bool = False  # training.checkpoint_activations


BASE = 6 * 28 * 512**2 + 37000 * 512
DECODER = 16 * 16 * 2048**2 + 32000 * 2048
JOBS = {
    8: [
        Job("Transformer-Base, WMT14, ddp", Setting("translation", 6, 512, 37000, 3125, 30), BASE, 1.0, 300000 * 25000),
        Job("1B decoder, fsdp", Setting("lm", 16, 2048, 32000, 16384, 4096), DECODER, 0.49, 20e9, fsdp=True),
        Job("the same, recompute", Setting("lm", 16, 2048, 32000, 16384, 4096), DECODER, 0.49, 20e9, fsdp=True, recompute=True),
    ],
    64: [
        Job("Transformer-Base, WMT14, ddp", Setting("translation", 6, 512, 37000, 6250, 30), BASE, 1.0, 300000 * 25000),
        Job("1B decoder, fsdp", Setting("lm", 16, 2048, 32000, 16384, 4096), DECODER, 0.49, 20e9, fsdp=True),
        Job("the same, recompute", Setting("lm", 16, 2048, 32000, 16384, 4096), DECODER, 0.49, 20e9, fsdp=True, recompute=True),
    ],
}


def seconds(job: Job, ranks: int, machine: Hardware) -> tuple[float, float]:
    """Returns the time of a step and the part of it that waits for communication."""
    own = counts(job.setting, 1.0, job.weights)
    sparse = machine.dense + machine.blocks * job.blocks
    again = 4 / 3 if job.recompute else 1.0
    computing = again * own["flops"] / machine.flops + again * own["outputs"] * machine.moved / machine.bandwidth
    computing += again * 14 * own["pairs"] * sparse / machine.attention + own["layers"] * machine.per_layer
    held = own["weights"] / (ranks if job.fsdp else 1)
    computing += 36 * held / machine.bandwidth  # AdamW and clipping
    sent = 8 * (ranks - 1) / ranks * own["weights"] / (machine.inside if ranks <= 8 else machine.between)
    waiting = machine.latency + max(0.0, sent - machine.hidden * computing)
    return computing + waiting, waiting


def memory(job: Job, ranks: int, plan: Plan) -> float:
    """Returns the bytes of one GPU."""
    own, fitted = counts(job.setting, 1.0, job.weights), plan.memory
    state = fitted["weights"] * own["weights"]
    if job.fsdp:  # a part of everything, and two layers with their gradients, gathered
        state = state / ranks + 2 * (2 + 4) * own["weights"] / job.setting.layers
    activations = 0.5 * fitted["outputs"] * own["outputs"]  # GPU kernels save no weights of attention
    if job.recompute:  # the inputs of layers, and one layer
        activations = 4 * job.setting.tokens * job.setting.width * own["layers"] + activations / own["layers"]
    return fitted["one"] + state + activations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="measured", type=Path, required=True)
    plan = Plan(json.loads(parser.parse_args().measured.read_text(encoding="utf-8")))
    print("| GPUs | training | tokens of a step | GB a GPU | seconds a step | waiting | tokens/s | days |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks, jobs in JOBS.items():
        for job in jobs:
            time, waiting = seconds(job, ranks, A100)
            tokens = ranks * job.setting.tokens
            size = memory(job, ranks, plan)
            fits = "" if size < A100.memory else " (does not fit)"
            days = job.total / tokens * time / 86400
            figures = f"{size / 1e9:.1f}{fits} | {time:.3g} | {waiting / time:.0%} | {tokens / time:,.0f} | {days:.2g}"
            print(f"| {ranks} | {job.name} | {tokens:,} | {figures} |")


if __name__ == "__main__":
    main()
