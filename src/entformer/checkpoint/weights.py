"""Weights <-> safetensors. In: a module, or a file. Out: the file, or the module filled, or one sentence why it does not fit.

A tensor that several names share (tied embeddings) is stored once, under its first name.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from entformer.checkpoint.atomic import file_sha256, read_json, sync_file, wrap_os_errors
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.errors import DataError, RunFailed


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each once however many names share it."""
    everything = module.state_dict()  # in the order of the modules, so the first name is always the same
    kept: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    for name, tensor in everything.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        kept[name] = tensor
    return kept


def save_weights(path: Path, module: nn.Module) -> None:
    """Write the module's tensors to `path` and wait for the disk. Not atomic: the caller renames the folder."""
    save_tensors(path, tensors_of(module))


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to `path` and wait for the disk."""
    with wrap_os_errors(path):
        try:
            # safetensors wants each tensor dense and by itself.
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, os.fspath(path))
        except SafetensorError as problem:  # its writer reports a full disk in words of its own
            full = "No space" in str(problem) or "os error 28" in str(problem)
            what = "the disk is full" if full else f"writing failed ({problem})"
            raise RunFailed(
                f"{what}: {path} could not be written. What was saved before is intact; free some space and run the same "
                "command again."
            ) from problem
        sync_file(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file."""
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as problem:
        raise DataError(f"{path} is missing.") from problem
    except (OSError, SafetensorError) as problem:
        raise DataError(f"{path} is damaged or no safetensors file ({problem}); use another checkpoint.") from problem


def load_weights(path: Path, module: nn.Module) -> None:
    """Fill `module` from a file of `save_weights`, after comparing it with its checksum, if there is one beside it.

    Names and shapes must agree; if not, the module is left as it was.
    """
    verify_weights(path)
    fill(module, read_tensors(path), path)


def verify_weights(weights: Path) -> None:
    """Compare a file of weights with the checksum beside it: that of its checkpoint, or that of the average.

    Raises:
        DataError: it does not match; the sentence names what to use instead.
    """
    record = weights.with_name("average.json")
    if record.is_file():
        if read_json(record).get("sha256", sha256 := file_sha256(weights)) != sha256:
            raise DataError(
                f"{weights} is damaged: its content does not match its checksum; make it again with: "
                f"entformer average {weights.parent.parent}"
            )
    elif weights.with_name("DONE").is_file():
        try:
            Checkpoint(-1, weights.parent).verify(weights.name)
        except DataError as problem:
            run = RunFolder(weights.parent.parent.parent)
            others = ", ".join(other.name for other in run.complete() if other.name != weights.parent.name)
            advice = f"use another checkpoint: {others}" if others else "there is no other checkpoint; put it back from a copy"
            raise DataError(f"{str(problem).rstrip('.')}; {advice}.") from problem


def fill(module: nn.Module, stored: Mapping[str, Tensor], origin: Path) -> None:
    """Copy named tensors into the module's own, after checking that they fit."""
    own = tensors_of(module)
    missing = [name for name in own if name not in stored]
    surplus = [name for name in stored if name not in own]
    if missing or surplus:
        raise DataError(
            f"{origin} does not belong to this model: "
            + "; ".join(
                f"{what} {len(names)} tensors, the first is {names[0]}"
                for what, names in (("it lacks", missing), ("it has besides", surplus))
                if names
            )
            + ". Use the model.json that was written beside it."
        )
    for name, tensor in own.items():
        if stored[name].shape != tensor.shape:
            raise DataError(
                f"{origin}: {name} has shape {tuple(stored[name].shape)}, this model needs {tuple(tensor.shape)}"
                f"{_vocabulary_hint(stored[name], tensor)}."
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])


def _vocabulary_hint(stored: Tensor, own: Tensor) -> str:
    if stored.dim() == own.dim() == 2 and stored.shape[1] == own.shape[1]:
        return f": the checkpoint has {stored.shape[0]} types of subwords, the subwords in use have {own.shape[0]}"
    return ""
