"""Checkpoints appear whole or not at all, incomplete ones are never used, and the folder is checked before work begins."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from entformer import files
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.checkpoint.weights import save_tensors
from entformer.errors import ArgumentError, DataError, RunFailed


def writer(value: float = 1.0) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in ("model", "state"):
            save_tensors(folder / f"{name}.safetensors", {"x": torch.full((100,), value)})

    return write


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create()
    return made


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def save(folder: RunFolder, *steps: int) -> list[Checkpoint]:
    return [folder.save(step, writer(step), {"step": step}) for step in steps]


def test_saved_checkpoints_are_found_in_order(folder: RunFolder) -> None:
    save(folder, 100, 20, 3)
    assert [checkpoint.step for checkpoint in folder.complete()] == [3, 20, 100]
    latest = folder.latest()
    assert latest is not None
    assert (latest.name, latest.state()) == ("step-00000100", {"step": 100})
    assert folder.checkpoint("20") == folder.checkpoint("step-20") == folder.checkpoint("step-00000020")


@pytest.mark.parametrize("victim", ["model.safetensors", "state.safetensors", "DONE", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_an_incomplete_checkpoint_is_skipped_and_removed(folder: RunFolder, victim: str, damage: str) -> None:
    _, newest = save(folder, 1, 2)
    path = newest.path / victim
    if damage == "missing":
        path.unlink()
    elif victim == "state.json":
        pytest.skip("state.json is replaced in one step, it cannot be cut short")
    else:
        os.truncate(path, path.stat().st_size // 2)
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 1
    with pytest.raises(DataError, match=r"has no checkpoint 'step-2' \(it is incomplete\); it has step-00000001\."):
        folder.checkpoint("step-2")
    assert folder.remove_incomplete() == ["step-00000002"]
    assert not newest.path.exists()


def test_a_save_that_was_cut_off_leaves_nothing_that_counts(folder: RunFolder) -> None:
    save(folder, 1)

    def dies(path: Path) -> None:
        (path / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.save(2, dies, {})
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000001"]
    (folder.checkpoints / ".step-00000003.77.partial").mkdir()  # as kill -9 leaves it
    assert [checkpoint.step for checkpoint in folder.complete()] == [1]
    assert folder.remove_incomplete() == ["step-00000003"]


def test_saving_a_step_again_replaces_its_state_and_never_its_tensors(folder: RunFolder) -> None:
    (first,) = save(folder, 5)
    tensors = first.weights.stat().st_mtime_ns
    again = folder.save(5, writer(9.0), {"step": 5, "validated": 5})
    assert again.state() == {"step": 5, "validated": 5}
    assert again.weights.stat().st_mtime_ns == tensors
    again.verify()


def test_pointers_name_complete_checkpoints_only(folder: RunFolder) -> None:
    first, second = save(folder, 1, 2)
    folder.set_pointer("best", first, metric="bleu", value=3.5)
    assert folder.resolve_pointer("best") == first
    assert json.loads((folder.path / "best.json").read_text(encoding="utf-8"))["value"] == 3.5
    folder.set_pointer("last", second)
    (second.path / "DONE").unlink()
    with pytest.warns(UserWarning, match=r"checkpoint named in .*last\.json is missing or incomplete"):
        assert folder.resolve_pointer("last") is None
    assert folder.resolve_pointer("other") is None
    folder.prune([9])
    assert folder.complete() == []


# ---- disk full, read-only, not a run ---------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_and_older_checkpoints_stay(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder, 1)
    monkeypatch.setattr("entformer.checkpoint.weights.save_file", failing(errno.ENOSPC))
    with pytest.raises(RunFailed, match=r"the disk is full: .*step-00000002.* What was saved before is intact; free"):
        save(folder, 2)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000001"]


def test_a_full_disk_while_writing_a_small_file_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "best.json"
    files.write_json(path, {"step": 1})
    monkeypatch.setattr(files.os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(RunFailed, match="the disk is full"):
        files.write_json(path, {"step": 2})
    assert files.read_json(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.json"]


def test_too_little_space_is_said_before_training(folder: RunFolder) -> None:
    with pytest.raises(ArgumentError, match=r"MB free and the checkpoints of this run need about 1000000000 MB"):
        folder.check_disk_space(10**15)


def test_a_path_with_other_content_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    (tmp_path / "zoo").mkdir()
    for path, message in (
        (tmp_path, r"exists and is not an entformer run \(it contains thesis.tex and more\)"),
        (tmp_path / "thesis.tex", "is a file; choose the name of a directory"),
        (tmp_path / "thesis.tex" / "below", "cannot be created or written"),
    ):
        with pytest.raises(ArgumentError, match=message):
            RunFolder(path).create()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex", "zoo"]


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setattr(Path, "write_bytes", failing(errno.EROFS))
    with pytest.raises(ArgumentError, match=r"cannot be created or written \(Read-only file system\)"):
        RunFolder(run).create()
