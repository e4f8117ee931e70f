"""The names of `entmax.losses`."""

from entformer import losses
from entformer.losses import *

__all__ = [name for name in losses.__all__ if name not in ("EntmaxLoss", "entmax_loss")]
__all__ += ["Entmax15LossFunction", "EntmaxBisectLossFunction", "NormmaxBisectLossFunction"]
__all__ += ["SparsemaxBisectLossFunction", "SparsemaxLossFunction"]


class SparsemaxLossFunction:
    """`SparsemaxLossFunction.apply` is `sparsemax_loss`."""

    apply = staticmethod(losses.sparsemax_loss)


class SparsemaxBisectLossFunction:
    """`SparsemaxBisectLossFunction.apply` is `sparsemax_bisect_loss`."""

    apply = staticmethod(losses.sparsemax_bisect_loss)


class Entmax15LossFunction:
    """`Entmax15LossFunction.apply` is `entmax15_loss`."""

    apply = staticmethod(losses.entmax15_loss)


class EntmaxBisectLossFunction:
    """`EntmaxBisectLossFunction.apply` is `entmax_bisect_loss`."""

    apply = staticmethod(losses.entmax_bisect_loss)


class NormmaxBisectLossFunction:
    """`NormmaxBisectLossFunction.apply` is `normmax_bisect_loss`."""

    apply = staticmethod(losses.normmax_bisect_loss)
