"""Sizes of blocks, numbers of warps and pipeline stages, and limits of registers: a fixed table instead of tuning at run time.

Chosen from the compile manifest (`entformer bench compile-gpu`) and the cost model (docs/gpu.md): the largest blocks without
spilled registers, and among limits of registers the one with the best occupancy that spills nothing. All passes use the blocks
of one entry, since the maps of blocks that forward saves are read by backward.
"""

from typing import NamedTuple

import torch

# Registers that NVIDIA's compiler may use, by kernel, whether it has powers (mode 0) and head sizes over 64: only where it
# would spill some by itself to have more blocks per multiprocessor. 168 hold three blocks of 4 warps, 255 two.
LIMITS = {
    ("scout", True, False): 168,
    ("solve", True, False): 255,
    ("solve", True, True): 255,
    ("output", True, False): 255,
    ("output", True, True): 255,
    ("output", False, True): 255,
    ("back_q", True, False): 255,
    ("back_q", True, True): 255,
}


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
    """How the compiler is called for a kernel; `size` is the larger head size, `backend` "cuda" or "hip"."""
    blocks = config(size, dtype)
    limit = LIMITS.get((kernel, mode == 0, padded(size) > 64)) if backend == "cuda" else None
    found = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    return found if limit is None else found | {"maxnreg": limit}


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
