"""The choice of an implementation: "reference" or "cpu", from the caller's `impl` and the tensor's device.

An explicit `impl` runs or raises the reason; it never falls back. "auto" takes the fastest that can run and, when that is not
the one meant for the device, warns once per process.
"""

import warnings
from typing import Literal

import torch

from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels import native
from entformer.kernels.checks import traced_by_jit

Impl = Literal["auto", "reference", "cpu", "triton"]
IMPLS: tuple[str, ...] = ("auto", "reference", "cpu", "triton")

_already_said: set[str] = set()


class SlowPathWarning(UserWarning):
    """`impl="auto"` uses a slower implementation than the one meant for the device, or materializes the scores."""


def resolve(impl: str, device_type: str) -> str:
    """The implementation that will run: `"reference"` or `"cpu"`."""
    if impl not in IMPLS:
        raise ArgumentError(f"impl={impl!r} is not known; choose one of {', '.join(IMPLS)}.")
    if impl == "reference":
        return "reference"
    if impl == "triton":
        raise ImplUnavailable("impl='triton' is not built in this version; use impl='auto' or impl='reference'.")
    if device_type != "cpu":
        if impl == "cpu":
            raise ImplUnavailable(f"impl='cpu' cannot run on a {device_type} tensor; move it to the CPU or use impl='auto'.")
        if device_type == "meta":
            return "cpu"  # shapes alone: the operators' shape functions give them
        warn_once(
            f"entformer has no fused kernel for {device_type} tensors yet; it uses the reference implementation in float32, "
            "which is slower and materializes the scores of attention."
        )
        return "reference"
    why_not = native.load()
    if why_not is None:
        return "cpu"
    if impl == "cpu":
        raise ImplUnavailable(f"impl='cpu' cannot run here: {why_not}")
    warn_once(f"entformer uses its slow reference implementation: {why_not} Run `entformer doctor` for details.")
    return "reference"


# Loading the library compiles, locks and reads files: the tracer must take the answer, not the way to it. This is what
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
    if device_type == "mps":
        return torch.float32
    return torch.float64 if exact or dtype == torch.float64 else torch.float32


def exporting_to_onnx() -> bool:
    """Whether torch.onnx.export is tracing: operators must then be replaced by what ONNX has."""
    return (torch.compiler.is_exporting() or traced_by_jit()) and torch.onnx.is_in_onnx_export()
