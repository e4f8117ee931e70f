"""The run directory: file names, checkpoints and the lock.

    RUN/recipe.yaml           resolved recipe              RUN/metrics.jsonl   one JSON object per line
    RUN/model.json            model configuration          RUN/train.log       log messages with times
    RUN/subwords.model        tokenizer                    RUN/validations/    translations of the validation set
    RUN/best.json, last.json  names of checkpoints         RUN/averaged/       model.safetensors, average.json
    RUN/checkpoints/step-00001000/  model.safetensors, state.safetensors, state.json, DONE

While FSDP trains, checkpoints have shards instead of the first two (`checkpoint/sharded.py`). DONE, written
last, holds the sizes and checksums of the safetensors files, and state.json holds a checksum of itself. A
directory without DONE or with other sizes is not a checkpoint: readers skip it and the next training removes it. Checksums are
compared when a file is loaded. Checkpoints of older versions have none.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entformer.errors import ArgumentError, DataError
from entformer.files import (
    directory_lock,
    file_sha256,
    plain,
    read_json,
    remove_temporary,
    staged_directory,
    sync_directory,
    sync_file,
    wrap_os_errors,
    write_bytes,
    write_json,
)

_NAME = re.compile(r"step-(\d+)")
_INCOMPLETE = re.compile(r"\.(step-\d+)\.\d+\.(?:partial|old)")
_DAMAGED = "damaged-"
_TENSOR_FILES = ("model.safetensors", "state.safetensors")
_SHA256 = "sha256"  # in DONE: name of a file -> its checksum; in state.json: the checksum of the rest
_SHARD = "shard-"
_RUN_FILES = ("recipe.yaml", "model.json", ".lock", "train.log", "metrics.jsonl", "prepared", "checkpoints")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """One complete checkpoint."""

    step: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def sharded(self) -> bool:
        """Whether the tensors are in shards."""
        return _tensor_files(_read_done(self.path)) != _TENSOR_FILES

    @property
    def weights(self) -> Path:
        """The file of the weights.

        Raises:
            DataError: The checkpoint is sharded.
        """
        path = self.path / "model.safetensors"
        if not path.is_file() and self.sharded:
            raise DataError(f"{self.path} is sharded; convert it first with: entformer convert {self.path.parent.parent}")
        return path

    @property
    def tensors(self) -> Path:
        return self.path / "state.safetensors"

    def state(self) -> dict[str, Any]:
        """Returns the content of state.json after comparing it with its checksum."""
        path = self.path / "state.json"
        state = read_json(path)
        expected = state.pop(_SHA256, None)
        if expected is not None and expected != _json_sha256(state):
            raise DataError(f"{path} is damaged: its content does not match its checksum.")
        return state

    def verify(self, *names: str) -> None:
        """Compares files of this checkpoint with the checksums in DONE.

        Args:
            names: "model.safetensors" or "state.safetensors"; by default both or all shards, and state.json.

        Raises:
            DataError: A file does not match.
        """
        done = _read_done(self.path)
        checksums = done.get(_SHA256, {})
        for name in names or _tensor_files(done):
            path = self.path / name
            try:
                matches = name not in checksums or file_sha256(path) == checksums[name]
            except OSError as err:
                raise DataError(f"{path} cannot be read ({err.strerror or err}).") from err
            if not matches:
                raise DataError(f"{path} is damaged: its content does not match its checksum.")
        if not names:
            self.state()


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


class RunFolder:
    """The directory of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.recipe = path / "recipe.yaml"
        self.model = path / "model.json"
        self.subwords = path / "subwords.model"
        self.metrics = path / "metrics.jsonl"
        self.log = path / "train.log"
        self.validations = path / "validations"
        self.averaged = path / "averaged"
        self.prepared = path / "prepared"

    # ---- reading ---------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `DataError` if the directory is not that of a run."""
        if not self.path.is_dir():
            raise DataError(f"there is no run directory {self.path}.")
        if not self.model.is_file():
            raise DataError(
                f"{self.path} is not an entformer run: it has no model.json. Pass a directory written by `entformer train`."
            )

    def complete(self) -> list[Checkpoint]:
        """Returns the complete checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        found = [(match, path) for path in self.checkpoints.iterdir() if (match := _NAME.fullmatch(path.name))]
        return sorted(Checkpoint(int(match[1]), path) for match, path in found if is_complete(path))

    def latest(self) -> Checkpoint | None:
        """Returns the newest complete checkpoint."""
        return next(reversed(self.complete()), None)

    def resolve_pointer(self, pointer: str) -> Checkpoint | None:
        """Returns the checkpoint that best.json or last.json names; warns and returns None if it is not complete."""
        path = self.path / f"{pointer}.json"
        if not path.is_file():
            return None
        name = str(read_json(path).get("checkpoint"))
        with contextlib.suppress(DataError):
            return self.checkpoint(name)
        warnings.warn(f"the checkpoint named in {path} is missing or incomplete; the last one is used.", stacklevel=4)
        return None

    def checkpoint(self, name: str) -> Checkpoint:
        """Returns the complete checkpoint `name`: step-00001000, step-1000 or 1000."""
        digits = name.removeprefix("step-")
        path = self.checkpoints / (checkpoint_name(int(digits)) if digits.isdecimal() else name)
        match = _NAME.fullmatch(path.name)
        if match and is_complete(path):
            return Checkpoint(int(match[1]), path)
        existing = ", ".join(checkpoint.name for checkpoint in self.complete()) or "no checkpoint"
        incomplete = " (it is incomplete)" if path.is_dir() else ""
        raise DataError(f"{self.path} has no checkpoint {name!r}{incomplete}; it has {existing}.")

    # ---- writing ---------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Creates the directory, or accepts an empty one or a run.

        Raises:
            ArgumentError: The directory has other content or cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentError(f"{self.path} is a file; choose the name of a directory for the run.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            entries = sorted(entry.name for entry in self.path.iterdir())
            if entries and not any(name in entries for name in _RUN_FILES):
                more = " and more" if len(entries) > 1 else ""
                raise ArgumentError(
                    f"the directory {self.path} exists and is not an entformer run (it contains {entries[0]}{more}); "
                    "choose a new or an empty directory."
                )
            for directory in (self.checkpoints, self.validations):
                directory.mkdir(exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as err:
            raise ArgumentError(
                f"the directory {self.path} cannot be created or written ({err.strerror}); make it writable or choose another."
            ) from err

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the run; raises `ArgumentError` if another process holds it."""
        with directory_lock(self.path, wait=False):
            yield

    def check_disk_space(self, needed: int) -> None:
        """Raises `ArgumentError` if the disk has less than `needed` bytes free."""
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise ArgumentError(
                f"the disk of {self.path} has {free / 1e6:.0f} MB free and the checkpoints of this run need about "
                f"{needed / 1e6:.0f} MB; free some space, keep fewer (training.keep_last) or choose another directory."
            )

    def remove_incomplete(self) -> list[str]:
        """Removes what an interrupted process left, and returns the names of incomplete checkpoints."""
        removed = []
        for path in sorted(self.checkpoints.iterdir()):
            match = _INCOMPLETE.fullmatch(path.name)
            if match or (_NAME.fullmatch(path.name) and not is_complete(path)):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name if match is None else match[1])
            elif path.is_dir():
                remove_temporary(path)
        for directory in (self.path, self.averaged, self.validations):
            remove_temporary(directory)
        for pattern in (".probe-*", ".*.partial", ".prepared.*.old"):
            for path in self.path.glob(pattern):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return removed

    def set_damaged_aside(self) -> list[str]:
        """Renames the newest checkpoints that do not match their checksums, until one does.

        Training from an older checkpoint repeats the steps in between. A damaged directory is kept as damaged-step-N, since
        the error may lie in reading it.

        Returns:
            A message for each renamed checkpoint.

        Raises:
            DataError: No checkpoint matches.
        """
        notes: list[str] = []
        while (latest := self.latest()) is not None:
            try:
                latest.verify()
                return notes
            except DataError as err:
                aside = latest.path.with_name(_DAMAGED + latest.name)
                before = self.complete()[:-1]
                if not before:
                    raise DataError(
                        f"{err} {self.path} has no other checkpoint to resume from; restore the file from a copy, or start a "
                        "new run in another directory."
                    ) from err
                with wrap_os_errors(aside):
                    shutil.rmtree(aside, ignore_errors=True)
                    os.replace(latest.path, aside)
                notes.append(
                    f"WARNING: {err} It is kept as {aside.name}; training resumes from {before[-1].name} and repeats the "
                    f"{latest.step - before[-1].step} steps in between."
                )
        return notes

    def save(self, step: int, write: Callable[[Path], None], state: dict[str, Any], *, replace: bool = False) -> Checkpoint:
        """Saves checkpoint `step`.

        Args:
            step: The training step.
            write: Called with a directory; writes model.safetensors and state.safetensors into it.
            state: Content of state.json.
            replace: Replace the tensors of a checkpoint that exists. By default only its state.json is replaced: the tensors
                of a step are always the same.
        """
        final = self.checkpoints / checkpoint_name(step)
        if is_complete(final) and not replace:
            write_json(final / "state.json", state | {_SHA256: _json_sha256(state)})
            return Checkpoint(step, final)
        with staged_directory(final) as staged:
            write(staged)
            _complete(staged, state)
        return Checkpoint(step, final)

    def stage(self, step: int) -> Path:
        """Creates the directory into which all processes write the shards of checkpoint `step`; `commit` gives it its name."""
        final = self.checkpoints / checkpoint_name(step)
        staged = final.with_name(f".{final.name}.{os.getpid()}.partial")
        shutil.rmtree(staged, ignore_errors=True)
        with wrap_os_errors(staged):
            staged.mkdir()
        return staged

    def commit(self, step: int, staged: Path, state: dict[str, Any]) -> Checkpoint:
        """Completes a directory of `stage` when all shards are written."""
        final = self.checkpoints / checkpoint_name(step)
        with wrap_os_errors(staged):
            _complete(staged, state)
            for file in staged.iterdir():
                sync_file(file)
            shutil.rmtree(final, ignore_errors=True)
            os.replace(staged, final)
            sync_directory(final.parent)
        return Checkpoint(step, final)

    def set_pointer(self, pointer: str, checkpoint: Checkpoint, **facts: Any) -> None:
        """Writes best.json or last.json."""
        write_json(self.path / f"{pointer}.json", {"checkpoint": checkpoint.name, "step": checkpoint.step, **facts})

    def prune(self, steps: Iterable[int]) -> None:
        """Removes the complete checkpoints of all other steps."""
        kept = set(steps)
        for checkpoint in self.complete():
            if checkpoint.step not in kept:
                (checkpoint.path / "DONE").unlink(missing_ok=True)  # first: an interrupted removal leaves no checkpoint
                shutil.rmtree(checkpoint.path, ignore_errors=True)


