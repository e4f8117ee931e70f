"""Hugging Face models with adaptively sparse attention.

    import entformer as ef
    model = AutoModelForCausalLM.from_pretrained(...)
    ef.hf.sparsify(model)                               # as before, with an alpha and a score scale per head
    ef.hf.calibrate(model, texts, density=0.3)          # sparse, as close to the original as possible, without training

names.py, heads.py (alphas and scales), masks.py -> function.py (attention) -> configs.py, coverage.py, inputs.py (which
modules) -> convert.py, store.py (sparsify, densify, load) -> texts.py, capture.py, calibration.py (without training),
measure.py, annealing.py (alphas and scales alone), callbacks.py (training), sampling.py.
"""

import importlib
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Any

from entformer.errors import MissingExtra

OLDEST = (5, 15)  # of transformers

_HOME_OF = {
    "AlphaSchedule": "entformer.hf.callbacks",
    "Calibration": "entformer.hf.calibration",
    "EntmaxLogitsProcessor": "entformer.hf.sampling",
    "SparseHeads": "entformer.hf.heads",
    "SparsityCallback": "entformer.hf.callbacks",
    "UnsupportedModel": "entformer.hf.coverage",
    "alphas": "entformer.hf.convert",
    "anneal": "entformer.hf.annealing",
    "calibrate": "entformer.hf.calibration",
    "densify": "entformer.hf.convert",
    "densities": "entformer.hf.measure",
    "density": "entformer.hf.measure",
    "load": "entformer.hf.store",
    "parameter_groups": "entformer.hf.convert",
    "register": "entformer.hf.configs",
    "scales": "entformer.hf.convert",
    "sparsify": "entformer.hf.convert",
}
__all__ = sorted(_HOME_OF)


def _check_installed() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra("entformer.hf needs transformers, which is not installed: pip install 'entformer[hf]'")
    version = importlib.metadata.version("transformers")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise MissingExtra(
            f"entformer.hf needs transformers {OLDEST[0]}.{OLDEST[1]} or newer; {version} is installed: "
            "pip install --upgrade 'entformer[hf]'"
        )


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'entformer.hf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__


_check_installed()

if TYPE_CHECKING:
    from entformer.hf.annealing import anneal as anneal
    from entformer.hf.calibration import Calibration as Calibration
    from entformer.hf.calibration import calibrate as calibrate
    from entformer.hf.callbacks import AlphaSchedule as AlphaSchedule
    from entformer.hf.callbacks import SparsityCallback as SparsityCallback
    from entformer.hf.configs import register as register
    from entformer.hf.convert import alphas as alphas
    from entformer.hf.convert import densify as densify
    from entformer.hf.convert import parameter_groups as parameter_groups
    from entformer.hf.convert import scales as scales
    from entformer.hf.convert import sparsify as sparsify
    from entformer.hf.coverage import UnsupportedModel as UnsupportedModel
    from entformer.hf.heads import SparseHeads as SparseHeads
    from entformer.hf.measure import densities as densities
    from entformer.hf.measure import density as density
    from entformer.hf.sampling import EntmaxLogitsProcessor as EntmaxLogitsProcessor
    from entformer.hf.store import load as load
