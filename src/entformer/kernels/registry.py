"""The implementations of the operators, and the choice among them.

An explicit `impl` runs or raises the reason; it never falls back. "auto" takes the first of `IMPLEMENTATIONS` that can run
and, when that is not the one meant for the device, warns once per process.

A further implementation is one line in the tuple and one file per operator, `kernels/<operator>/<name>.py`, which registers its
kernels with torch.library and has `unsupported(...)`: what it lacks for the given arguments, or None.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch

from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels import native, triton_host
from entformer.kernels.checks import traced_by_jit

Impl = Literal["auto", "reference", "cpu", "triton"]
IMPLS: tuple[str, ...] = get_args(Impl)

_already_said: set[str] = set()


class SlowPathWarning(UserWarning):
    """`impl="auto"` uses a slower implementation than the one meant for the device, or materializes the scores."""


class Implementation(NamedTuple):
    """One implementation of all operators."""

    name: str
    device: str | None  # of the tensors it takes; None: any
    module: str  # of an operator
    unavailable: Callable[[], str | None]  # why it cannot run on this machine, or None


IMPLEMENTATIONS = (  # fastest first
    Implementation("cpu", "cpu", "entformer.kernels.{op}.cpu", lambda: triton_host.cpu_taken() or native.load()),
    Implementation("triton", triton_host.DEVICE, "entformer.kernels.{op}.triton", lambda: triton_host.unavailable()),
    Implementation("reference", None, "entformer.kernels.{op}.reference", lambda: None),
)


def load_implementations(op: str) -> dict[str, Any]:
    """Returns the modules of the operator `op` by implementation, without the reference, which has everything."""
    names = {entry.name: entry.module.format(op=op) for entry in IMPLEMENTATIONS if entry.device is not None}
    return {name: importlib.import_module(module) for name, module in names.items()}


def kernels_loaded() -> bool:
    """Whether the C++ kernels are in use already: less work than `resolve`, which loads them."""
    return native.library() is not None and triton_host.cpu_taken() is None


def resolve(impl: str, device_type: str) -> str:
    """Returns the name of the implementation that will run for tensors on a device."""
    if impl not in IMPLS:
        raise ArgumentError(f"impl={impl!r} is not known; choose one of {', '.join(IMPLS)}.")
    if impl != "auto" and impl not in {entry.name for entry in IMPLEMENTATIONS}:
        raise ImplUnavailable(f"impl={impl!r} is not built in this version; use impl='auto' or impl='reference'.")
    if device_type == "meta" and impl == "auto":
        return IMPLEMENTATIONS[0].name  # shapes alone: the operators' fake kernels give them
    reason = (
        f"entformer has no fused kernel for {device_type} tensors yet; it uses the reference implementation in float32, "
        "which is slower and materializes the scores of attention."
    )
    for entry in IMPLEMENTATIONS:
        if impl not in ("auto", entry.name):
            continue
        if entry.device not in (None, device_type):
            if impl != "auto":
                where = f"move it to {'the CPU' if entry.device == 'cpu' else f'a {entry.device} device'} or use impl='auto'"
                raise ImplUnavailable(f"impl={impl!r} cannot run on a {device_type} tensor; {where}.")
            continue
        why_not = entry.unavailable()
        if why_not is None:
            if impl == "auto" and entry.device is None:
                warn_once(reason)
            return entry.name
        if impl != "auto":
            raise ImplUnavailable(f"impl={impl!r} cannot run here: {why_not}")
        reason = f"entformer uses its slow reference implementation: {why_not} Run `entformer doctor` for details."
    raise ImplUnavailable(reason)


# Loading the library compiles, locks and reads files: the tracer must take the result as a constant. This is what
# torch.compiler.assume_constant_result does; called here, it would import the whole compiler with us.
resolve.__dict__["_dynamo_marked_constant"] = True


def warn_once(message: str, stacklevel: int = 4) -> None:
    """Emits a SlowPathWarning the first time it gets this message; nothing while compiling."""
    if message not in _already_said and not torch.compiler.is_compiling():
        _already_said.add(message)
        warnings.warn(message, SlowPathWarning, stacklevel=stacklevel)


def dense_dtype(dtype: torch.dtype, device_type: str, *, exact: bool) -> torch.dtype:
    """The dtype of plain PyTorch arithmetic on tensors of `dtype`.

    float64 for float64 tensors and for an explicit impl="reference" (`exact`), the definition; float32 otherwise: other
    devices than CPUs have float64 at a small part of their speed, or not at all.
    """
    return work_dtype(torch.device(device_type)) if exact or dtype == torch.float64 else torch.float32


def work_dtype(device: torch.device) -> torch.dtype:
    """float64 wherever the device has it: the reference is an oracle first."""
    return torch.float32 if device.type == "mps" else torch.float64


def exporting_to_onnx() -> bool:
    """Whether torch.onnx.export is tracing: operators must then be replaced by what ONNX has."""
    return (torch.compiler.is_exporting() or traced_by_jit()) and torch.onnx.is_in_onnx_export()
