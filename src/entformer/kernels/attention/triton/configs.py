"""Sizes of blocks, numbers of warps and pipeline stages, and limits of registers: a fixed table instead of tuning at run time.

Chosen from the compile manifest (`entformer bench compile-gpu`) and the cost model (docs/gpu.md): the largest blocks without
spilled registers, and among limits of registers the one with the best occupancy that spills nothing. All passes use the blocks
of one entry, since the maps of blocks that forward saves are read by backward.
"""

from typing import NamedTuple

import torch

MOST_REGISTERS = 255


class Config(NamedTuple):
    """One choice of block sizes."""

    queries: int  # per block
    keys: int
    warps: int
    stages: int


def parts(mode: int, dtype: torch.dtype) -> int:
    """In how many parts the backward passes take a block: powers and the slope by alpha need the registers of half a block."""
    return 2 if mode == 0 and dtype != torch.float32 else 1


def options(size: int, dtype: torch.dtype, kernel: str, mode: int, backend: str) -> dict[str, int]:
    """How the compiler is called for a kernel; `size` is the larger head size, `backend` "cuda" or "hip".

    Where NVIDIA's compiler would spill registers to have more blocks per multiprocessor, it is told how many it may use.
    """
    blocks = config(size, dtype)
    found = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    if backend == "cuda" and mode == 0 and kernel == "scout":
        found["maxnreg"] = 168  # three blocks of 4 warps
    elif backend == "cuda" and ((mode == 0 and kernel == "solve") or (kernel == "output" and (mode == 0 or padded(size) > 64))):
        found["maxnreg"] = MOST_REGISTERS
    return found


def padded(size: int) -> int:
    """The power of two, at least 16, that holds a head size."""
    return max(16, 1 << (size - 1).bit_length())


def config(size: int, dtype: torch.dtype) -> Config:
    """The blocks for the larger of the head sizes of keys and values."""
    wide = padded(size)
    if dtype == torch.float32:  # products without tensor cores hold more registers
        return Config(32, 32, 4, 1 if wide > 128 else 2)
    if wide <= 64:
        return Config(64, 32, 4, 2)
    return Config(32, 32, 4, 2)
