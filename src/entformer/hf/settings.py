"""The settings of a converted model in its configuration, from which `load` rebuilds it."""

from collections.abc import Collection
from typing import Any

from torch import nn

from entformer import __version__
from entformer.errors import ArgumentError
from entformer.hf.coverage import AttentionModule
from entformer.hf.names import SETTINGS


def write_settings(model: nn.Module, normalizer: str, alpha: str | float, wanted: Collection[AttentionModule]) -> None:
    """Writes into the configuration what `load` needs; `save_pretrained` saves it."""
    root = getattr(model, "get_base_model", lambda: model)()
    names = {id(module): name for name, module in root.named_modules()}
    modules = {
        names[id(found.module)]: {"heads": found.num_heads, "kind": found.kind, "layer": found.layer} for found in wanted
    }
    learned = "learned" if alpha == "calibrated" else alpha
    settings = {"version": __version__, "normalizer": normalizer, "alpha": learned, "modules": modules}
    setattr(root.config, SETTINGS, settings)


def settings_of(model: nn.Module) -> dict[str, Any]:
    """Returns what `write_settings` wrote.

    Raises:
        ArgumentError: The model was not converted.
    """
    root = getattr(model, "get_base_model", lambda: model)()
    found = getattr(getattr(root, "config", None), SETTINGS, None)
    if not isinstance(found, dict):
        raise ArgumentError("the model has no alphas; call entformer.hf.sparsify(model) first.")
    return found
