"""Saving and loading of weights as safetensors. A tensor shared by several names (tied embeddings) is stored once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.errors import DataError, RunFailed
from entformer.files import file_sha256, read_json, wrap_os_errors

STATE_SEPARATOR = "/"  # in names of the optimizer's tensors and of random states; names of parameters have none


def is_state(name: str) -> bool:
    """Returns whether a tensor of a checkpoint belongs to the training, not to the model."""
    return STATE_SEPARATOR in name


def is_sharded(tensor: Tensor) -> bool:
    """Returns whether a tensor is a DTensor, without importing torch.distributed.tensor, which takes a second."""
    return hasattr(tensor, "to_local")


def gathered(tensor: Tensor) -> Tensor:
    """Returns the whole of a tensor that may be sharded. Every process must call this."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def sharded_as(parameter: Tensor, whole: Tensor) -> Tensor:
    """Returns `whole` as `parameter` is stored: this process's part of it, if `parameter` is sharded."""
    moved = whole.to(parameter.device)
    if is_sharded(whole) or not is_sharded(parameter):
        return moved
    from torch.distributed.tensor import distribute_tensor

    like = cast(Any, parameter)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns parameters and persistent buffers by name; a shared tensor is listed once."""
    everything = module.state_dict()  # in the order of the modules, so the first name is always the same
    kept: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    for name, tensor in everything.items():
        local = cast(Any, tensor).to_local() if is_sharded(tensor) else tensor
        storage = (local.data_ptr(), local.shape, local.stride())
        if local.numel() and storage in seen:
            continue
        seen.add(storage)
        kept[name] = tensor
    return kept


def save_weights(path: Path, module: nn.Module) -> None:
    """Writes the tensors of a module to `path`. Not atomic: the caller renames the directory."""
    save_tensors(path, tensors_of(module))


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes named tensors to `path`. Not atomic."""
    with wrap_os_errors(path):
        try:
            # safetensors requires contiguous tensors.
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, os.fspath(path))
        except SafetensorError as err:  # its writer does not raise OSError for a full disk
            full = "No space" in str(err) or "os error 28" in str(err)
            what = "the disk is full" if full else f"writing failed ({err})"
            raise RunFailed(
                f"{what}: {path} could not be written. What was saved before is intact; free some space and run the same "
                "command again."
            ) from err


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns every tensor of a safetensors file."""
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as err:
        raise DataError(f"{path} is missing.") from err
    except (OSError, SafetensorError) as err:
        raise DataError(f"{path} is damaged or not a safetensors file ({err}); use another checkpoint.") from err


def load_weights(path: Path, module: nn.Module) -> None:
    """Loads a file written by `save_weights` into `module`, after comparing it with its checksum if there is one.

    Names and shapes must match; otherwise the module stays unchanged.
    """
    verify_weights(path)
    fill(module, read_tensors(path), path)


def verify_weights(weights: Path) -> None:
    """Compares a file of weights with the checksum of its checkpoint or average.

    Raises:
        DataError: It does not match.
    """
    record = weights.with_name("average.json")
    if record.is_file():
        if read_json(record).get("sha256", sha256 := file_sha256(weights)) != sha256:
            raise DataError(
                f"{weights} is damaged: its content does not match its checksum; recreate it with: "
                f"entformer average {weights.parent.parent}"
            )
    elif weights.with_name("DONE").is_file():
        try:
            Checkpoint(-1, weights.parent).verify(weights.name)
        except DataError as err:
            run = RunFolder(weights.parent.parent.parent)
            others = ", ".join(other.name for other in run.complete() if other.name != weights.parent.name)
            advice = f"use another checkpoint: {others}" if others else "there is no other checkpoint; restore it from a copy"
            raise DataError(f"{str(err).rstrip('.')}; {advice}.") from err


def fill(module: nn.Module, stored: Mapping[str, Tensor], origin: Path) -> None:
    """Copies named tensors into the module, after checking names and shapes."""
    own = tensors_of(module)
    check_names(own, {name: tensor.shape for name, tensor in stored.items()}, origin)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(sharded_as(tensor, stored[name]))


def check_names(own: Mapping[str, Tensor], stored: Mapping[str, torch.Size], origin: Path) -> None:
    """Raises `DataError` unless the stored tensors have the names and shapes of the model's own."""
    missing = [name for name in own if name not in stored]
    surplus = [name for name in stored if name not in own]
    if missing or surplus:
        raise DataError(
            f"{origin} does not belong to this model: "
            + "; ".join(
                f"{what} {len(names)} tensors, the first is {names[0]}"
                for what, names in (("it lacks", missing), ("it has in addition", surplus))
                if names
            )
            + ". Use the model.json from the same run."
        )
    for name, tensor in own.items():
        if stored[name] != tensor.shape:
            found, own_shape = tuple(stored[name]), tuple(tensor.shape)
            hint = ""
            if len(found) == len(own_shape) == 2 and found[1] == own_shape[1]:
                hint = f": the checkpoint has {found[0]} types of subwords, the subwords in use have {own_shape[0]}"
            raise DataError(f"{origin}: {name} has shape {found}, expected {own_shape}{hint}.")
