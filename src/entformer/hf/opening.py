"""Opens a Hugging Face model from the command line: a directory, or a function that returns a model and its tokenizer."""

import importlib
import json
from pathlib import Path
from typing import Any

import transformers

from entformer.errors import ArgumentError, DataError
from entformer.hf.names import SETTINGS
from entformer.hf.store import class_of, load


def open_model(spec: str) -> tuple[Any, Any]:
    """Returns a model in evaluation mode, and its tokenizer or None.

    Args:
        spec: A directory of `save_pretrained`; or `package.module:function`, which is called without arguments and returns a
            model, or a pair of model and tokenizer.

    Raises:
        ArgumentError: There is no such directory or function.
    """
    if Path(spec).is_dir():
        return _from_directory(Path(spec))
    name, colon, function = spec.partition(":")
    if not colon:
        raise ArgumentError(f"{spec} is neither a directory nor package.module:function.")
    try:
        found = getattr(importlib.import_module(name), function)()
    except (ImportError, AttributeError) as err:
        raise ArgumentError(f"{spec} cannot be called ({err}).") from err
    model, tokenizer = found if isinstance(found, tuple) else (found, None)
    return model.eval(), tokenizer


def _from_directory(folder: Path) -> tuple[Any, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"{folder}/config.json cannot be read ({err}); give a directory of save_pretrained.") from err
    model: Any = load(folder) if SETTINGS in config else class_of(config, folder).from_pretrained(folder)  # type: ignore[attr-defined]
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    return model.eval(), tokenizer
