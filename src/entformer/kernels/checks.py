"""Checks of arguments that several functions share, each with its error message."""

import math
import numbers
import operator
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state
from torch.autograd import forward_ad

from entformer.errors import ArgumentError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FEW = 256  # numbers that are read one by one
MOST_OFFSET = 2**30  # the kernels' limit: differences of positions are then exact in all their arithmetic


def values_are_readable(tensor: Tensor) -> bool:
    """Whether a look at the values is possible and cheap: not while tracing, and not on a GPU, which it would stall."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not traced_by_jit()


def traced_by_jit() -> bool:
    """Whether torch.jit.trace records: it would take values it is shown for constants."""
    return _get_tracing_state() is not None  # what torch.jit.is_tracing() reads, by way of three functions


def transform_active() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) or forward-mode differentiation is active in eager code."""
    return not torch.compiler.is_compiling() and not runs_eagerly()


def runs_eagerly() -> bool:
    """Whether neither torch.compile nor a transform of torch.func nor forward-mode differentiation sees the call."""
    return not (torch.compiler.is_compiling() or _are_functorch_transforms_active() or forward_ad._current_level >= 0)


def runs_once() -> bool:
    """Whether the call runs eagerly and torch.jit.trace does not record it to run it again with other tensors."""
    return runs_eagerly() and _get_tracing_state() is None


def batched_by_vmap(*tensors: Tensor) -> bool:
    """Whether torch.func.vmap maps over one of the tensors, below other transforms or not."""
    if torch.compiler.is_compiling() or not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors):
        return False
    vmap = torch._C._functorch.TransformType.Vmap
    return any(interpreter.key() == vmap for interpreter in torch._C._functorch.get_interpreter_stack() or ())


def any_true(condition: Tensor) -> bool:
    """Whether an element is True; False where the values cannot be read (`values_are_readable`, fake tensors, vmap)."""
    if not values_are_readable(condition):
        return False
    try:
        return bool(condition.any())
    except RuntimeError:  # a batched tensor of torch.func.vmap and a fake tensor have no truth value
        return False


def any_outside(tensor: Tensor, least: float) -> bool:
    """Whether an element is infinite or below `least`; see `any_true`. A few are read one by one: operators cost more."""
    values = tensor.detach()
    if not runs_eagerly() or not values_are_readable(values) or values.numel() > FEW:
        return any_true((values < least) | values.isinf())
    try:
        numbers = (values if values.dim() == 1 else values.flatten()).tolist()
    except RuntimeError:  # a fake tensor
        return False
    return any(number < least or number in (math.inf, -math.inf) for number in numbers)


def check_strided_float(name: str, tensor: Any, form: str) -> None:
    """Raises ArgumentError unless `tensor` is a dense tensor of a dtype in `DTYPES`; `form` describes what is expected."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"{name} must be a floating-point tensor {form}, not {type(tensor).__name__}{as_tensor(name, tensor)}."
        )
    if tensor.is_nested:
        raise ArgumentError(
            f"{name} must be a dense tensor {form}, not a nested one; convert it with torch.nested.to_padded_tensor and "
            "exclude the padding with a mask."
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name} must be a dense tensor {form}, not {tensor.layout}; convert it with .to_dense().")
    if tensor.dtype not in DTYPES:
        raise ArgumentError(
            f"{name} must be a floating-point tensor {form} of float16, bfloat16, float32 or float64, not {tensor.dtype}; "
            "convert it first, e.g. with .float()."
        )


def as_tensor(name: str, value: Any) -> str:
    """Returns the end of an error message: how to make a tensor of a list or an array; empty for anything else."""
    convertible = isinstance(value, list | tuple) or hasattr(value, "__array__")
    return f"; convert it with torch.as_tensor({name})" if convertible else ""


def check_real(name: str, value: Any, *, one_of_many: bool = False) -> float:
    """`value` as a float if it is a real number (not a bool), NaN and infinity included; else ArgumentError.

    Args:
        name: the argument, for the message.
        value: what the caller passed.
        one_of_many: whether a tensor is accepted too; mentioned in the message.
    """
    if type(value) is float:  # the rule; the other tests take longer than some operators
        return value
    if isinstance(value, numbers.Real | torch.SymFloat | torch.SymInt) and not isinstance(value, bool):
        return value if isinstance(value, torch.SymFloat) else float(value)  # type: ignore[return-value]
    wanted = "a number or a tensor" if one_of_many else "a number"
    kind = type(value).__name__
    advice = ""
    if isinstance(value, str):
        advice = f"; write {name}={value} without quotes" if _is_number(value) else ""
    elif one_of_many:
        advice = as_tensor(name, value)
    raise ArgumentError(f"{name} must be {wanted}, not {kind}{advice}.")


def check_alpha_tensor(alpha: Tensor, device: torch.device, least: float = -math.inf) -> None:
    """Raises ArgumentError for an alpha that is boolean, complex, infinite, below `least` or on another device.

    A scalar may be on any device.
    """
    if alpha.dtype == torch.bool or alpha.is_complex():
        raise ArgumentError(f"alpha must be a floating-point or integer tensor or a number, not {alpha.dtype}.")
    if alpha.device != device and (alpha.dim() > 0 or alpha.is_meta):
        raise ArgumentError(f"alpha is on {alpha.device} but the scores are on {device}; move one of them.")
    if not any_outside(alpha, least):
        return
    if any_true(alpha.detach().isinf()):
        raise ArgumentError("alpha must be finite, but the tensor given has infinite values.")
    smallest = float(alpha.detach().min())
    raise ArgumentError(
        f"alpha must be at least {least:g} in attention, the smallest given is {smallest:g}; use 1 + sigmoid(a)."
    )


def check_probability(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    number = check_real(name, value)
    if not 0.0 <= number <= 1.0:
        raise ArgumentError(f"{name}={value} must be at least 0 and at most 1.")
    return number


def check_offset(name: str, value: Any) -> int:
    """An integer small enough that adding a position does not overflow."""
    if isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    if torch.compiler.is_compiling() and isinstance(value, int):
        return value  # a symbolic number too: reading it would make a graph for each length of a cache
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be an integer, not {type(value).__name__}.") from None
    if abs(number) > MOST_OFFSET:
        raise ArgumentError(f"{name}={number} is out of range; it must lie between -2**30 and 2**30.")
    return number


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
