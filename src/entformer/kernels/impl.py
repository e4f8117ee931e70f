"""Which implementation runs. In: the caller's wish and the tensor's device. Out: "reference" or "cpu".

An explicit wish is honoured or refused with a reason; it never falls back. "auto" takes the fastest that can run and, when
that is not the one meant for the device, says so once per process.
"""

import warnings
from typing import Literal

from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels import native

Impl = Literal["auto", "reference", "cpu", "triton"]
IMPLS: tuple[str, ...] = ("auto", "reference", "cpu", "triton")

_already_said: set[str] = set()


class SlowPathWarning(UserWarning):
    """`impl="auto"` had to use the reference implementation."""


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
        _say_once(f"entformer has no fused kernel for {device_type} tensors yet; using the slower reference implementation.")
        return "reference"
    why_not = native.load()
    if why_not is None:
        return "cpu"
    if impl == "cpu":
        raise ImplUnavailable(f"impl='cpu' cannot run here: {why_not}")
    _say_once(f"entformer uses its slow reference implementation: {why_not} Run `entformer doctor` for details.")
    return "reference"


# Loading the library compiles, locks and reads files: the tracer must take the answer, not the way to it. This is what
# torch.compiler.assume_constant_result does; called here, it would import the whole compiler with us.
resolve.__dict__["_dynamo_marked_constant"] = True


def _say_once(message: str) -> None:
    if message not in _already_said:
        _already_said.add(message)
        warnings.warn(message, SlowPathWarning, stacklevel=4)
