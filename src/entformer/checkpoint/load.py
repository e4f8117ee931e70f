"""Loading of a trained run: configuration from model.json, tokenizer from subwords.model, weights from a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from entformer import __version__
from entformer.checkpoint.average import AVERAGED, points_to_average
from entformer.checkpoint.device import usable_device
from entformer.checkpoint.folder import RunFolder, refuse_pickled
from entformer.checkpoint.weights import load_weights
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json
from entformer.models.config import Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

RUN_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A trained model with everything needed to translate."""

    model: Seq2Seq
    """In eval mode."""
    subwords: SubwordTokenizer
    source_language: str
    target_language: str
    info: dict[str, Any]
    """model.json: also `tokenized`, `lowercase`, `data_fingerprint`, `entformer` (the version that trained it)."""
    step: int


def model_info(
    config: Seq2SeqConfig,
    subwords: SubwordTokenizer,
    *,
    source_language: str,
    target_language: str,
    tokenized: bool,
    lowercase: bool,
    data_fingerprint: str,
) -> dict[str, Any]:
    """Returns the content of model.json."""
    return {
        "format": RUN_FORMAT,
        "entformer": __version__,
        "source_language": source_language,
        "target_language": target_language,
        "tokenized": tokenized,
        "lowercase": lowercase,
        "subwords": {"size": subwords.size, "fingerprint": subwords.fingerprint},
        "data_fingerprint": data_fingerprint,
        "model": config.to_dict(),
    }


class _SubwordsInfo(BaseModel, strict=True):
    size: int
    fingerprint: str


class ModelInfo(BaseModel, strict=True):
    """Required fields of model.json."""

    source_language: str
    target_language: str
    tokenized: bool
    lowercase: bool
    data_fingerprint: str
    subwords: _SubwordsInfo
    model: dict[str, Any]


def read_model_info(path: Path) -> tuple[ModelInfo, dict[str, Any]]:
    """Reads model.json.

    Returns:
        The validated fields, and the whole content.

    Raises:
        DataError: The file is missing, damaged or of another version.
    """
    info = read_json(path)
    if info.get("format") != RUN_FORMAT:
        raise DataError(
            f"{path} has format {info.get('format')}; this version of entformer ({__version__}) reads {RUN_FORMAT}. "
            "Use the version that wrote it."
        )
    try:
        return ModelInfo.model_validate(info), info
    except ValidationError as err:
        raise DataError(f"{path} is damaged ({first_problem(err)}); restore it from a copy.") from err


def first_problem(err: ValidationError) -> str:
    """Returns the first error of pydantic in one line: location and message."""
    first = err.errors(include_url=False)[0]
    message = str(first["msg"])
    return f"{'.'.join(map(str, first['loc']))}: {message[:1].lower()}{message[1:]}"


@contextmanager
def described_by(path: Path) -> Iterator[None]:
    """Names the file in the errors of a model that is built from it."""
    try:
        yield
    except ArgumentError as err:
        raise DataError(f"{path} does not describe a model of this version of entformer ({err}).") from err
    except (RuntimeError, MemoryError, OverflowError) as err:  # sizes beyond the memory
        reason = (str(err).splitlines() or [type(err).__name__])[0]
        raise DataError(f"the model that {path} describes cannot be built ({reason}).") from err


def load_run(run: Path | str, which: str | Path = "best", *, device: torch.device | str = "cpu") -> LoadedRun:
    """Loads a trained run.

    Args:
        run: The run directory.
        which: "best", "last", "averaged", "step-1000", or a path: a directory with weights (a checkpoint, an average), a
            safetensors file, or another run of the same model, whose best weights are used. "best" is the best checkpoint or
            the average, whichever validated better; before the first validation it is the last checkpoint.
        device: Device of the model.

    Raises:
        DataError: The run or a file of it is missing or damaged.
        ArgumentError: The device is not available.
    """
    folder = RunFolder(Path(run))
    device = usable_device(device)
    folder.check()
    checked, info = read_model_info(folder.model)
    subwords = _subwords(folder, checked)
    with described_by(folder.model):
        model = Seq2Seq(Seq2SeqConfig.from_dict(checked.model))
    weights, step = find_weights(folder, which)
    load_weights(weights, model)
    return LoadedRun(
        model=model.to(device).eval(),
        subwords=subwords,
        source_language=checked.source_language,
        target_language=checked.target_language,
        info=info,
        step=step,
    )


def _subwords(folder: RunFolder, info: ModelInfo) -> SubwordTokenizer:
    subwords = SubwordTokenizer.load(folder.subwords)
    if subwords.size != info.model.get("vocab_size"):
        raise DataError(
            f"the model in {folder.path} has a vocabulary of {info.model.get('vocab_size')}, {folder.subwords} of "
            f"{subwords.size}; restore the subwords.model the run was trained with."
        )
    if subwords.fingerprint != info.subwords.fingerprint:
        raise DataError(
            f"{folder.subwords} (fingerprint {subwords.fingerprint}) is not the one this model was trained with "
            f"({info.subwords.fingerprint}); restore the original file."
        )
    return subwords


def _average_step(weights: Path) -> int:
    """Returns the step in the average.json of averaged weights."""
    record = weights.with_name("average.json")
    step = read_json(record).get("step")
    if not isinstance(step, int):
        raise DataError(f"{record} is damaged: it has no step; recreate it with: entformer average {weights.parent.parent}")
    return step


def find_weights(folder: RunFolder, which: str | Path) -> tuple[Path, int]:
    """Returns the file of weights and its step."""
    if which == AVERAGED or (which == "best" and points_to_average(folder)):
        file = folder.averaged / "model.safetensors"
        if not file.is_file():
            raise DataError(f"{folder.path} has no averaged weights; create them with: entformer average {folder.path}")
        return file, _average_step(file)
    if which in ("best", "last"):
        checkpoint = folder.resolve_pointer(str(which)) or folder.latest()
        if checkpoint is None:
            raise DataError(
                f"{folder.path} has no complete checkpoint yet; train it with: entformer train RECIPE --out {folder.path}"
            )
        return checkpoint.weights, checkpoint.step
    for path in (Path(which), folder.path / which):
        if path.suffix == ".safetensors" and path.is_file():
            return path, -1
        if path.is_dir():
            return _weights_in(path.resolve())
    checkpoint = folder.checkpoint(str(which))
    return checkpoint.weights, checkpoint.step


def _weights_in(path: Path) -> tuple[Path, int]:
    """Returns the file of weights in a directory, and its step, -1 if unknown."""
    if (path / "model.json").is_file():
        return find_weights(RunFolder(path), "best")
    if path.parent.name == "checkpoints":
        checkpoint = RunFolder(path.parent.parent).checkpoint(path.name)
        return checkpoint.weights, checkpoint.step
    file = path / "model.safetensors"
    if not file.is_file():
        refuse_pickled(path)
        raise DataError(f"{path} has no weights; pass a run, a checkpoint directory or a safetensors file.")
    return file, _average_step(file) if (path / "average.json").is_file() else -1
