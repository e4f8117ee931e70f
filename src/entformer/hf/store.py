"""Saving and loading: `model.save_pretrained` writes everything, `load` reads it back.

    model.safetensors    alphas and scales, beside the model's own weights
    config.json          "entformer": {version, normalizer, alpha, modules: {name: {heads, kind, layer}}}

transformers' own `from_pretrained` drops alphas and scales as unexpected weights, and returns the dense model.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from entformer.errors import ArgumentError, DataError
from entformer.hf.configs import own_configs, switch
from entformer.hf.convert import ALPHA_OF, attach
from entformer.hf.heads import sparse_heads
from entformer.hf.names import DENSE, HEADS, SETTINGS


def load(path: str | Path, *, model_class: type[nn.Module] | None = None, **options: Any) -> nn.Module:
    """Loads a converted model from a directory that `model.save_pretrained` or transformers' Trainer wrote.

    Args:
        path: The directory.
        model_class: The class of the model; by default the one that was saved.
        options: Arguments of `from_pretrained`, such as `dtype`.

    Returns:
        The model in evaluation mode, with its alphas and scales in float32.

    Raises:
        DataError: The directory is no saved converted model, or is incomplete.
    """
    folder = Path(path)
    config = _read_json(folder / "config.json")
    settings = config.get(SETTINGS)
    if not isinstance(settings, dict) or not isinstance(settings.get("modules"), dict):
        raise DataError(
            f"{folder}/config.json has no {SETTINGS!r} settings: it is not a converted model. Load it with transformers, "
            "then call entformer.hf.sparsify(model)."
        )
    chosen = model_class or class_of(config, folder)
    model, report = _with_heads(chosen, settings, folder).from_pretrained(folder, output_loading_info=True, **options)
    if missing := sorted(key for key in report["missing_keys"] if f".{HEADS}." in f".{key}"):
        raise DataError(f"{folder} has no {missing[0]} (and {len(missing) - 1} more): the weights were saved without alphas.")
    model.__class__ = chosen
    for _, heads in sparse_heads(model):
        heads.requires_grad_(_is_learned(settings))
    own_configs(model)
    switch(model)
    loaded: nn.Module = model.eval()
    return loaded


def _with_heads(chosen: type[nn.Module], settings: dict[str, Any], folder: Path) -> Any:
    """Returns the class with submodules for alphas and scales, so that `from_pretrained` loads them like every other weight.

    Some models are saved under other names than their modules have, which only `from_pretrained` can translate.
    """

    def build(self: nn.Module, *args: Any, **keywords: Any) -> None:
        chosen.__init__(self, *args, **keywords)
        attach_saved(self, settings, folder)

    kept = [*(getattr(chosen, "_keep_in_fp32_modules_strict", None) or []), HEADS]
    same = {"__module__": chosen.__module__, "__qualname__": chosen.__qualname__}  # transformers looks them up by name
    return type(chosen.__name__, (chosen,), {"__init__": build, "_keep_in_fp32_modules_strict": kept, **same})


def _is_learned(settings: dict[str, Any]) -> bool:
    return settings.get("normalizer", "entmax") not in ALPHA_OF and settings.get("alpha", "learned") == "learned"


def attach_saved(model: nn.Module, settings: dict[str, Any], source: Path | str) -> None:
    """Gives a freshly loaded model the submodules that saved settings list."""
    modules = dict(model.named_modules())
    for name, entry in settings["modules"].items():
        if name not in modules:
            raise DataError(f"{source}: there is no module {name} in {type(model).__name__}; was it saved from another class?")
        attach(modules[name], int(entry["heads"]), alpha=1.0, learned=_is_learned(settings))
    for module in modules.values():  # those without heads were left out by `kinds` or `layers`
        if HEADS not in module._modules:
            module.__dict__[DENSE] = True


def class_of(config: dict[str, Any], folder: Path) -> type[nn.Module]:
    """Returns the class that a saved configuration names."""
    names = config.get("architectures") or []
    found = getattr(transformers, names[0], None) if names else None
    if found is None:
        raise ArgumentError(f"{folder}/config.json names no model class of transformers ({names}); pass model_class.")
    chosen: type[nn.Module] = found
    return chosen


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as err:
        raise DataError(f"{file} cannot be read ({err.strerror}); give the directory of a saved model.") from err
    except ValueError as err:
        raise DataError(f"{file} is not valid JSON: {err}.") from err
    if not isinstance(found, dict):
        raise DataError(f"{file} must contain a JSON object.")
    return found
