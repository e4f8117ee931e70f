"""Adaptively sparse attention: alpha-entmax with exact zeros and a learned alpha, as fast as softmax.

    import entformer as ef
    weights = ef.entmax(scores, alpha=1.5, dim=-1)

Names load on first use, so `import entformer` and `entformer --help` stay light.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "entformer.errors": ("ArgumentError", "EntformerError", "ImplUnavailable"),
    "entformer.kernels.impl": ("SlowPathWarning",),
    "entformer.kernels.rows.api": ("entmax",),
    "entformer.mappings": (
        "budget_bisect",
        "entmax15",
        "entmax_bisect",
        "entmax_support",
        "log_entmax",
        "normmax_bisect",
        "sparsemax",
        "sparsemax_bisect",
    ),
    "entformer.losses": (
        "Entmax15Loss",
        "EntmaxBisectLoss",
        "EntmaxLoss",
        "NormmaxBisectLoss",
        "SparsemaxBisectLoss",
        "SparsemaxLoss",
        "entmax15_loss",
        "entmax_bisect_loss",
        "entmax_loss",
        "normmax_bisect_loss",
        "sparsemax_bisect_loss",
        "sparsemax_loss",
    ),
    "entformer.nn.alpha": ("AlphaChooser", "EntmaxAlpha", "LearnedAlpha"),
    "entformer.nn.mappings": (
        "BudgetBisect",
        "Entmax",
        "Entmax15",
        "EntmaxBisect",
        "NormmaxBisect",
        "Sparsemax",
        "SparsemaxBisect",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'entformer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from entformer.errors import ArgumentError, EntformerError, ImplUnavailable
    from entformer.kernels.impl import SlowPathWarning
    from entformer.kernels.rows.api import entmax
    from entformer.losses import (
        Entmax15Loss,
        EntmaxBisectLoss,
        EntmaxLoss,
        NormmaxBisectLoss,
        SparsemaxBisectLoss,
        SparsemaxLoss,
        entmax15_loss,
        entmax_bisect_loss,
        entmax_loss,
        normmax_bisect_loss,
        sparsemax_bisect_loss,
        sparsemax_loss,
    )
    from entformer.mappings import (
        budget_bisect,
        entmax15,
        entmax_bisect,
        entmax_support,
        log_entmax,
        normmax_bisect,
        sparsemax,
        sparsemax_bisect,
    )
    from entformer.nn.alpha import AlphaChooser, EntmaxAlpha, LearnedAlpha
    from entformer.nn.mappings import (
        BudgetBisect,
        Entmax,
        Entmax15,
        EntmaxBisect,
        NormmaxBisect,
        Sparsemax,
        SparsemaxBisect,
    )
