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


def options(config: Config, kernel: str, mode: int, backend: str) -> dict[str, int]:
    """How the compiler is called for a kernel; `backend` is "cuda" or "hip".

    NVIDIA's compiler aims at more blocks per multiprocessor than fit without spilling: it is told what it may use.
    """
    found = {"num_warps": config.warps, "num_stages": config.stages}
    return found | ({"maxnreg": MOST_REGISTERS} if backend == "cuda" else {})


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
