"""The C++ implementation of attention (`csrc/`): what it does not support, and the size of its reserve."""

import torch
from torch import Tensor

from entformer.kernels import checks
from entformer.kernels.attention.arguments import Call
from entformer.kernels.entmax.cpu import forward_mode_active


def unsupported(call: Call) -> str | None:
    """Returns what these arguments have that the kernels do not support, or None."""
    if call.query.dtype == torch.float64:
        return "float64"
    if call.key.shape[2] == 0:
        return "rows without keys"
    if forward_mode_active():
        return "forward-mode differentiation"
    return None


def specialized(call: Call, alpha: float | Tensor) -> Call:
    """The call as the operator takes it. A mask that heads and queries share is one of keys: the kernels skip padding."""
    mask = call.attn_mask
    if mask is None or not checks.runs_once() or 0 in mask.shape:
        return call
    if any(mask.shape[d] > 1 and mask.stride(d) > 0 for d in (1, 2)):
        return call
    keys = mask[:, 0, 0]
    return call._replace(attn_mask=None, key_mask=keys if call.key_mask is None else keys & call.key_mask)


def reserve_bytes(keys: int, packed: bool = False) -> int:
    """Bytes per row in which forward saves weights for backward, as in `csrc/bindings.cpp`.

    The weights of up to 128 keys, in whole vectors, or columns and weights of a support of up to 85. From 1,024 keys on fewer,
    unless they are those of packed sequences, any of which may be short.
    """
    most = 1 + min(7, (keys - 1) // 16)  # in this form torch.export knows that it is positive
    return 64 * (most if packed else min(most, max(4, 8200 // (keys + 1))))
