"""The run folder: its names, its checkpoints, who may write to it. In: a path. Out: `RunFolder`.

    RUN/recipe.yaml           resolved recipe              RUN/metrics.jsonl   one JSON object per line
    RUN/model.json            what the model is            RUN/train.log       what was said, with times
    RUN/subwords.model        the subwords                 RUN/validations/    translations of the validation set
    RUN/best.json, last.json  names of checkpoints         RUN/averaged/       model.safetensors, average.json
    RUN/checkpoints/step-00001000/  model.safetensors, state.safetensors, state.json, DONE

A checkpoint is written under a hidden name and renamed when it is whole; DONE, written last, holds the sizes of its files.
What lacks DONE, or has other sizes, is not a checkpoint: it is skipped by readers and removed by the next training.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entformer.checkpoint.atomic import read_json, saying_why, sync_folder, write_bytes, write_json
from entformer.errors import ArgumentError, DataError

_NAME = re.compile(r"step-(\d+)")
_WRITING = ".writing-"
_SIZED = ("model.safetensors", "state.safetensors")
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
        """What state.json holds."""
        return read_json(self.path / "state.json")


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
        """The checkpoint that best.json or last.json names, if it is there and complete."""
        pointer = self.path / f"{which}.json"
        if not pointer.is_file():
            return None
        name = str(read_json(pointer).get("checkpoint"))
        match = _NAME.fullmatch(name)
        path = self.checkpoints / name
        return Checkpoint(int(match[1]), path) if match and is_complete(path) else None

    def checkpoint(self, name: str) -> Checkpoint:
        """The complete checkpoint `name`: step-00001000, step-1000 or 1000."""
        digits = name.removeprefix("step-")
        path = self.checkpoints / (checkpoint_name(int(digits)) if digits.isdecimal() else name)
        match = _NAME.fullmatch(path.name)
        if match and is_complete(path):
            return Checkpoint(int(match[1]), path)
        here = ", ".join(checkpoint.name for checkpoint in self.complete()) or "no checkpoint"
        half = " (it is half-written)" if path.is_dir() else ""
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
        with open(self.path / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as problem:
                file.seek(0)
                raise ArgumentError(
                    f"another training (process {file.read().strip() or '?'}) is writing to {self.path}; "
                    "wait for it, stop it, or give another folder."
                ) from problem
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
        """Clear away what an interrupted save left behind; their names."""
        removed = []
        for path in sorted(self.checkpoints.iterdir()):
            if path.name.startswith(_WRITING) or (_NAME.fullmatch(path.name) and not is_complete(path)):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name.removeprefix(_WRITING))
        return removed

    def save(self, step: int, write: Callable[[Path], None], state: dict[str, Any]) -> Checkpoint:
        """Make checkpoint `step`: `write(folder)` makes its two safetensors files, `state` becomes state.json.

        If the step is there already its tensors are the same, so only state.json is replaced: the checkpoint is never gone.
        """
        final = self.checkpoints / checkpoint_name(step)
        if is_complete(final):
            write_json(final / "state.json", state)
            return Checkpoint(step, final)
        folder = self.checkpoints / f"{_WRITING}{final.name}"
        try:
            with saying_why(final):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                write(folder)
                write_json(folder / "state.json", state)
                sizes = {name: (folder / name).stat().st_size for name in _SIZED}
                write_bytes(folder / "DONE", json.dumps(sizes).encode())
                if final.exists():
                    shutil.rmtree(final)  # half-written, or it would have been complete
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
        sizes = json.loads((path / "DONE").read_bytes())
        return (path / "state.json").is_file() and all((path / name).stat().st_size == sizes[name] for name in _SIZED)
    except (OSError, ValueError, KeyError, TypeError):
        return False
