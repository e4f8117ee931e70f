"""The names of `entmax.root_finding`, and `Entmax`. `n_iter` is stored as an attribute and has no effect."""

from torch import Tensor

from entformer.compat.activations import NormalizerModule, function_class
from entformer.functional import budget_bisect, entmax, entmax_bisect, normmax_bisect, sparsemax_bisect

__all__ = ["BudgetBisect", "BudgetBisectFunction", "Entmax", "EntmaxBisect", "EntmaxBisectFunction"]
__all__ += ["NormmaxBisect", "NormmaxBisectFunction", "SparsemaxBisect", "SparsemaxBisectFunction"]
__all__ += ["budget_bisect", "entmax_bisect", "normmax_bisect", "sparsemax_bisect"]


class SparsemaxBisect(NormalizerModule):
    """The same as `Sparsemax`."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim)
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter)


class Entmax(NormalizerModule):
    """alpha-entmax of scores and an optional mask: `Entmax(1.5)(scores, mask)`, True = may have weight."""

    parameter = "alpha"
    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1) -> None:
        super().__init__(dim, alpha)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        return entmax(X, self.alpha, self.dim, mask)


class EntmaxBisect(Entmax):
    """The same as `Entmax`, with the arguments of the `entmax` package."""

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(alpha, dim)
        self.n_iter = n_iter


class NormmaxBisect(NormalizerModule):
    """alpha-normmax, see `entformer.functional.normmax_bisect`."""

    parameter = "alpha"
    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(dim, alpha)
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(NormalizerModule):
    """Weights between 0 and 1 that sum to the budget, see `entformer.functional.budget_bisect`."""

    parameter = "budget"
    budget: float | Tensor

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(dim, budget)
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter)


EntmaxBisectFunction = function_class("EntmaxBisectFunction", entmax_bisect)
SparsemaxBisectFunction = function_class("SparsemaxBisectFunction", sparsemax_bisect)
NormmaxBisectFunction = function_class("NormmaxBisectFunction", normmax_bisect)
BudgetBisectFunction = function_class("BudgetBisectFunction", budget_bisect)
