"""The C++ implementation of entmax (`csrc/`): what it does not support."""

import torch


def unsupported() -> str | None:
    """Returns what the kernels do not support in a call from here, or None."""
    return "forward-mode differentiation" if forward_mode_active() else None


def forward_mode_active() -> bool:
    """Whether a forward-mode derivative is being computed, for which operators of torch.library have no rule."""
    return torch.autograd.forward_ad._current_level >= 0
