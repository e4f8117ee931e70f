"""The run folder: its names, its checkpoints, who may write to it. In: a path. Out: `RunFolder`.

    RUN/recipe.yaml           resolved recipe              RUN/metrics.jsonl   one JSON object per line
    RUN/model.json            what the model is            RUN/train.log       what was said, with times
    RUN/subwords.model        the subwords                 RUN/validations/    translations of the validation set
    RUN/best.json, last.json  names of checkpoints         RUN/averaged/       model.safetensors, average.json
    RUN/checkpoints/step-00001000/  model.safetensors, state.safetensors, state.json, DONE

A checkpoint is written under a hidden name and renamed when it is whole; DONE, written last, holds the sizes and checksums of
its files, and state.json holds a checksum of itself. What lacks DONE, or has other sizes, is not a checkpoint: it is skipped
by readers and removed by the next training. Checksums are compared whenever a file is loaded: a reader gets an error, and
training sets a newest checkpoint that does not match aside (damaged-step-00001000) and goes on from the one before it.
Checkpoints of older versions have no checksums and are loaded without comparing.
"""

import contextlib
import fcntl
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

from entformer.checkpoint.atomic import (
    file_sha256,
    plain,
    read_json,
    remove_temporary,
    sync_folder,
    wrap_os_errors,
    write_bytes,
    write_json,
)
from entformer.errors import ArgumentError, DataError

_NAME = re.compile(r"step-(\d+)")
_WRITING = ".writing-"
_DAMAGED = "damaged-"
_DAMAGED = "damaged-"
_SIZED = ("model.safetensors", "state.safetensors")
_SHA256 = "sha256"  # in DONE: name of a file -> its checksum; in state.json: the checksum of the rest
_SHA256 = "sha256"  # in DONE: name of a file -> its checksum; in state.json: the checksum of the rest
_OURS = ("recipe.yaml", "model.json", ".lock", "train.log", "metrics.jsonl", "prepared", "checkpoints")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """One complete checkpoint."""

    step: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def tensors(self) -> Path:
        return self.path / "state.safetensors"

    def state(self) -> dict[str, Any]:
        """What state.json holds, after comparing it with its checksum."""
        path = self.path / "state.json"
        state = read_json(path)
        expected = state.pop(_SHA256, None)
        if expected is not None and expected != _json_sha256(state):
            raise DataError(f"{path} is damaged: its content does not match its checksum.")
        return state

    def verify(self, *names: str) -> None:
        """Compare files of this checkpoint with the checksums in DONE.

        Args:
            names: "model.safetensors" or "state.safetensors"; both, and state.json too, if none is given.

        Raises:
            DataError: a file does not match, and which one.
        """
        checksums = _read_done(self.path).get(_SHA256, {})
        for name in names or _SIZED:
            path = self.path / name
            try:
                matches = name not in checksums or file_sha256(path) == checksums[name]
            except OSError as problem:
                raise DataError(f"{path} cannot be read ({problem.strerror or problem}).") from problem
            if not matches:
                raise DataError(f"{path} is damaged: its content does not match its checksum.")
        if not names:
            self.state()


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


