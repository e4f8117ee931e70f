"""Dropout. In: any tensor, and a residual to add it to. Out: in training some numbers zero, the others larger; else as is."""

from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.kernels.fused.api import dropout
from entformer.nn.tracing import traced_as_leaf

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """As torch.nn.Dropout, seeded by torch's generator, but quick on a CPU (kernels/fused). `residual` is added after."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ArgumentError(f"dropout={p} must be at least 0 and below 1.")
        self.p = p

    @traced_as_leaf
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self.training and self.p > 0.0:
            return dropout(x, self.p, residual)
        return x if residual is None else residual + x

    def extra_repr(self) -> str:
        return f"p={self.p}"
