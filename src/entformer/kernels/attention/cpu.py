"""The C++ implementation of attention (`csrc/`): what it does not support, and the size of its reserve."""

import torch
from torch import Tensor

from entformer.kernels.attention.arguments import Call
from entformer.kernels.entmax.cpu import forward_mode_active

OPERATORS = ("entformer::attention", "entformer::attention_backward", "entformer::attention_support")


def unsupported(call: Call) -> str | None:
    """Returns what these arguments have that the kernels do not support, or None."""
    slopes, more = call.alibi_slopes, call.features
    lacking = {
        "a floating-point attn_mask": more.bias is not None,
        "sinks": more.sinks is not None,
        "packed sequences (cu_seqlens)": more.cu_seqlens_q is not None,
        "a window": more.window_left is not None or more.window_right is not None,
        "softcap": more.softcap is not None,
        "normalizer='sigmoid'": call.normalizer == "sigmoid",
        "a gradient to alibi_slopes": slopes is not None and slopes.requires_grad,
        "float64": call.query.dtype == torch.float64,
        "rows without keys": call.key.shape[2] == 0,
        "forward-mode differentiation": forward_mode_active(),
    }
    return next((what for what, present in lacking.items() if present), None)


def specialized(call: Call, alpha: float | Tensor) -> Call:
    """The call as the operator takes it; the C++ kernels read alpha themselves."""
    return call


def by_torch(call: Call) -> Tensor | None:
    """The output of torch's own attention where it is the better choice: never."""
    return None


def reserve_bytes(keys: int) -> int:
    """Bytes per row in which forward saves supports for backward, as in `csrc/bindings.cpp`: half of the keys, or 85."""
    return 6 * min(85, max(16, (keys + 1) // 2)) // 4 * 4 + 4
