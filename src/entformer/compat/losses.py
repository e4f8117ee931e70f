"""The names of `entmax.losses`."""

from entformer import losses
from entformer.compat.activations import function_class
from entformer.losses import *

__all__ = [name for name in losses.__all__ if name not in ("EntmaxLoss", "entmax_loss")]
__all__ += ["Entmax15LossFunction", "EntmaxBisectLossFunction", "NormmaxBisectLossFunction"]
__all__ += ["SparsemaxBisectLossFunction", "SparsemaxLossFunction"]

SparsemaxLossFunction = function_class("SparsemaxLossFunction", losses.sparsemax_loss)
SparsemaxBisectLossFunction = function_class("SparsemaxBisectLossFunction", losses.sparsemax_bisect_loss)
Entmax15LossFunction = function_class("Entmax15LossFunction", losses.entmax15_loss)
EntmaxBisectLossFunction = function_class("EntmaxBisectLossFunction", losses.entmax_bisect_loss)
NormmaxBisectLossFunction = function_class("NormmaxBisectLossFunction", losses.normmax_bisect_loss)
