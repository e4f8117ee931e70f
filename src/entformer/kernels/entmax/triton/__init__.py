"""The Triton implementation of entmax, for NVIDIA and AMD GPUs: what it does not support, and its registration.

Triton itself is imported by the first call.
"""

import torch
from torch import Tensor

from entformer.kernels.triton_host import DEVICE, installed

_library = torch.library.Library("entformer", "FRAGMENT")


def unsupported(scores: Tensor) -> str | None:
    """Returns what the kernels do not support in a call with these scores, or None."""
    if scores.dtype == torch.float64:
        return "float64"
    return "forward-mode differentiation" if torch.autograd.forward_ad._current_level >= 0 else None


def _entmax(scores: Tensor, alpha: Tensor) -> Tensor:
    from entformer.kernels.entmax.triton import rows

    return rows.entmax(scores, alpha)


def _entmax_backward(grad_output: Tensor, output: Tensor, alpha: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
    from entformer.kernels.entmax.triton import rows

    return rows.entmax_backward(grad_output, output, alpha, needs_alpha_grad)


def register() -> None:
    """Registers the kernels with torch's operators, which must be defined."""
    if installed():
        for name, kernel in (("entmax", _entmax), ("entmax_backward", _entmax_backward)):
            _library.impl(name, kernel, DEVICE.upper())
