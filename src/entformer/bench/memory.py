"""Peak memory of attention. In: lengths. Out: a `MemoryResult` per length and contestant, or the `Peak` of one call.

Each measurement has a process of its own (`python -m entformer.bench.memory`), so that nothing freed before is counted or
reused. There the inputs are made, the contestant runs once on a tiny problem so that libraries are loaded, and then the
resident memory is noted and the peak set back. What counts is the peak of one forward+backward (prefill and decode:
forward) above that: outputs, gradients, what is kept for backward, and scratch, but not the inputs.

The peak is VmHWM of /proc/self/status. getrusage's ru_maxrss would not do: a child inherits the peak of the process that
started it. Where there is no /proc the measurement is left out.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from entformer.bench import attention_racers as racers
from entformer.bench.attention_plan import Setting
from entformer.errors import EntformerError

HEADS, SIZE = 8, 64
CONTESTANTS = (racers.SDPA, "1.5", "learned", "1.01")
PROC = Path("/proc/self")


@dataclass(frozen=True, kw_only=True)
class MemoryResult:
    """What one forward+backward at (1, 8, length, 64) needs beside its inputs."""

    length: int
    contestant: str
    megabytes: float
    """Of 2^20 bytes."""
    ratio: float
    """To SDPA at the same length."""


def measure_memory(
    lengths: Sequence[int], *, threads: int, progress: Callable[[str], None] = lambda _: None
) -> list[MemoryResult]:
    """Every contestant of CONTESTANTS at every length."""
    results = []
    for length in lengths:
        baseline = 0.0
        for name in CONTESTANTS:
            progress(f"peak memory: {name}, length {length}")
            found = peak_memory(name, length, threads=threads)
            if found is None:
                return []
            baseline = found.beside if name == racers.SDPA else baseline
            ratio = found.beside / baseline
            results.append(MemoryResult(length=length, contestant=name, megabytes=found.beside, ratio=ratio))
    return results


class Peak(NamedTuple):
    """Of one process, in megabytes of 2^20 bytes."""

    beside: float
    """Beside the inputs."""
    whole: float
    """Of the whole process: Python, torch, the inputs, everything."""


def peak_memory(name: str, length: int, *, threads: int, scale: float = 1.0, kind: str = "plain") -> Peak | None:
    """One measurement, in a new process; None where the system does not tell. `kind`: of `Setting`."""
    if not (PROC / "clear_refs").exists():
        return None
    wish = json.dumps({"name": name, "length": length, "threads": threads, "scale": scale, "kind": kind})
    done = subprocess.run([sys.executable, "-m", __spec__.name, wish], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        raise EntformerError(f"the memory of {name} at length {length} could not be measured: {reason}")
    return Peak(*json.loads(done.stdout))


def _measure_here(name: str, length: int, threads: int, scale: float, kind: str) -> Peak:
    torch.set_num_threads(threads)
    attend, alphas = racers.contestant(name, HEADS)

    def work_at(length: int) -> Callable[[], object]:
        setting = _setting(length, threads, scale, kind)
        inputs = racers.make_inputs(setting)
        return racers.forward_backward(attend, inputs, alphas) if setting.backward else racers.forward(attend, inputs)

    work = work_at(length)
    work_at(16)()
    (PROC / "clear_refs").write_text("5")  # sets the peak back to what is resident now
    before = _status("VmRSS")
    held = work()  # held, because the gradients are part of what is needed
    peak = _status("VmHWM")
    del held
    return Peak((peak - before) / 1024, peak / 1024)


def _setting(length: int, threads: int, scale: float, kind: str) -> Setting:
    sizes = {"batch": 1, "heads": HEADS, "queries": 1 if kind == "decode" else length, "keys": length, "size": SIZE}
    return Setting(**sizes, kind=kind, scale=scale, threads=threads, rounds=1, slow_rounds=1)


def _status(field: str) -> int:
    """Kilobytes."""
    for line in (PROC / "status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise EntformerError(f"{PROC / 'status'} has no {field}.")


if __name__ == "__main__":
    print(json.dumps(_measure_here(**json.loads(sys.argv[1]))))
