"""Sharded checkpoints: every process of a run writes its part of the tensors, with torch.distributed.checkpoint.

    RUN/checkpoints/step-00001000/  shard-00001-model-00001-of-00001.safetensors, ..., state.json, DONE

A shard is a safetensors file whose header holds, as JSON, where each of its tensors lies in the whole one. Nothing is pickled.
Folders in the default format of torch.distributed.checkpoint (.metadata, *.distcp), which can only be read by unpickling them,
are refused. `convert` turns a sharded checkpoint into the usual form, model.safetensors and state.safetensors.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from entformer.checkpoint.folder import Checkpoint, RunFolder, refuse_pickled
from entformer.checkpoint.weights import is_state, save_tensors
from entformer.errors import DataError

_OFFSETS = "DCP_SHARDING_INFO"  # in the header: {name: {"saved_offsets": [...]}}


def save_shards(path: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> "Future[Any]":
    """Begins to write this process's part of `tensors` to `path`; they may change as soon as this returns.

    Args:
        path: An existing directory, the same for all processes.
        tensors: DTensors, of which each process writes its part, and plain ones, which are the same in all processes.
        group: A process group that is used for nothing else: the writing goes on beside the training.
    """
    writer = HuggingFaceStorageWriter(os.fspath(path), save_distributed=True)
    return cast("Future[Any]", async_save(dict(tensors), storage_writer=writer, process_group=group))


def load_shards(checkpoint: Checkpoint, tensors: dict[str, Tensor]) -> None:
    """Fills `tensors`, sharded over any number of processes or plain, from a sharded checkpoint; each reads what it needs."""
    refuse_pickled(checkpoint.path)
    with warnings.catch_warnings():  # of a single process
        warnings.simplefilter("ignore")
        load(tensors, storage_reader=HuggingFaceStorageReader(os.fspath(checkpoint.path)))


def shapes(checkpoint: Checkpoint) -> dict[str, torch.Size]:
    """Returns the shape of every whole tensor of a sharded checkpoint."""
    found: dict[str, torch.Size] = {}

    def see(name: str, offsets: list[int], part: Any) -> None:
        ends = [offset + size for offset, size in zip(offsets, part.get_shape(), strict=True)]
        found[name] = torch.Size(map(max, ends, found.get(name, ends)))

    _each_part(checkpoint, see)
    return found


def read_shards(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns all whole tensors of a sharded checkpoint."""
    whole: dict[str, Tensor] = {}
    sizes = shapes(checkpoint)

    def copy(name: str, offsets: list[int], part: Any) -> None:
        values: Tensor = part[...]
        if name not in whole:
            whole[name] = torch.empty(sizes[name], dtype=values.dtype)
        place = tuple(slice(offset, offset + size) for offset, size in zip(offsets, values.shape, strict=True))
        whole[name][place] = values

    _each_part(checkpoint, copy)
    return whole


def _each_part(checkpoint: Checkpoint, use: Callable[[str, list[int], Any], None]) -> None:
    refuse_pickled(checkpoint.path)
    for path in sorted(checkpoint.path.glob("shard-*.safetensors")):
        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                offsets = json.loads((file.metadata() or {})[_OFFSETS])
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    use(name, offsets[name]["saved_offsets"], file.get_slice(name))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as err:
            raise DataError(f"{path} is damaged or not a shard of a checkpoint ({err}); use another checkpoint.") from err


def convert(folder: RunFolder, checkpoint: Checkpoint) -> Checkpoint:
    """Replaces a sharded checkpoint by one with whole tensors; returns it. A checkpoint that has them is returned as it is."""
    if not checkpoint.sharded:
        return checkpoint
    checkpoint.verify()
    tensors = read_shards(checkpoint)

    def write(path: Path) -> None:
        save_tensors(path / "model.safetensors", {name: own for name, own in tensors.items() if not is_state(name)})
        save_tensors(path / "state.safetensors", {name: own for name, own in tensors.items() if is_state(name)})

    return folder.save(checkpoint.step, write, checkpoint.state(), replace=True)
