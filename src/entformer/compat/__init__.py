"""The names of the `entmax` package: `import entformer.compat as entmax` replaces `import entmax`.

Its submodules `activations`, `root_finding` and `losses` are here too, with the classes named `*Function`. All are the
functions and modules of `entformer` under the old names; arguments that tune the package's algorithms change nothing.
"""

from entformer.compat.activations import Entmax15, Sparsemax, entmax15, sparsemax
from entformer.compat.losses import (
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
from entformer.compat.root_finding import (
    BudgetBisect,
    EntmaxBisect,
    NormmaxBisect,
    SparsemaxBisect,
    budget_bisect,
    entmax_bisect,
    normmax_bisect,
    sparsemax_bisect,
)

__all__ = ["BudgetBisect", "Entmax15", "EntmaxBisect", "NormmaxBisect", "Sparsemax", "SparsemaxBisect"]
__all__ += ["Entmax15Loss", "EntmaxBisectLoss", "NormmaxBisectLoss", "SparsemaxBisectLoss", "SparsemaxLoss"]
__all__ += ["budget_bisect", "entmax15", "entmax_bisect", "normmax_bisect", "sparsemax", "sparsemax_bisect"]
__all__ += ["entmax15_loss", "entmax_bisect_loss", "normmax_bisect_loss", "sparsemax_bisect_loss", "sparsemax_loss"]
