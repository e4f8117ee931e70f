"""The names of `entmax.activations`."""

from torch import Tensor

from entformer.functional import entmax15, sparsemax
from entformer.nn.mappings import Entmax15, Sparsemax

__all__ = ["Entmax15", "Entmax15Function", "Sparsemax", "SparsemaxFunction", "entmax15", "sparsemax"]


class SparsemaxFunction:
    """`sparsemax` for callers of `SparsemaxFunction.apply`."""

    @staticmethod
    def apply(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
        """Computes `sparsemax(X, dim)`, with its gradient."""
        return sparsemax(X, dim, k)


class Entmax15Function:
    """`entmax15` for callers of `Entmax15Function.apply`."""

    @staticmethod
    def apply(X: Tensor, dim: int = 0, k: int | None = None) -> Tensor:
        """Computes `entmax15(X, dim)`, with its gradient; the default dimension is the package's."""
        return entmax15(X, dim, k)