class RunFolder:
    """The folder of one training run."""

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

    # ---- readers ---------------------------------------------------------------------------------------------------------

    def complete(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        found = [(match, path) for path in self.checkpoints.iterdir() if (match := _NAME.fullmatch(path.name))]
        return sorted(Checkpoint(int(match[1]), path) for match, path in found if is_complete(path))

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return next(reversed(self.complete()), None)

    def pointed(self, which: str) -> Checkpoint | None:
        """The checkpoint that best.json or last.json names, if it is there and complete; a warning if it is not."""
        pointer = self.path / f"{which}.json"
        if not pointer.is_file():
            return None
        name = str(read_json(pointer).get("checkpoint"))
        match = _NAME.fullmatch(name)
        path = self.checkpoints / name
        if match and is_complete(path):
            return Checkpoint(int(match[1]), path)
        warnings.warn(f"the checkpoint that {pointer} names is gone or incomplete; the last one is used.", stacklevel=4)
        return None

    def checkpoint(self, name: str) -> Checkpoint:
        """The complete checkpoint `name`: step-00001000, step-1000 or 1000."""
        digits = name.removeprefix("step-")
        path = self.checkpoints / (checkpoint_name(int(digits)) if digits.isdecimal() else name)
        match = _NAME.fullmatch(path.name)
        if match and is_complete(path):
            return Checkpoint(int(match[1]), path)
        here = ", ".join(checkpoint.name for checkpoint in self.complete()) or "no checkpoint"
        half = " (it is incomplete)" if path.is_dir() else ""
        raise DataError(f"{self.path} has no checkpoint {name!r}{half}; it has {here}.")

    # ---- the trainer's side ----------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Make the folder, or accept it if it is empty or a run; refuse anything else before work begins."""
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentError(f"{self.path} is a file; give the name of a folder for the run.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            entries = sorted(entry.name for entry in self.path.iterdir())
        except OSError as problem:
            raise ArgumentError(f"the folder {self.path} cannot be made ({problem.strerror}); give another one.") from problem
        if entries and not any(name in entries for name in _OURS):
            raise ArgumentError(
                f"the folder {self.path} exists and is not a run of entformer (it holds {entries[0]}"
                f"{' and more' if len(entries) > 1 else ''}); give a new or an empty folder."
            )
        try:
            for folder in (self.checkpoints, self.validations):
                folder.mkdir(exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as problem:
            raise ArgumentError(
                f"the folder {self.path} cannot be written to ({problem.strerror}); make it writable or give another one."
            ) from problem

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other training out of this folder. The lock ends with the process, however that ends."""
        path = self.path / ".lock"
        try:
            file = open(path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed below)
        except OSError as problem:
            raise ArgumentError(
                f"{path} cannot be opened ({problem.strerror}): the run belongs to another user or is read-only; "
                "give another folder."
            ) from problem
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as problem:
                file.seek(0)
                holder = file.read(20).strip()
                raise ArgumentError(
                    f"another training (process {holder if holder.isdecimal() else '?'}) is writing to {self.path}; "
                    "wait for it, stop it, or give another folder."
                ) from problem
            with wrap_os_errors(path):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            yield

    def need_space(self, needed: int) -> None:
        """Refuse to begin when the disk has no room for `needed` bytes."""
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise ArgumentError(
                f"the disk of {self.path} has {free / 1e6:.0f} MB free and the checkpoints of this run need about "
                f"{needed / 1e6:.0f} MB; free some space, keep fewer (training.keep_last) or give another folder."
            )

    def remove_half_written(self) -> list[str]:
        """Clear away what an interrupted save left behind, temporary files included; the names of checkpoints among it."""
        removed = []
        for path in sorted(self.checkpoints.iterdir()):
            if path.name.startswith(_WRITING) or (_NAME.fullmatch(path.name) and not is_complete(path)):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name.removeprefix(_WRITING))
            elif path.is_dir():
                remove_temporary(path)
        for folder in (self.path, self.averaged, self.validations):
            remove_temporary(folder)
        for pattern in (
            ".probe-*",
            ".subwords.model.*.partial",
            ".prepared.*.old",
            ".prepared.*.partial",
            "averaged/.model.safetensors.tmp",
        ):
            for path in self.path.glob(pattern):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return removed

    def set_damaged_aside(self) -> list[str]:
        """Rename newest checkpoints that do not match their checksums, until the newest one does.

        Training from the checkpoint before repeats the steps in between and loses nothing. The damaged folder is kept under
        another name, because the fault may lie in reading it.

        Returns:
            One sentence for each checkpoint that was renamed.

        Raises:
            DataError: there are checkpoints, and not one of them is whole.
        """
        notes: list[str] = []
        while (latest := self.latest()) is not None:
            try:
                latest.verify()
                return notes
            except DataError as problem:
                aside = latest.path.with_name(_DAMAGED + latest.name)
                before = self.complete()[:-1]
                if not before:
                    raise DataError(
                        f"{problem} {self.path} has no other checkpoint to go on from; put the file back from a copy, or start "
                        "a new run in another folder."
                    ) from problem
                with wrap_os_errors(aside):
                    shutil.rmtree(aside, ignore_errors=True)
                    os.replace(latest.path, aside)
                notes.append(
                    f"WARNING: {problem} It is kept as {aside.name}; training goes on from {before[-1].name} and repeats the "
                    f"{latest.step - before[-1].step} steps in between."
                )
        return notes

    def save(self, step: int, write: Callable[[Path], None], state: dict[str, Any]) -> Checkpoint:
        """Make checkpoint `step`: `write(folder)` makes its two safetensors files, `state` becomes state.json.

        If the step is there already its tensors are the same, so only state.json is replaced: the checkpoint is never gone.
        """
        final = self.checkpoints / checkpoint_name(step)
        if is_complete(final):
            write_json(final / "state.json", _with_sha256(state))
            return Checkpoint(step, final)
        folder = self.checkpoints / f"{_WRITING}{final.name}"
        try:
            with wrap_os_errors(final):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                write(folder)
                write_json(folder / "state.json", _with_sha256(state))
                done: dict[str, Any] = {name: (folder / name).stat().st_size for name in _SIZED}
                done[_SHA256] = {name: file_sha256(folder / name) for name in _SIZED}
                write_bytes(folder / "DONE", json.dumps(done).encode())
                if final.exists():
                    shutil.rmtree(final)  # incomplete, or it would have been complete
                os.replace(folder, final)
                sync_folder(self.checkpoints)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # a full disk gets its space back
            raise
        return Checkpoint(step, final)

    def point(self, which: str, checkpoint: Checkpoint, **facts: Any) -> None:
        """Write best.json or last.json."""
        write_json(self.path / f"{which}.json", {"checkpoint": checkpoint.name, "step": checkpoint.step, **facts})

    def keep_only(self, steps: Iterable[int]) -> None:
        """Remove the complete checkpoints of all other steps."""
        wanted = set(steps)
        for checkpoint in self.complete():
            if checkpoint.step not in wanted:
                # DONE goes first: a removal cut short leaves a folder that nobody takes for a checkpoint.
                (checkpoint.path / "DONE").unlink(missing_ok=True)
                shutil.rmtree(checkpoint.path, ignore_errors=True)


def is_complete(path: Path) -> bool:
    """Whether the folder has its DONE and its files have the sizes DONE says."""
    try:
        sizes = _read_done(path)
        return (path / "state.json").is_file() and all((path / name).stat().st_size == sizes[name] for name in _SIZED)
    except (OSError, DataError, KeyError):
        return False


def _read_done(path: Path) -> dict[str, Any]:
    """What DONE holds: sizes of files by name and, unless an older version wrote it, their checksums under `sha256`."""
    done = read_json(path / "DONE")
    if not isinstance(done.get(_SHA256, {}), dict):
        raise DataError(f"{path / 'DONE'} is damaged: its checksums are not an object.")
    return done


def _with_sha256(state: dict[str, Any]) -> dict[str, Any]:
    """The state with the checksum of its content."""
    return {**state, _SHA256: _json_sha256(state)}


def _json_sha256(value: dict[str, Any]) -> str:
    """Of the content, whatever its layout in the file: what is read back gives the same."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()