def is_complete(path: Path) -> bool:
    """Returns whether a directory has DONE and state.json, and its files have the sizes in DONE."""
    try:
        sizes = _read_done(path)
        names = _tensor_files(sizes)
        return (path / "state.json").is_file() and all((path / name).stat().st_size == sizes[name] for name in names)
    except (OSError, DataError, KeyError):
        return False


def refuse_pickled(path: Path) -> None:
    """Raises `DataError` if a directory is a checkpoint in torch's default format, which loading would unpickle."""
    if (path / ".metadata").exists() or any(path.glob("*.distcp")):
        raise DataError(
            f"{path} is a checkpoint of torch.distributed.checkpoint with pickled metadata (.metadata, *.distcp); loading it "
            "could run code of whoever wrote it, so it is refused. Convert it to safetensors where it was made."
        )


def _complete(directory: Path, state: dict[str, Any]) -> None:
    """Writes state.json and DONE beside the tensors of a checkpoint."""
    write_json(directory / "state.json", state | {_SHA256: _json_sha256(state)})
    names = tuple(sorted(path.name for path in directory.glob(f"{_SHARD}*"))) or _TENSOR_FILES
    done: dict[str, Any] = {name: (directory / name).stat().st_size for name in names}
    done[_SHA256] = {name: file_sha256(directory / name) for name in names}
    write_bytes(directory / "DONE", json.dumps(done).encode())


def _tensor_files(done: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the tensor files that DONE lists: shards, or those that every other checkpoint has."""
    return tuple(name for name in done if name.startswith(_SHARD)) or _TENSOR_FILES


def _read_done(path: Path) -> dict[str, Any]:
    """Returns the content of DONE: file sizes by name and, unless an older version wrote it, checksums under `sha256`."""
    done = read_json(path / "DONE")
    if not isinstance(done.get(_SHA256, {}), dict):
        raise DataError(f"{path / 'DONE'} is damaged: its checksums are not an object.")
    return done


def _json_sha256(value: dict[str, Any]) -> str:
    """Returns the SHA-256 of the content of a JSON file, independent of its formatting."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()
