"""`entformer doctor`: reports which implementation runs on this machine and why, and tests it."""

import json
import os
import platform
import shlex
import warnings
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from entformer import __version__
from entformer.cli.options import Json

OPERATORS = (  # those with kernels
    "entformer::entmax",
    "entformer::entmax_backward",
    "entformer::attention",
    "entformer::attention_backward",
    "entformer::attention_support",
    "entformer::attention_support_backward",
)


def doctor(as_json: Json = False) -> None:
    """Show which implementation runs on this machine and why, and test it. Exits with code 1 if the self-test fails."""
    report = examine()
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        _print(report, Console())
    if not report["self_test"]["passed"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Returns everything `entformer doctor` reports. Builds the kernels if they are not built yet."""
    import torch

    from entformer.bench.harness import cpu_name
    from entformer.cache import cache_root
    from entformer.cli.self_test import self_test
    from entformer.kernels import native
    from entformer.kernels.build import compiler_version
    from entformer.kernels.sources import sources_hash

    why_not = native.load()
    available: dict[str, bool] = {}
    if why_not is None:
        before = native.isa()
        try:
            available = {name: native.set_isa(name) for name in native.INSTRUCTION_SETS}
        finally:
            native.set_isa(before)
    names = ("choice", "path", "condition")  # the first condition that holds decides the path of the kernels
    paths = [] if why_not else [dict(zip(names, row, strict=True)) for row in native.dispatch_table()]
    library = native.library()
    try:
        compiler = native.compiler()
    except native.BuildError:  # reported as the reason why there are no kernels
        compiler = None
    devices = {device: _dispatch(device) for device in ["cpu"] + ["cuda"] * torch.cuda.is_available()}
    return {
        "entformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "compiler": shlex.join(compiler) if compiler else None,
        "compiler_version": (compiler_version(compiler) or None) if compiler else None,
        "cache": str(cache_root()),
        "library": str(library.path) if library else None,
        "origin": library.origin if library else "reference",
        "origin_reason": library.reason if library else why_not,
        "sources": sources_hash(),
        "triton": _triton(),
        "distributed": _distributed(),
        "instruction_set": native.isa() if why_not is None else None,
        "instruction_sets": available,
        "operators": dict.fromkeys(OPERATORS, devices),  # all operators share one library
        "dispatch_table": paths,
        "self_test": asdict(self_test([name for name, works in available.items() if works])),
    }


def _dispatch(device: str) -> dict[str, Any]:
    """Returns the implementation that runs on a device, and the reason why each other one does not."""
    from entformer.errors import ImplUnavailable
    from entformer.kernels.registry import resolve

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report contains what "auto" would warn about
        serves = resolve("auto", device)
    why_not = {}
    for name in ("triton", "cpu"):
        try:
            resolve(name, device)
        except ImplUnavailable as err:
            why_not[name] = str(err)
    if serves != "reference":
        why_not["reference"] = "slower; it is the definition that the others are tested against."
    return {"serves": serves, "why_not": why_not}


def _triton() -> str:
    """The version of Triton and whether its kernels, which run on GPUs, can be used."""
    from entformer.bench.harness import installed_version
    from entformer.kernels import triton_host

    why_not = triton_host.unavailable()
    version = installed_version("triton")
    if version is None:
        return f"GPU kernels do not run: {why_not}" if why_not else "installed"
    return f"{version}; GPU kernels {'run' if why_not is None else f'do not run: {why_not}'}"


def _distributed() -> list[str]:
    """The back ends of torch.distributed in this build of torch."""
    from torch import distributed

    known = ("gloo", "nccl", "mpi", "ucc", "xccl")
    return [name for name in known if distributed.is_available() and getattr(distributed, f"is_{name}_available")()]


def _print(report: dict[str, Any], console: Console) -> None:
    def line(label: str, text: str, style: str = "") -> None:
        console.print(Text.assemble((f"{label:<14}", "dim"), (text, style)), soft_wrap=True)  # paths can be copied whole

    line("entformer", report["entformer"])
    line("python", f"{report['python']}, {report['system']}")
    line("torch", f"{report['torch']}, threads: {report['threads']}")
    line("processor", f"{report['cpu']}, cores: {report['cores']}")
    line("compiler", f"{report['compiler']} ({report['compiler_version']})" if report["compiler"] else "not found")
    line("kernel cache", report["cache"])
    line("library", report["library"] or "none")
    line("origin", f"{report['origin']}: {report['origin_reason']}")
    line("sources", report["sources"])
    line("triton", report["triton"])
    line("distributed", ", ".join(report["distributed"]) or "not in this build of torch")
    if report["instruction_set"]:
        others = [name for name, works in report["instruction_sets"].items() if works and name != report["instruction_set"]]
        missing = [name for name, works in report["instruction_sets"].items() if not works]
        also = f"; also available: {', '.join(others)}" if others else ""
        lacking = f"; not supported by this CPU: {', '.join(missing)}" if missing else ""
        line("instructions", f"{report['instruction_set']}{also}{lacking}")

    console.print()
    names = ", ".join(name.split("::")[1] for name in report["operators"])
    for device, dispatch in next(iter(report["operators"].values())).items():
        line(f"on {device}", f"{dispatch['serves']} runs {names}", "bold")
        for name, reason in sorted(dispatch["why_not"].items()):
            line(f"on {device}", f"not {name}: {reason}")

    console.print()
    test = report["self_test"]
    on = f" on {', '.join(test['instruction_sets'])}" if test["instruction_sets"] else ""
    line(
        "self-test",
        f"{'passed' if test['passed'] else 'FAILED'}: {test['compared']}{on}, {test['cases']} cases in {test['seconds']:.1f} s",
        "green" if test["passed"] else "red",
    )
    errors = ", ".join(f"{name} {error:.1e}" for name, error in test["largest_error"].items())
    line("largest error", f"{errors} (tolerance: {test['tolerance']:.0e})")
    if not test["passed"]:
        line("", "The kernels return wrong numbers on this machine. Set ENTFORMER_NATIVE=0 to disable them, and report this.")
