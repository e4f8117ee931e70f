"""`entformer doctor`: what runs on this machine and why. Out: a report as text or JSON, and the exit code."""

import json
import os
import platform
import shlex
import subprocess
import warnings
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.text import Text

from entformer import __version__
from entformer.bench.harness import cpu_name
from entformer.cli.self_test import SelfTest, self_test
from entformer.errors import ImplUnavailable
from entformer.kernels import native
from entformer.kernels.registry import resolve

OPERATORS = (  # those with kernels
    "entformer::entmax",
    "entformer::entmax_backward",
    "entformer::attention",
    "entformer::attention_backward",
    "entformer::attention_support",
)
INSTRUCTION_SETS = tuple(reversed(native.X86_FLAGS))  # widest first


@dataclass(frozen=True, kw_only=True)
class Service:
    """Who computes an operator on a device."""

    serves: str
    why_not: dict[str, str]
    """Each other implementation -> the reason."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentReport:
    """Everything `entformer doctor` knows."""

    entformer: str
    python: str
    torch: str
    system: str
    cpu: str
    cores: int
    threads: int
    compiler: str | None
    compiler_version: str | None
    cache: str
    library: str | None
    instruction_set: str | None
    instruction_sets: dict[str, bool]
    operators: dict[str, dict[str, Service]]
    """Operator -> device of the tensors -> who serves."""
    self_test: SelfTest


def run(*, as_json: bool) -> int:
    """Examine, report, and return the exit code."""
    findings = examine()
    if as_json:
        print(json.dumps(asdict(findings), indent=1))
    else:
        _print(findings, Console())
    return 0 if findings.self_test.passed else 1


def examine() -> EnvironmentReport:
    """Look at this machine. Builds the kernels if they are not built yet."""
    why_not = native.load()
    available = _available_instruction_sets()
    library = native.library_path()
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    return EnvironmentReport(
        entformer=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        compiler=shlex.join(compiler) if (compiler := _compiler()) else None,
        compiler_version=_compiler_version(),
        cache=str(native.cache_dir()),
        library=str(library) if library else None,
        instruction_set=native.isa() if why_not is None else None,
        instruction_sets=available,
        operators={name: {device: _who_serves(device) for device in devices} for name in OPERATORS},
        self_test=self_test([name for name, works in available.items() if works]),
    )


def _available_instruction_sets() -> dict[str, bool]:
    if native.load() is not None:
        return {}
    before = native.isa()
    try:
        return {name: native.set_isa(name) for name in INSTRUCTION_SETS}
    finally:
        native.set_isa(before)


def _who_serves(device: str) -> Service:
    """Which implementation takes tensors of a device, and what keeps the others from it. All operators share a library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what "auto" would warn about is in the report
        serves = resolve("auto", device)
    why_not = {}
    for name in ("triton", "cpu"):
        try:
            resolve(name, device)
        except ImplUnavailable as problem:
            why_not[name] = str(problem)
    if serves != "reference":
        why_not["reference"] = "it is slower: the definition that the others are tested against."
    return Service(serves=serves, why_not=why_not)


def _compiler() -> list[str] | None:
    try:
        return native.compiler()
    except native.BuildError:  # why there are no kernels says it
        return None


def _compiler_version() -> str | None:
    command = _compiler()
    if command is None:
        return None
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(done.stdout.splitlines()), None)


def _print(findings: EnvironmentReport, console: Console) -> None:
    def say(label: str, text: str, style: str = "") -> None:
        console.print(Text.assemble((f"{label:<14}", "dim"), (text, style)), soft_wrap=True)  # paths stay whole for copying

    say("entformer", findings.entformer)
    say("python", f"{findings.python}, {findings.system}")
    say("torch", f"{findings.torch}, threads: {findings.threads}")
    say("processor", f"{findings.cpu}, cores: {findings.cores}")
    say("compiler", f"{findings.compiler} ({findings.compiler_version})" if findings.compiler else "none found")
    say("kernel cache", findings.cache)
    say("library", findings.library or "none")
    if findings.instruction_set:
        others = [name for name, works in findings.instruction_sets.items() if works and name != findings.instruction_set]
        missing = [name for name, works in findings.instruction_sets.items() if not works]
        also = f"; also here: {', '.join(others)}" if others else ""
        lacking = f"; not on this CPU: {', '.join(missing)}" if missing else ""
        say("instructions", f"{findings.instruction_set} in use{also}{lacking}")

    console.print()
    for device in next(iter(findings.operators.values())):
        for serving in ("triton", "cpu", "reference"):
            served = [name.split("::")[1] for name, on in findings.operators.items() if on[device].serves == serving]
            if served:
                say(f"on {device}", f"served by {serving}: {', '.join(served)}", "bold")
        reasons = {item for on in findings.operators.values() for item in on[device].why_not.items()}
        for name, reason in sorted(reasons):
            say(f"on {device}", f"not by {name}: {reason}")

    console.print()
    test = findings.self_test
    verdict = "passed" if test.passed else "FAILED"
    on = f" on {', '.join(test.instruction_sets)}" if test.instruction_sets else ""
    say(
        "self-test",
        f"{verdict}: {test.compared}{on}, {test.cases} cases in {test.seconds:.1f} s",
        "green" if test.passed else "red",
    )
    worst = ", ".join(f"{what} {error:.1e}" for what, error in test.largest_error.items())
    say("largest error", f"{worst} (allowed: {test.tolerance:.0e})")
    if not test.passed:
        say("", "The kernels give wrong numbers here. Set ENTFORMER_NATIVE=0 to do without them, and please report this.")
