"""The Triton implementation of attention, for NVIDIA and AMD GPUs: what it does not support, its reserve, its registration.

Triton itself is imported by the first call. Passes, maths and scores have a module each; `launch.py` calls them in order, and
docs/gpu.md describes them.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.kernels.attention.arguments import Call, Features, with_alpha_per_head
from entformer.kernels.attention.triton import configs
from entformer.kernels.triton_host import DEVICE, MOST_HEAD_SIZE, installed

__all__ = ["DEVICE", "register", "reserve_shape", "specialized", "unsupported"]

_KNOWN = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
_library = torch.library.Library("entformer", "FRAGMENT")


def unsupported(call: Call) -> str | None:
    """Returns what these arguments have that the kernels do not support, or None."""
    lacking = {
        "float64": call.query.dtype == torch.float64,
        f"a head size over {MOST_HEAD_SIZE}": max(call.query.shape[3], call.value.shape[3]) > MOST_HEAD_SIZE,
        "rows without keys": call.key.shape[2] == 0,
        "forward-mode differentiation": torch.autograd.forward_ad._current_level >= 0,
    }
    return next((what for what, present in lacking.items() if present), None)


def specialized(call: Call, alpha: float | Tensor) -> Call:
    """The call as the operator takes it: an alpha that the host knows selects kernels without powers."""
    if call.normalizer != "entmax" or isinstance(alpha, Tensor):
        return call
    return call._replace(normalizer=_KNOWN.get(alpha, "entmax"))


def reserve_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """A byte for each pair of a block of queries and a block of keys: whether it holds support."""
    blocks = configs.config(max(query.shape[3], value.shape[3]), query.dtype)
    return *query.shape[:2], -(-query.shape[2] // blocks.queries), -(-key.shape[2] // blocks.keys)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    from entformer.kernels.attention.triton import launch

    call = Call._make((*arguments[:13], Features(*arguments[14:])))
    return launch.forward(launch.Plan(with_alpha_per_head(call)), arguments[13])


def _backward(grad_output: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    from entformer.kernels.attention.triton import launch

    row_max, threshold, _support_size, reserve = arguments[7:11]
    features, needs = Features(*arguments[18:26]), (arguments[17], *arguments[26:])
    call = Call._make((*arguments[:7], *arguments[11:17], features))
    plan = launch.Plan(with_alpha_per_head(call))
    *of_inputs, of_alpha, of_bias, of_sinks, of_slopes = launch.backward(plan, grad_output, row_max, threshold, reserve, *needs)
    if arguments[17]:
        of_alpha = of_alpha.sum_to_size(call.alpha.shape)
    return *of_inputs, of_alpha.to(call.alpha.dtype), of_bias, of_sinks, of_slopes


def _support(query: Tensor, key: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    from entformer.kernels.attention.triton import launch

    alpha, *masks, row_max, threshold, begins = arguments[:7]
    call = Call._make((query, key, key, alpha, *masks, *arguments[7:11], 0.0, begins, Features(*arguments[11:])))
    return launch.attention_support(launch.Plan(with_alpha_per_head(call)), row_max, threshold, begins)


def register() -> None:
    """Registers the kernels with torch's operators, which must be defined."""
    if installed():
        for name, kernel in (("attention", _forward), ("attention_backward", _backward), ("attention_support", _support)):
            _library.impl(name, kernel, DEVICE.upper())
