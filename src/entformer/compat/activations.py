"""The names of `entmax.activations`, and the base class of the modules."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from entformer.functional import entmax15, sparsemax

__all__ = ["Entmax15", "Entmax15Function", "Sparsemax", "SparsemaxFunction", "entmax15", "sparsemax"]


class NormalizerModule(nn.Module):
    """Base of the modules: a dimension, and at most one parameter of the normalizer (`alpha` or `budget`).

    A parameter given as `nn.Parameter` is registered, so that the optimizer and the state dict have it; a plain tensor follows
    `.to(device)` and is not saved.
    """

    parameter: str | None = None

    def __init__(self, dim: int, value: float | Tensor | None = None) -> None:
        super().__init__()
        self.dim = dim
        if self.parameter is not None:
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(self.parameter, value, persistent=False)
            else:
                setattr(self, self.parameter, value)

    def extra_repr(self) -> str:
        if self.parameter is None:
            return f"dim={self.dim}"
        value = getattr(self, self.parameter)
        shown = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
        return f"{self.parameter}={shown}, dim={self.dim}"


class Sparsemax(NormalizerModule):
    """Sparsemax. With `return_support_size=True` it returns `(weights, sizes)`."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__(dim)
        self.k = k
        self.return_support_size = return_support_size

    def forward(self, X: Tensor) -> Any:
        return sparsemax(X, self.dim, self.k, self.return_support_size)


class Entmax15(Sparsemax):
    """1.5-entmax. With `return_support_size=True` it returns `(weights, sizes)`."""

    def forward(self, X: Tensor) -> Any:
        return entmax15(X, self.dim, self.k, self.return_support_size)


def function_class(name: str, function: Callable[..., Any]) -> Any:
    """A class whose `apply` is `function`, as the package's autograd functions are called."""
    return type(name, (), {"apply": staticmethod(function), "__doc__": f"`{name}.apply` is `{function.__name__}`."})


def _entmax15_along_0(X: Tensor, dim: int = 0, k: int | None = None) -> Any:
    return entmax15(X, dim, k)


SparsemaxFunction = function_class("SparsemaxFunction", sparsemax)
Entmax15Function = function_class("Entmax15Function", _entmax15_along_0)
