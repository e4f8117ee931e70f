"""Launches of kernels; they can be recorded instead, with their arguments, to be compiled for a GPU that is not there."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class Launch(NamedTuple):
    """One launch."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, int]


_recorded: list[Launch] | None = None


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Collects the launches of this process; none of them runs."""
    global _recorded
    found: list[Launch] = []
    _recorded = found
    try:
        yield found
    finally:
        _recorded = None


def launch(kernel: Any, programs: int, *arguments: Any, options: dict[str, int], **constants: Any) -> None:
    """Runs a kernel on the current device; `options` are those of the compiler."""
    if _recorded is not None:
        _recorded.append(Launch(kernel, arguments, constants, options))
    elif programs > 0:
        kernel[(programs,)](*arguments, **constants, **options)
