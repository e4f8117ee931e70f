"""The C++ implementation of entmax (`csrc/`): what it does not support."""

import torch
from torch import Tensor


def unsupported(scores: Tensor) -> str | None:
    """Returns what the kernels do not support in a call with these scores, or None."""
    return "forward-mode differentiation" if forward_mode_active() else None


def forward_mode_active() -> bool:
    """Whether a forward-mode derivative is being computed, for which operators of torch.library have no rule."""
    return torch.autograd.forward_ad._current_level >= 0
