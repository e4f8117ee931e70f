"""Averages the weights of several checkpoints into RUN/averaged/model.safetensors.

Sums run in float64 in the order of the steps, so the result does not depend on the order of the names. average.json beside the
weights lists the checkpoints; training adds the validation result of the average. RUN/best.json names `AVERAGED` instead of a
checkpoint while the average is better.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save

from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.checkpoint.weights import read_tensors
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json, wrap_os_errors, write_bytes, write_json

AVERAGED = "averaged"  # named by best.json when the averaged weights validated better than every checkpoint
REACH = 3  # averages cover at most 1 / REACH of the steps: older weights are worse


def average_checkpoints(run: Path | str | RunFolder, names: Sequence[str]) -> Path:
    """Writes the mean of the named checkpoints to RUN/averaged/model.safetensors and returns that path."""
    folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    if not names:
        raise ArgumentError("names of checkpoints to average must not be empty.")
    chosen = sorted({folder.checkpoint(name) for name in names})
    mean = _mean(chosen)
    if points_to_average(folder):
        # The new average has not been validated, so best.json must not name it.
        for best in best_checkpoints(folder, 1) or folder.complete()[-1:]:
            folder.set_pointer("best", best)
    target = folder.averaged / "model.safetensors"
    content = save(mean)
    with wrap_os_errors(target):
        folder.averaged.mkdir(exist_ok=True)
        (folder.averaged / "average.json").unlink(missing_ok=True)  # it describes the weights that are replaced now
        write_bytes(target, content)
    checksum = hashlib.sha256(content).hexdigest()
    names = [checkpoint.name for checkpoint in chosen]
    write_json(folder.averaged / "average.json", {"step": chosen[-1].step, "checkpoints": names, "sha256": checksum})
    return target


def last_checkpoints(folder: RunFolder, count: int) -> list[Checkpoint]:
    """Returns the last `count` checkpoints that were saved on schedule, not because training was stopped; oldest first."""
    complete = folder.complete()
    scheduled = [checkpoint for checkpoint in complete if checkpoint.state().get("scheduled", True)]
    return (scheduled or complete)[-count:]


def worth_averaging(checkpoints: Sequence[Checkpoint], *, center: int, step: int, warmup: int) -> list[Checkpoint]:
    """Returns the checkpoints whose mean can be better than each of them.

    Args:
        checkpoints: The candidates.
        center: The step around which to average: the last one, or that of the best checkpoint.
        step: Steps the run has done.
        warmup: Warm-up steps; no checkpoint up to there is used.

    Returns:
        The candidates after warm-up and within a third of the run around `center`.
    """
    return [one for one in checkpoints if one.step > warmup and REACH * abs(center - one.step) <= step]


def points_to_average(folder: RunFolder) -> bool:
    """Returns whether best.json names the averaged weights, and they exist."""
    pointer = folder.path / "best.json"
    there = (folder.averaged / "model.safetensors").is_file() and (folder.averaged / "average.json").is_file()
    return there and pointer.is_file() and read_json(pointer).get("checkpoint") == AVERAGED


def best_checkpoints(folder: RunFolder, count: int) -> list[Checkpoint]:
    """Returns the `count` existing checkpoints that validated best, oldest first."""
    latest = folder.latest()
    if latest is None:
        return []
    here = {checkpoint.step: checkpoint for checkpoint in folder.complete()}
    try:
        steps = [step for step, _ in latest.state().get("best", [])]
        return sorted(here[step] for step in steps[:count] if step in here)
    except (TypeError, ValueError) as err:
        raise DataError(f"{latest.path / 'state.json'} is damaged: `best` is not a list of steps and values.") from err


def _mean(checkpoints: Sequence[Checkpoint]) -> dict[str, torch.Tensor]:
    total: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for checkpoint in checkpoints:
        checkpoint.verify("model.safetensors")
        tensors = read_tensors(checkpoint.weights)
        if total and tensors.keys() != total.keys():
            raise DataError(f"{checkpoint.path} holds other tensors than {checkpoints[0].path}; they cannot be averaged.")
        for name, tensor in tensors.items():
            wide = tensor.double() if tensor.is_floating_point() else tensor
            if name not in total:
                total[name], dtypes[name] = wide.clone(), tensor.dtype
            elif total[name].shape != wide.shape:
                raise DataError(f"{checkpoint.path}: {name} has another shape than in {checkpoints[0].path}.")
            elif tensor.is_floating_point():
                total[name] += wide
            else:
                total[name] = wide  # counters: the newest
    return {
        name: (tensor / len(checkpoints)).to(dtypes[name]) if dtypes[name].is_floating_point else tensor
        for name, tensor in total.items()
    }
