"""Helpers for the modes a module runs in: torch.fx tracing, compilation, function transforms and inference mode."""

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Proxy

__all__ = ["is_plain", "normal_tensors", "traced_as_leaf"]

P = ParamSpec("P")
R = TypeVar("R")


def traced_as_leaf(forward: Callable[P, R]) -> Callable[P, R]:
    """Makes torch.fx record a call of the module, as it does for torch's own modules, instead of tracing through forward."""

    @functools.wraps(forward)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for given in (*args, *kwargs.values()):
            if isinstance(given, Proxy):
                tracer: Any = given.tracer
                return tracer.create_proxy("call_module", tracer.path_of_module(args[0]), args[1:], kwargs)  # type: ignore[no-any-return]
        return forward(*args, **kwargs)

    return wrapper


def is_plain(t: Tensor) -> bool:
    """Whether operations on t give numbers at once: no compiler, no fake tensor, no function transform, no meta device."""
    if torch.compiler.is_compiling() or type(t) not in (Tensor, nn.Parameter) or t.device.type == "meta":
        return False
    return torch.func.debug_unwrap(t) is t


def normal_tensors() -> AbstractContextManager[object]:
    """Returns a context for tensors that outlive the call: created in inference mode, they can still be used in training."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():  # a compiler cannot query the mode
        return contextlib.nullcontext()
    return torch.inference_mode(False)
