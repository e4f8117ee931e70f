"""The Triton implementation of attention, for NVIDIA and AMD GPUs: what it does not support, its reserve, its registration.

Triton itself is imported by the first call. Passes, maths and scores have a module each; `launch.py` calls them in order, and
docs/gpu.md describes them.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels.attention.triton import configs
from entformer.kernels.triton_host import DEVICE, MOST_HEAD_SIZE, installed

__all__ = ["DEVICE", "normalizer_of", "reserve_shape", "unsupported"]

_KNOWN = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}


def unsupported(query: Tensor, bias: Tensor | None, alibi_slopes: Tensor | None, keys: int) -> str | None:
    """Returns what these arguments have that the kernels do not support, or None."""
    if bias is not None:
        return "a floating-point attn_mask"
    if alibi_slopes is not None and alibi_slopes.requires_grad:
        return "a gradient to alibi_slopes"
    if query.dtype == torch.float64:
        return "float64"
    if query.shape[-1] > MOST_HEAD_SIZE:
        return f"a head size over {MOST_HEAD_SIZE}"
    if keys == 0:
        return "rows without keys"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return None


def normalizer_of(alpha: float | Tensor) -> str:
    """The operator's name of the normalizer: that of an alpha the host knows selects kernels without powers."""
    return "entmax" if isinstance(alpha, Tensor) else _KNOWN.get(alpha, "entmax")


def reserve_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """A byte for each pair of a block of queries and a block of keys: whether it holds support."""
    blocks = configs.config(max(query.shape[3], value.shape[3]), query.dtype)
    return *query.shape[:2], -(-query.shape[2] // blocks.queries), -(-key.shape[2] // blocks.keys)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    from entformer.kernels.attention.triton import launch

    *inputs, dropout_p, seed, return_entropy = arguments
    return launch.forward(launch.Call(*inputs, dropout_p=dropout_p, dropout_seed=seed), return_entropy)


def _backward(grad_output: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    from entformer.kernels.attention.triton import launch

    *tensors, row_max, threshold, _size, reserve, normalizer, scale, is_causal, offset, dropout_p, seed, needs_alpha = arguments
    how = (normalizer, scale, is_causal, offset)
    call = launch.Call(*tensors, *how, dropout_p=dropout_p, dropout_seed=seed)
    grads = launch.backward(call, grad_output, row_max, threshold, reserve, needs_alpha_grad=needs_alpha)
    grad_alpha = grads.get("alpha", row_max.new_empty(0, dtype=torch.float64))
    return grads["query"], grads["key"], grads["value"], grad_alpha


def _support(query: Tensor, key: Tensor, alpha: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    from entformer.kernels.attention.triton import launch

    *masks, row_max, threshold, begins, normalizer, scale, is_causal, offset = arguments
    call = launch.Call(query, key, key, alpha, *masks, normalizer, scale, is_causal, offset)
    return launch.attention_support(call, row_max, threshold, begins)


def register() -> None:
    """Registers the kernels with torch's operators, which must be defined."""
    if installed():
        for name, kernel in (("attention", _forward), ("attention_backward", _backward), ("attention_support", _support)):
            _library.impl(name, kernel, DEVICE.upper())


_library = torch.library.Library("entformer", "FRAGMENT")
