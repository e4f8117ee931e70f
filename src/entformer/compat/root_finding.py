"""The names of `entmax.root_finding`."""

from torch import Tensor

from entformer.functional import budget_bisect, entmax_bisect, normmax_bisect, sparsemax_bisect
from entformer.nn.mappings import BudgetBisect, EntmaxBisect, NormmaxBisect, SparsemaxBisect

__all__ = ["BudgetBisect", "BudgetBisectFunction", "EntmaxBisect", "EntmaxBisectFunction"]
__all__ += ["NormmaxBisect", "NormmaxBisectFunction", "SparsemaxBisect", "SparsemaxBisectFunction"]
__all__ += ["budget_bisect", "entmax_bisect", "normmax_bisect", "sparsemax_bisect"]


class EntmaxBisectFunction:
    """`entmax_bisect` for callers of `EntmaxBisectFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True) -> Tensor:
        """Computes `entmax_bisect(X, alpha, dim)`, with its gradients."""
        return entmax_bisect(X, alpha, dim, n_iter, ensure_sum_one)


class SparsemaxBisectFunction:
    """`sparsemax_bisect` for callers of `SparsemaxBisectFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True) -> Tensor:
        """Computes `sparsemax_bisect(X, dim)`, with its gradient."""
        return sparsemax_bisect(X, dim, n_iter, ensure_sum_one)


class NormmaxBisectFunction:
    """`normmax_bisect` for callers of `NormmaxBisectFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
        """Computes `normmax_bisect(X, alpha, dim)`, with its gradients."""
        return normmax_bisect(X, alpha, dim, n_iter)


class BudgetBisectFunction:
    """`budget_bisect` for callers of `BudgetBisectFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
        """Computes `budget_bisect(X, budget, dim)`, with its gradients."""
        return budget_bisect(X, budget, dim, n_iter)
