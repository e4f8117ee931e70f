"""Loading of a trained language model: configuration and tokenizer from the run directory, weights from a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ValidationError

from entformer import __version__
from entformer.checkpoint.device import usable_device
from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.load import RUN_FORMAT, described_by, find_weights, first_problem
from entformer.checkpoint.weights import load_weights
from entformer.errors import DataError
from entformer.files import read_json
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.text.documents import DocumentTokenizer, open_tokenizer

TASK: Literal["language_modeling"] = "language_modeling"


@dataclass(frozen=True, kw_only=True)
class LoadedLM:
    """A trained language model."""

    model: CausalLM
    """In eval mode."""
    tokenizer: DocumentTokenizer
    context: int
    """Tokens of a row in training."""
    step: int
    info: dict[str, Any]
    """model.json."""


class _Tokenizer(BaseModel, strict=True):
    name: str
    size: int
    fingerprint: str


class LMInfo(BaseModel, strict=True):
    """Required fields of model.json."""

    task: Literal["language_modeling"]
    context: int
    tokenizer: _Tokenizer
    data_fingerprint: str
    model: dict[str, Any]


def lm_info(config: LMConfig, tokenizer: DocumentTokenizer, *, context: int, data_fingerprint: str) -> dict[str, Any]:
    """Returns the content of model.json."""
    return {
        "format": RUN_FORMAT,
        "entformer": __version__,
        "task": TASK,
        "context": context,
        "tokenizer": {"name": tokenizer.name, "size": tokenizer.size, "fingerprint": tokenizer.fingerprint},
        "data_fingerprint": data_fingerprint,
        "model": config.to_dict(),
    }


def is_language_model(run: Path) -> bool:
    """Returns whether a run directory is that of a language model."""
    path = run / "model.json"
    return path.is_file() and read_json(path).get("task") == TASK


def read_lm_info(path: Path) -> LMInfo:
    """Reads model.json.

    Raises:
        DataError: The file is missing or damaged, or describes another kind of model.
    """
    info = read_json(path)
    if info.get("task") != TASK:
        raise DataError(f"{path.parent} is not a language model; it was trained for {info.get('task', 'translation')}.")
    try:
        return LMInfo.model_validate(info)
    except ValidationError as err:
        raise DataError(f"{path} is damaged ({first_problem(err)}); restore it from a copy.") from err


def load_language_model(run: Path | str, which: str | Path = "best", *, device: torch.device | str = "cpu") -> LoadedLM:
    """Loads a trained language model; the arguments are those of `load_run`.

    Raises:
        DataError: The run or a file of it is missing or damaged.
        ArgumentError: The device is not available.
    """
    folder = RunFolder(Path(run))
    device = usable_device(device)
    folder.check()
    info = read_lm_info(folder.model)
    tokenizer = open_tokenizer(info.tokenizer.name, folder.subwords)
    if tokenizer.fingerprint != info.tokenizer.fingerprint:
        raise DataError(f"{folder.subwords} is not the vocabulary this model was trained with; restore the original file.")
    with described_by(folder.model):
        model = CausalLM(LMConfig.from_dict(info.model))
    weights, step = find_weights(folder, which)
    load_weights(weights, model)
    return LoadedLM(
        model=model.to(device).eval(), tokenizer=tokenizer, context=info.context, step=step, info=read_json(folder.model)
    )
