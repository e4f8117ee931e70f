"""The submodule that gives an attention module its alphas and score scales, one of each per head."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.hf.names import HEADS
from entformer.nn.alpha import LearnedAlpha

LOWEST, HIGHEST = 1.0, 2.0  # alpha: from softmax to sparsemax


class SparseHeads(nn.Module):
    """Alpha and score scale of each head: calling it returns two tensors (num_heads,).

        scores = scale * (the model's scores, biases included)         weights = entmax(scores, alpha)

    `alpha_minus_1` is stored instead of alpha, because half precision resolves it better close to softmax, where it matters;
    the scale is stored as its logarithm. alpha = 1 and scale = 1 are the model's own attention.

    Args:
        num_heads: Number of query heads.
        alpha: Initial alpha, from 1 to 2.
        learned: Whether alphas and scales are trained.
    """

    def __init__(self, num_heads: int, *, alpha: float = 1.0, learned: bool = True) -> None:
        super().__init__()
        if not LOWEST <= alpha <= HIGHEST:
            raise ArgumentError(f"alpha={alpha} must be between {LOWEST:g} (softmax) and {HIGHEST:g} (sparsemax).")
        self.num_heads = num_heads
        self.alpha_minus_1 = LearnedAlpha(num_heads, init=alpha - 1.0, low=LOWEST - 1.0, high=HIGHEST - 1.0)
        self.log_scale = nn.Parameter(torch.zeros(num_heads))
        self._kept: tuple[list[Any], float | Tensor, Tensor | None] | None = None
        self.requires_grad_(learned)

    def forward(self) -> tuple[Tensor, Tensor]:
        log_scale = self.log_scale.to(torch.promote_types(self.log_scale.dtype, torch.float32))
        return 1.0 + self.alpha_minus_1(), log_scale.exp()

    @torch.no_grad()
    def without_gradient(self) -> tuple[float | Tensor, Tensor | None]:
        """Returns alphas in float64 and scales, computed once; 1.0 and None for softmax, where every head has these."""
        stored = self.alpha_minus_1.parameter, self.log_scale
        key = [(id(value), value._version, value.data_ptr(), value.dtype) for value in stored]
        if self._kept is None or self._kept[0] != key:
            alpha, scale = self()
            is_1 = [bool((values == 1.0).all()) for values in (alpha, scale)]
            self._kept = key, 1.0 if is_1[0] else alpha.double(), None if is_1[1] else scale
        return self._kept[1:]

    @property
    def learned(self) -> bool:
        """Whether the alphas are trained."""
        return self.alpha_minus_1.parameter.requires_grad

    @torch.no_grad()
    def set(self, alpha: float | Tensor | None = None, scale: float | Tensor | None = None) -> None:
        """Sets alphas and scales: numbers, or tensors (num_heads,)."""
        if alpha is not None:
            value = self.alpha_minus_1.parameter
            found = torch.as_tensor(alpha, dtype=torch.float64).expand(self.num_heads)
            if not bool(((found >= LOWEST) & (found <= HIGHEST)).all()):
                raise ArgumentError(f"alpha={found.tolist()} must be between {LOWEST:g} (softmax) and {HIGHEST:g} (sparsemax).")
            value.copy_((found - 1.0).to(value))
        if scale is not None:
            found = torch.as_tensor(scale, dtype=torch.float64).expand(self.num_heads)
            if not bool(((found > 0.0) & (found < math.inf)).all()):
                raise ArgumentError(f"scale={found.tolist()} must be positive and finite.")
            self.log_scale.copy_(found.log().to(self.log_scale))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, learned={self.learned}"


def sparse_heads(model: nn.Module) -> Iterator[tuple[str, SparseHeads]]:
    """Yields every `SparseHeads` in use with the qualified name of its attention module.

    PEFT's `modules_to_save` wraps the submodule and keeps the original beside trained copies; the active copy is returned.
    """
    for name, module in model.named_modules():
        owned = module._modules.get(HEADS)
        if owned is not None:
            active = active_heads(owned)
            if active is not None:
                yield name, active


def active_heads(owned: nn.Module) -> SparseHeads | None:
    """Returns the `SparseHeads` that a call of `owned` reaches: itself, or the active copy inside PEFT's wrapper."""
    if isinstance(owned, SparseHeads):
        return owned
    copies = getattr(owned, "modules_to_save", None)
    if not isinstance(copies, nn.ModuleDict):
        return None
    names = getattr(owned, "active_adapters", None) or [getattr(owned, "active_adapter", None)]
    disabled = bool(getattr(owned, "disable_adapters", False))
    found = next((copies[name] for name in names if name in copies), None)
    if disabled or found is None:
        found = getattr(owned, "original_module", None)
    return found if isinstance(found, SparseHeads) else None
