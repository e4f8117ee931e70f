"""The mappings as modules. In: scores. Out: weights of the same shape. Names, arguments and defaults of the `entmax` package.

`k` and `n_iter` are kept as attributes and change nothing: see `entformer.functional`. An alpha given as `nn.Parameter` is
registered, so the optimizer and the state dict see it; a plain tensor follows `.to(device)`.
"""

from typing import Any

from torch import Tensor, nn

from entformer import functional

__all__ = ["BudgetBisect", "Entmax", "Entmax15", "EntmaxBisect", "NormmaxBisect", "Sparsemax", "SparsemaxBisect"]


class _Mapping(nn.Module):
    """What the modules share: a dimension, and how they print."""

    printed: tuple[str, ...] = ("dim",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def _keep(self, name: str, value: float | Tensor) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value, persistent=False)
        else:
            setattr(self, name, value)

    def extra_repr(self) -> str:
        values = {name: getattr(self, name) for name in self.printed}
        shown = {n: f"tensor of shape {tuple(v.shape)}" if isinstance(v, Tensor) else v for n, v in values.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class Sparsemax(_Mapping):
    """Sparsemax. With `return_support_size`, calling it gives `(weights, sizes)`."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__(dim)
        self.k = k
        self.return_support_size = return_support_size

    def forward(self, X: Tensor) -> Any:
        if self.return_support_size:
            return functional.sparsemax(X, self.dim, self.k, return_support_size=True)
        return functional.sparsemax(X, self.dim, self.k)


class Entmax15(_Mapping):
    """1.5-entmax. With `return_support_size`, calling it gives `(weights, sizes)`."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__(dim)
        self.k = k
        self.return_support_size = return_support_size

    def forward(self, X: Tensor) -> Any:
        if self.return_support_size:
            return functional.entmax15(X, self.dim, self.k, return_support_size=True)
        return functional.entmax15(X, self.dim, self.k)


class SparsemaxBisect(_Mapping):
    """The same as `Sparsemax`."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim)
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return functional.sparsemax_bisect(X, self.dim, self.n_iter)


class Entmax(_Mapping):
    """alpha-entmax; takes a mask too: `Entmax(1.5)(scores, mask)`, True = may have weight."""

    printed = ("alpha", "dim")
    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1) -> None:
        super().__init__(dim)
        self._keep("alpha", alpha)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.entmax(X, self.alpha, self.dim, mask)


class EntmaxBisect(Entmax):
    """The same as `Entmax`, with the arguments of the `entmax` package."""

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(alpha, dim)
        self.n_iter = n_iter


class NormmaxBisect(_Mapping):
    """alpha-normmax, see `entformer.functional.normmax_bisect`."""

    printed = ("alpha", "dim")
    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(dim)
        self._keep("alpha", alpha)
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return functional.normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(_Mapping):
    """Weights between 0 and 1 that sum to the budget, see `entformer.functional.budget_bisect`."""

    printed = ("budget", "dim")
    budget: float | Tensor

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(dim)
        self._keep("budget", budget)
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return functional.budget_bisect(X, self.budget, self.dim, self.n_iter)
