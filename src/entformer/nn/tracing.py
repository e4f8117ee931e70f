"""Modules as torch.fx sees them: like torch's own, recorded as one call."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch.fx import Proxy

__all__ = ["traced_as_leaf"]

P = ParamSpec("P")
R = TypeVar("R")


def traced_as_leaf(forward: Callable[P, R]) -> Callable[P, R]:
    """Make torch.fx record a call of the module, as it does for torch's own modules, in place of tracing through forward."""

    @functools.wraps(forward)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for given in (*args, *kwargs.values()):
            if isinstance(given, Proxy):
                tracer: Any = given.tracer
                return tracer.create_proxy("call_module", tracer.path_of_module(args[0]), args[1:], kwargs)  # type: ignore[no-any-return]
        return forward(*args, **kwargs)

    return wrapper
