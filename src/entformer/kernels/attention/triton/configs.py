"""Sizes of blocks, numbers of warps and pipeline stages, by head size and dtype.

Chosen from the compile manifest (`entformer bench compile-gpu`): the largest blocks without spilled registers. All passes use
the blocks of one entry, since the maps of blocks that forward saves are read by backward.
"""

from typing import NamedTuple

import torch


class Config(NamedTuple):
    """One choice of block sizes."""

    queries: int  # per block
    keys: int
    warps: int
    stages: int


def parts(mode: int, dtype: torch.dtype) -> int:
    """In how many parts the backward passes take a block: powers and the slope by alpha need the registers of half a block."""
    return 2 if mode == 0 and dtype != torch.float32 else 1


def solver_options(mode: int, backend: str) -> dict[str, int]:
    """Without powers, NVIDIA's compiler would hold the solver to 128 registers and spill some."""
    return {"maxnreg": 168} if mode != 0 and backend == "cuda" else {}


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
