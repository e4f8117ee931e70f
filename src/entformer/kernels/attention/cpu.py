"""The C++ implementation of attention (`csrc/`): what it does not support, and the size of its reserve."""

import torch
from torch import Tensor

from entformer.kernels.entmax.cpu import forward_mode_active


def unsupported(query: Tensor, bias: Tensor | None, alibi_slopes: Tensor | None, keys: int) -> str | None:
    """Returns what these arguments have that the kernels do not support, or None."""
    if bias is not None:
        return "a floating-point attn_mask"
    if alibi_slopes is not None and alibi_slopes.requires_grad:
        return "a gradient to alibi_slopes"
    if query.dtype == torch.float64:
        return "float64"
    if keys == 0:
        return "rows without keys"
    if forward_mode_active():
        return "forward-mode differentiation"
    return None


def normalizer_of(alpha: float | Tensor) -> str:
    """The operator's name of the normalizer: the C++ kernels read alpha themselves."""
    return "entmax"


def reserve_bytes(keys: int) -> int:
    """Bytes per row in which forward saves supports for backward, as in `csrc/bindings.cpp`: half of the keys, or 85."""
    return 6 * min(85, max(16, (keys + 1) // 2)) // 4 * 4 + 4
