"""Modules: where parameters live. Mappings of scores to weights, and the learned alpha."""

from entformer.nn.alpha import AlphaChooser, EntmaxAlpha, LearnedAlpha
from entformer.nn.mappings import BudgetBisect, Entmax, Entmax15, EntmaxBisect, NormmaxBisect, Sparsemax, SparsemaxBisect

__all__ = ["AlphaChooser", "BudgetBisect", "Entmax", "Entmax15", "EntmaxAlpha", "EntmaxBisect"]
__all__ += ["LearnedAlpha", "NormmaxBisect", "Sparsemax", "SparsemaxBisect"]
