"""The names of `entmax.losses`."""

from typing import Any

from torch import Tensor

from entformer.losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)

__all__ = ["Entmax15Loss", "EntmaxBisectLoss", "NormmaxBisectLoss", "SparsemaxBisectLoss", "SparsemaxLoss"]
__all__ += ["Entmax15LossFunction", "EntmaxBisectLossFunction", "NormmaxBisectLossFunction"]
__all__ += ["SparsemaxBisectLossFunction", "SparsemaxLossFunction"]
__all__ += ["entmax15_loss", "entmax_bisect_loss", "normmax_bisect_loss", "sparsemax_bisect_loss", "sparsemax_loss"]


class SparsemaxLossFunction:
    """`sparsemax_loss` for callers of `SparsemaxLossFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, target: Tensor, k: int | None = None) -> Any:
        """Computes `sparsemax_loss(X, target)`, with its gradient."""
        return sparsemax_loss(X, target, k)


class SparsemaxBisectLossFunction:
    """`sparsemax_bisect_loss` for callers of `SparsemaxBisectLossFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
        """Computes `sparsemax_bisect_loss(X, target)`, with its gradient."""
        return sparsemax_bisect_loss(X, target, n_iter)


class Entmax15LossFunction:
    """`entmax15_loss` for callers of `Entmax15LossFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, target: Tensor, k: int | None = None) -> Any:
        """Computes `entmax15_loss(X, target)`, with its gradient."""
        return entmax15_loss(X, target, k)


class EntmaxBisectLossFunction:
    """`entmax_bisect_loss` for callers of `EntmaxBisectLossFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50) -> Tensor:
        """Computes `entmax_bisect_loss(X, target, alpha)`, with its gradients."""
        return entmax_bisect_loss(X, target, alpha, n_iter)


class NormmaxBisectLossFunction:
    """`normmax_bisect_loss` for callers of `NormmaxBisectLossFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50) -> Tensor:
        """Computes `normmax_bisect_loss(X, target, alpha)`, with its gradients."""
        return normmax_bisect_loss(X, target, alpha, n_iter)
