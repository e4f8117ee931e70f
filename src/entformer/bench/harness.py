"""Benchmark harness: interleaved timing, one record per measurement, and the signature of the machine.

Clocks change and other processes run, so times of separate runs cannot be compared. Here all functions run once per round, in
rotating order, and each time is divided by the baseline's time in the same round. Reported are the median and the quartiles of
these ratios; below 1 is faster than the baseline. With one thread its CPU time is measured: waiting for a core does not count.
"""

import gc
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from entformer import __version__
from entformer.errors import ArgumentError
from entformer.kernels import native

SEED = 20190904
Normalize = Callable[[Tensor, Any], Tensor]  # (scores, alpha) -> weights over the last dimension


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One implementation on one case, relative to the baseline."""

    case: str
    direction: str  # "forward", "forward+backward" or "step"
    implementation: str
    ratio: float  # median over rounds of time / baseline's time in the same round
    ratio_low: float  # lower quartile
    ratio_high: float  # upper quartile
    ms: float
    baseline_ms: float
    rounds: int
    details: dict[str, Any] = field(default_factory=dict)  # sizes, density, ...


@dataclass(frozen=True, kw_only=True)
class Report:
    """All measurements of a run, with what they were measured with."""

    benchmark: str
    baseline: str
    signature: "Signature"
    measurements: tuple[Measurement, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns numbers, strings and lists, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Versions and machine of a measurement."""

    entformer: str
    torch: str
    entmax: str | None  # None if the package is not installed
    python: str
    cpu: str
    implementation: str  # "cpu (avx2)", or "reference" with the reason
    threads: int

    def __str__(self) -> str:
        package = f"entmax {self.entmax}" if self.entmax else "entmax not installed"
        return (
            f"entformer {self.entformer}, {self.implementation} | torch {self.torch} | {package} | "
            f"Python {self.python} | {self.cpu}, {self.threads} thread{'s' if self.threads != 1 else ''}"
        )


def get_signature() -> Signature:
    """Returns the signature of this process."""
    reason = native.load()
    return Signature(
        entformer=__version__,
        torch=torch.__version__,
        entmax=installed_version("entmax"),
        python=platform.python_version(),
        cpu=cpu_name(),
        implementation=f"cpu ({native.isa()})" if reason is None else f"reference, because {reason.rstrip('.')}",
        threads=torch.get_num_threads(),
    )


def time_interleaved(
    functions: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2, max_rounds: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Runs every function once per round and returns the seconds each took, round by round.

    Args:
        max_rounds: slow functions run in this many of the first rounds only, without warm-up.
    """
    limits = max_rounds or {}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    names = list(functions)
    for _ in range(warmup):
        for name, function in functions.items():
            if name not in limits:
                function()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds):
            shift = index % len(names)  # so that no function always finds the caches of the same predecessor
            for name in names[shift:] + names[:shift]:
                if index < limits.get(name, rounds):
                    start = clock()
                    functions[name]()
                    seconds[name].append(clock() - start)
    finally:
        if was_collecting:
            gc.enable()
    return seconds


def measurements(
    seconds: Mapping[str, list[float]], baseline: str, case: str, direction: str, details: Mapping[str, Mapping[str, Any]]
) -> Iterator[Measurement]:
    """Yields one record per timed function but the baseline; `details` holds what to add by implementation."""
    for name, own in seconds.items():
        if name == baseline or not own:
            continue
        other = seconds[baseline][: len(own)]
        ratios = [a / b for a, b in zip(own, other, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [ratios[0]] * 3
        yield Measurement(
            case=case,
            direction=direction,
            implementation=name,
            ratio=median(ratios),
            ratio_low=low,
            ratio_high=high,
            ms=median(own) * 1e3,
            baseline_ms=median(other) * 1e3,
            rounds=len(own),
            details=dict(details.get(name, {})),
        )


def forward(function: Callable[[], Tensor]) -> Callable[[], object]:
    """Returns the forward pass of `function` without autograd."""

    def run() -> object:
        with torch.no_grad():
            return function()

    return run


def forward_backward(function: Callable[[], Tensor], inputs: list[Tensor], grad: Tensor) -> Callable[[], object]:
    """Returns the forward pass of `function` and the gradients to `inputs`."""
    return lambda: torch.autograd.grad(function(), inputs, grad)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Sets torch's number of threads inside the block; None leaves it as it is."""
    if count is not None and count < 1:
        raise ArgumentError(f"threads={count} must be at least 1.")
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def instruction_set(name: str | None) -> Iterator[None]:
    """Selects the kernels of an instruction set inside the block; None leaves the widest one.

    Raises:
        ArgumentError: if this CPU cannot run it, or there are no kernels.
    """
    reason = None if name is None else native.load()
    if reason is not None:
        raise ArgumentError(f"isa={name!r} needs the C++ kernels: {reason}")
    before = None if name is None else native.isa()
    if name is not None and not native.set_isa(name):
        raise ArgumentError(f"isa={name!r} cannot run on this CPU, whose widest instruction set is {before}.")
    try:
        yield
    finally:
        if before is not None:
            native.set_isa(before)


def entmax_package() -> dict[str, Normalize]:
    """Returns the fastest function of the `entmax` package for each kind of alpha; empty if it is not installed.

    alpha = 1 is missing: the package returns NaN there.
    """
    try:
        import entmax
    except ImportError:
        return {}
    return {
        "1.5": lambda scores, _: entmax.entmax15(scores, dim=-1),
        "2": lambda scores, _: entmax.sparsemax(scores, dim=-1),
        "learned": lambda scores, alpha: entmax.entmax_bisect(scores, alpha, dim=-1),
        "per head": lambda scores, alpha: entmax.entmax_bisect(scores, alpha.view(-1, 1, 1), dim=-1),
    }


def installed_version(package: str) -> str | None:
    """Returns the version of an installed distribution, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Returns the processor's name as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
