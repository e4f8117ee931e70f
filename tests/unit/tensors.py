"""Random tensors, for the tests of this directory."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Tensors of different shapes are drawn from different seeds."""
    return random(*shape, seed=sum(shape)).to(dtype)


class RecordTensors(TorchDispatchMode):
    """Collects the tensors that the operations inside return, gradients and scratch included."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.made += [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        return result
