"""Peak memory of attention relative to SDPA, its growth when the length doubles, and long prefill and decode.

    python benchmarks/attention_memory.py [--lengths 2048,8192] [--doubling 2048,4096,8192] [--prefill 16384] [--decode 65536]

Sizes are (1, 8, L, 64). Each memory measurement runs in a new process, so that nothing freed before is counted or reused: the
inputs are created, the implementation runs once on a tiny problem, the peak is reset, and VmHWM of /proc/self/status is read
after one forward and backward pass (prefill and decode: forward). Reported is the peak above the resident memory before:
outputs, gradients, saved tensors and workspace, without the inputs. Linux only.

Doubling the length, forward+backward at alpha = 1.5: with "same logits" the density falls with the length, with "same density"
the logits are scaled down until the density is that of the shortest length.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from entformer.bench.attention import BASELINE, Case, density, implementation, make_inputs, measure
from entformer.bench.harness import forward, forward_backward, get_signature, time_interleaved

PROC = Path("/proc/self")
LONG = ("1.5", "learned", "2", "1.5 nape", "learned nape", "2 nape")


def case_at(length: int, kind: str = "plain", scale: float = 1.0, queries: int | None = None) -> Case:
    count = 1 if kind == "decode" else queries or length
    return Case(batch=1, heads=8, queries=count, keys=length, size=64, kind=kind, scale=scale, threads=torch.get_num_threads())


def work(name: str, case: Case) -> Callable[[], object]:
    inputs = make_inputs(case)
    function, parameters = implementation(name, inputs)
    if case.kind in ("decode", "prefill"):
        return forward(function)
    return forward_backward(function, [inputs.q, inputs.k, inputs.v, *parameters], inputs.grad)


def peak_memory(name: str, length: int, *, kind: str = "plain", scale: float = 1.0) -> float:
    """Returns the peak above the inputs in MiB, measured in a new process."""
    arguments = json.dumps([name, length, kind, scale, torch.get_num_threads()])
    done = subprocess.run([sys.executable, __file__, "--child", arguments], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure_in_this_process(name: str, length: int, kind: str, scale: float, threads: int) -> float:
    torch.set_num_threads(threads)
    run = work(name, case_at(length, kind, scale))
    work(name, case_at(16, kind))()
    (PROC / "clear_refs").write_text("5")  # resets the peak to the resident memory
    before = status("VmRSS")
    results = run()  # kept until the peak is read: gradients are part of what is needed
    peak = status("VmHWM")
    del results
    return (peak - before) / 1024


def status(field: str) -> int:
    """Returns a field of /proc/self/status in KiB."""
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def scale_for_density(length: int, target: float) -> float:
    """Returns the logit scale that gives this density, by bisection on a sample of 128 queries."""
    sample = make_inputs(case_at(length, queries=128))
    low, high = 0.0, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        found = density("1.5", replace(sample, q=sample.q.detach() * middle))
        low, high = (middle, high) if found > target else (low, middle)
    return (low + high) / 2


def print_doubling(lengths: list[int]) -> None:
    target = density("1.5", make_inputs(case_at(lengths[0], queries=128)))
    for series in ("same logits", "same density"):
        scales = [1.0 if series == "same logits" else scale_for_density(length, target) for length in lengths]
        cases = [case_at(length, scale=scale) for length, scale in zip(lengths, scales, strict=True)]
        seconds = time_interleaved({str(case.keys): work("1.5", case) for case in cases}, rounds=5, warmup=1)
        times = [median(seconds[str(length)]) for length in lengths]
        memory = [peak_memory("1.5", length, scale=scale) for length, scale in zip(lengths, scales, strict=True)]
        for index, length in enumerate(lengths):
            growth = f"x{times[index] / times[index - 1]:.2f}, memory x{memory[index] / memory[index - 1]:.2f}" if index else ""
            print(f"{series}, {length}: {times[index] * 1e3:.0f} ms, {memory[index]:.0f} MiB {growth}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,8192", help="peak memory of forward+backward at these lengths")
    parser.add_argument("--doubling", default="", help="time and memory at these lengths, each relative to the one before")
    parser.add_argument("--prefill", type=int, help="causal prefill of this length")
    parser.add_argument("--decode", type=int, help="one query over this many keys")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(measure_in_this_process(*json.loads(options.child)))
        return
    print(get_signature())
    for length in [int(text) for text in options.lengths.split(",") if text]:
        baseline = peak_memory(BASELINE, length)
        for name in ("1.5", "learned", "1.01"):
            found = peak_memory(name, length)
            print(f"peak memory at {length}: {name} {found:.0f} MiB, {found / baseline:.2f} of SDPA")
    if options.doubling:
        print_doubling([int(text) for text in options.doubling.split(",")])
    for kind, length in (("prefill", options.prefill), ("decode", options.decode)):
        if length is not None:
            for m in measure(case_at(length, kind), LONG, rounds=3 if kind == "prefill" else 31):
                memory = peak_memory(m.implementation, length, kind=kind)
                print(f"{m.case}: {m.implementation} {m.ratio:.2f} of SDPA ({m.ms:.1f} ms), {memory:.0f} MiB")


if __name__ == "__main__":
    main()
