"""Tables of numbers that depend on positions alone, kept between calls and shared by all modules of a process.

A table is not state of a module. Buffers that grow would be broadcast by DistributedDataParallel, averaged, stacked, rounded by
`.bfloat16()`, left uninitialized by `to_empty`. Here a table is a function of its key, and what is kept is only a shortcut.
"""

import contextlib
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

__all__ = ["is_plain", "normal_tensors", "rows_of_table"]

MOST_TABLES = 64
"""Kept at a time; a process with more kinds of models than this computes some of them again."""
SHORTEST = 64

Tables = tuple[Tensor, ...]
# key -> tables of equal length. Only single operations on the dictionary, so threads need no lock and no fork can copy a held
# one: two threads may compute the same table, and either result is right.
_kept: dict[Hashable, Tables] = {}


def is_plain(t: Tensor) -> bool:
    """Whether operations on t give numbers at once: no compiler, no fake tensor, no function transform, no meta device."""
    if torch.compiler.is_compiling() or type(t) not in (Tensor, nn.Parameter) or t.device.type == "meta":
        return False
    return torch.func.debug_unwrap(t) is t


def normal_tensors() -> AbstractContextManager[object]:
    """A context in which tensors that outlive the call are made: in inference mode too they can be used later in training."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():  # a compiler cannot ask for the mode
        return contextlib.nullcontext()
    return torch.inference_mode(False)


def rows_of_table(key: Hashable, start: int, end: int, make: Callable[[int, int], Tables], like: Tensor) -> Tables:
    """Rows start to end of the tables `make(first, last)` computes.

    Args:
        key: everything the tables depend on but their length: kind, sizes, device, dtype.
        like: the tensor the tables are for. If it is not plain (see `is_plain`), just these rows are computed, so a compiled
            or exported graph has no table of a certain length in it.
    """
    if torch.compiler.is_compiling() or type(like) not in (Tensor, nn.Parameter):
        return make(start, end)
    found = _kept.get(key)
    if found is None or found[0].shape[0] < end:
        with normal_tensors():
            found = make(0, max(SHORTEST, 2 * end))
        if torch.func.debug_unwrap(found[0]) is found[0]:  # torch.func.grad wraps what is made inside it
            if len(_kept) >= MOST_TABLES:
                _kept.clear()
            _kept[key] = found
    return tuple(table[start:end] for table in found)
