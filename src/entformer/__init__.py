"""Adaptively sparse attention for PyTorch: alpha-entmax with exact zeros and a learned alpha per head.

    import entformer as ef
    weights = ef.entmax(scores, alpha=1.5, dim=-1)

Names load on first use, so `import entformer` and `entformer --help` stay light. Operators are registered with torch as soon
as both are imported, so saved programs load.
"""

import importlib
from typing import TYPE_CHECKING, Any

from entformer.operators import register_operators, register_with_torch

__version__ = "0.1.0"

_HOMES = {
    "entformer.errors": ("ArgumentError", "DataError", "EntformerError", "ImplUnavailable"),
    "entformer.kernels.registry": ("SlowPathWarning",),
    "entformer.kernels.attention.api": ("Attention", "RowStats", "Support", "attention"),
    "entformer.kernels.entmax.api": ("entmax",),
    "entformer.functional": (
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
    "entformer.nn.alpha": ("AlphaChooser", "EntmaxAlpha", "LearnedAlpha", "project_alphas"),
    "entformer.nn.multihead_attention": ("MultiheadAttention",),
    "entformer.nn.cache": ("KeyValueCache",),
    "entformer.nn.normalizers": ("NORMALIZERS", "Normalizer"),
    "entformer.nn.rela": ("RelaNorm",),
    "entformer.nn.scaling": ("ASEntmaxScaling", "PerHeadScaling", "SSMaxScaling", "TemperatureScaling"),
    "entformer.nn.positions": ("Positions",),
    "entformer.nn.window": ("WindowedCache", "alibi_windows"),
    "entformer.models.lm": ("CausalLM",),
    "entformer.models.lm_config": ("LMAttentionConfig", "LMConfig"),
    "entformer.models.config": ("Seq2SeqConfig",),
    "entformer.models.seq2seq": ("Seq2Seq",),
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
__all__ = ["__version__", "register_operators", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name in ("analysis", "compat", "explore"):  # a subpackage by its name: entformer.analysis.collect(...)
        return importlib.import_module(f"entformer.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'entformer' has no attribute {name!r}")
    if _HOME_OF[name].startswith("entformer.kernels"):
        register_operators()  # all of them: the hook leaves it to who imports a kernel before torch
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


register_with_torch()

if TYPE_CHECKING:
    from entformer.errors import (
        ArgumentError as ArgumentError,
    )
    from entformer.errors import (
        DataError as DataError,
    )
    from entformer.errors import (
        EntformerError as EntformerError,
    )
    from entformer.errors import (
        ImplUnavailable as ImplUnavailable,
    )
    from entformer.functional import (
        budget_bisect as budget_bisect,
    )
    from entformer.functional import (
        entmax15 as entmax15,
    )
    from entformer.functional import (
        entmax_bisect as entmax_bisect,
    )
    from entformer.functional import (
        entmax_support as entmax_support,
    )
    from entformer.functional import (
        log_entmax as log_entmax,
    )
    from entformer.functional import (
        normmax_bisect as normmax_bisect,
    )
    from entformer.functional import (
        sparsemax as sparsemax,
    )
    from entformer.functional import (
        sparsemax_bisect as sparsemax_bisect,
    )
    from entformer.kernels.attention.api import Attention as Attention
    from entformer.kernels.attention.api import RowStats as RowStats
    from entformer.kernels.attention.api import Support as Support
    from entformer.kernels.attention.api import attention as attention
    from entformer.kernels.entmax.api import entmax as entmax
    from entformer.kernels.registry import SlowPathWarning as SlowPathWarning
    from entformer.losses import (
        Entmax15Loss as Entmax15Loss,
    )
    from entformer.losses import (
        EntmaxBisectLoss as EntmaxBisectLoss,
    )
    from entformer.losses import (
        EntmaxLoss as EntmaxLoss,
    )
    from entformer.losses import (
        NormmaxBisectLoss as NormmaxBisectLoss,
    )
    from entformer.losses import (
        SparsemaxBisectLoss as SparsemaxBisectLoss,
    )
    from entformer.losses import (
        SparsemaxLoss as SparsemaxLoss,
    )
    from entformer.losses import (
        entmax15_loss as entmax15_loss,
    )
    from entformer.losses import (
        entmax_bisect_loss as entmax_bisect_loss,
    )
    from entformer.losses import (
        entmax_loss as entmax_loss,
    )
    from entformer.losses import (
        normmax_bisect_loss as normmax_bisect_loss,
    )
    from entformer.losses import (
        sparsemax_bisect_loss as sparsemax_bisect_loss,
    )
    from entformer.losses import (
        sparsemax_loss as sparsemax_loss,
    )
    from entformer.models.config import Seq2SeqConfig as Seq2SeqConfig
    from entformer.models.lm import CausalLM as CausalLM
    from entformer.models.lm_config import LMAttentionConfig as LMAttentionConfig
    from entformer.models.lm_config import LMConfig as LMConfig
    from entformer.models.seq2seq import Seq2Seq as Seq2Seq
    from entformer.nn.alpha import AlphaChooser as AlphaChooser
    from entformer.nn.alpha import EntmaxAlpha as EntmaxAlpha
    from entformer.nn.alpha import LearnedAlpha as LearnedAlpha
    from entformer.nn.alpha import project_alphas as project_alphas
    from entformer.nn.cache import KeyValueCache as KeyValueCache
    from entformer.nn.mappings import (
        BudgetBisect as BudgetBisect,
    )
    from entformer.nn.mappings import (
        Entmax as Entmax,
    )
    from entformer.nn.mappings import (
        Entmax15 as Entmax15,
    )
    from entformer.nn.mappings import (
        EntmaxBisect as EntmaxBisect,
    )
    from entformer.nn.mappings import (
        NormmaxBisect as NormmaxBisect,
    )
    from entformer.nn.mappings import (
        Sparsemax as Sparsemax,
    )
    from entformer.nn.mappings import (
        SparsemaxBisect as SparsemaxBisect,
    )
    from entformer.nn.multihead_attention import MultiheadAttention as MultiheadAttention
    from entformer.nn.normalizers import NORMALIZERS as NORMALIZERS
    from entformer.nn.normalizers import Normalizer as Normalizer
    from entformer.nn.positions import Positions as Positions
    from entformer.nn.rela import RelaNorm as RelaNorm
    from entformer.nn.scaling import ASEntmaxScaling as ASEntmaxScaling
    from entformer.nn.scaling import PerHeadScaling as PerHeadScaling
    from entformer.nn.scaling import SSMaxScaling as SSMaxScaling
    from entformer.nn.scaling import TemperatureScaling as TemperatureScaling
    from entformer.nn.window import WindowedCache as WindowedCache
    from entformer.nn.window import alibi_windows as alibi_windows
