"""Dropout with a residual connection."""

from torch import Tensor, nn
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.nn.tracing import traced_as_leaf

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """torch.nn.Dropout with an optional `residual` that is added to the result."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ArgumentError(f"dropout={p} must be at least 0 and below 1.")
        self.p = p

    @traced_as_leaf
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        dropped = F.dropout(x, self.p, self.training)
        return dropped if residual is None else residual + dropped

    def extra_repr(self) -> str:
        return f"p={self.p}"
