"""Files of a run that were changed, cut short or left behind: found before they are used, and told in one sentence."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entformer.checkpoint import RunFolder, average_checkpoints, load_run
from entformer.checkpoint.folder import Checkpoint
from entformer.cli.convert import convert
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json, write_json
from entformer.models.seq2seq import Seq2Seq
from entformer.training.optim import make_optimizer
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.state import Progress, load_progress

Make = Callable[..., Seq2Seq]


def resume(folder: RunFolder, make_model: Make) -> Progress:
    latest = folder.latest()
    assert latest is not None
    model = make_model()
    return load_progress(latest, model=model, optimizer=make_optimizer(model, TrainingConfig()), ranks=Ranks("cpu"), seed=1)[0]


def flip(path: Path, where: int = -5) -> None:
    """One bit, the size stays."""
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


def without_checksums(checkpoint: Checkpoint) -> None:
    """As an older version wrote it."""
    done = read_json(checkpoint.path / "DONE")
    del done["sha256"]
    (checkpoint.path / "DONE").write_text(json.dumps(done))
    state = read_json(checkpoint.path / "state.json")
    del state["sha256"]
    (checkpoint.path / "state.json").write_text(json.dumps(state))


# ---- one bit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["model.safetensors", "state.safetensors", "state.json"])
def test_a_changed_file_is_found_before_training_goes_on(run: RunFolder, make_model: Make, victim: str) -> None:
    path = run.checkpoint("12").path / victim
    if victim == "state.json":
        path.write_text(path.read_text().replace('"position": 0', '"position": 7'))
    else:
        flip(path)
    with pytest.raises(DataError, match=rf"step-00000012/{victim} is damaged: its content does not match its checksum"):
        resume(run, make_model)


def test_one_flipped_bit_is_found_before_translating(run: RunFolder) -> None:
    flip(run.checkpoint("4").weights)
    expected = r"model\.safetensors is damaged: .* checksum; use another checkpoint: step-00000008, step-00000012\."
    for which in ("best", "step-4", run.checkpoint("4").path):
        with pytest.raises(DataError, match=expected):
            load_run(run.path, which)
    with pytest.raises(DataError, match="is damaged"):
        load_run(run.path, run.checkpoint("4").weights)
    with pytest.raises(DataError, match=r"step-00000004/model\.safetensors is damaged"):
        average_checkpoints(run, ["4", "8"])
    assert load_run(run.path, "last").step == 12
    flip(average_checkpoints(run, ["8", "12"]))
    with pytest.raises(DataError, match=r"averaged/model\.safetensors is damaged: .*recreate it with: entformer average"):
        load_run(run.path, "averaged")


def test_checkpoints_without_checksums_still_load(run: RunFolder, make_model: Make) -> None:
    without_checksums(run.checkpoint("12"))
    assert resume(run, make_model).step == 12
    assert run.set_damaged_aside() == []
    assert load_run(run.path, "last").step == 12
    average_checkpoints(run, ["4", "12"])
    record = read_json(run.averaged / "average.json")
    del record["sha256"]
    write_json(run.averaged / "average.json", record)
    assert load_run(run.path, "averaged").step == 12


# ---- going on from an older one -----------------------------------------------------------------------------------------


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_is_used(run: RunFolder, make_model: Make) -> None:
    flip(run.checkpoint("12").tensors)
    (note,) = run.set_damaged_aside()
    assert note.startswith("WARNING: ")
    assert "state.safetensors is damaged" in note
    assert "resumes from step-00000008 and repeats the 4 steps in between" in note
    assert resume(run, make_model).step == 8
    assert (run.checkpoints / "damaged-step-00000012" / "state.safetensors").is_file()
    assert run.set_damaged_aside() == []  # said once


def test_with_no_whole_checkpoint_training_does_not_silently_start_again(run: RunFolder) -> None:
    for checkpoint in run.complete():
        flip(checkpoint.weights)
    with pytest.raises(DataError, match=r"step-00000004.* is damaged: .* no other checkpoint to resume from; restore the file"):
        run.set_damaged_aside()
    assert [checkpoint.step for checkpoint in run.complete()] == [4]


def test_the_ranking_names_only_checkpoints_that_are_still_there(run: RunFolder, make_model: Make) -> None:
    run.prune([8, 12])  # a better one of step 12 took the place of step 4
    flip(run.checkpoint("12").weights)
    run.set_damaged_aside()
    assert resume(run, make_model).best == []


# ---- files that people or programs changed ------------------------------------------------------------------------------

STATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "step: input should be a valid integer": lambda state: state.update(step="many"),
    "interval: list should have at least 6 items": lambda state: state.update(interval=[1.0]),
    r"best\.0": lambda state: state.update(best=[7]),
    "processes: field required": lambda state: state.pop("processes"),
    "is of step 99, not of this checkpoint": lambda state: state.update(step=99),
    "random states cannot be restored": lambda state: state.update(python_random=[3, [1, 2], None]),
    "versions: input should be": lambda state: state.update(versions=None),
}


@pytest.mark.parametrize("said", STATES)
def test_a_state_of_other_types_is_one_sentence(run: RunFolder, make_model: Make, said: str) -> None:
    newest = run.checkpoint("12")
    without_checksums(newest)
    state = newest.state()
    STATES[said](state)
    (newest.path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=said) as caught:
        resume(run, make_model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '{"format": 1}'])
def test_json_files_of_other_content_are_one_sentence(run: RunFolder, text: str) -> None:
    average_checkpoints(run, ["4"])
    for path, which in (
        (run.model, "best"),
        (run.averaged / "average.json", "averaged"),
        (run.path / "best.json", "best"),
    ):
        before = path.read_text()
        path.write_text(text)
        if path.name == "best.json" and text.startswith('{"format"'):  # names no checkpoint: the last is taken
            with pytest.warns(UserWarning, match="is used"):
                assert load_run(run.path, which).step == 12
        else:
            with pytest.raises(DataError, match=path.name) as caught:
                load_run(run.path, which)
            assert "\n" not in str(caught.value)
        path.write_text(before)


@pytest.mark.parametrize("changed", [{"subwords": None}, {"subwords": {"size": 280}}, {"source_language": 3}, {"model": []}])
def test_a_model_file_of_other_types_names_the_key(run: RunFolder, changed: dict[str, Any]) -> None:
    write_json(run.model, read_json(run.model) | changed)
    with pytest.raises(DataError, match=rf"model\.json is damaged \({next(iter(changed))}.*\); restore it from a copy\."):
        load_run(run.path)


def test_a_lock_that_cannot_be_taken_is_an_error(run: RunFolder) -> None:
    lock = run.path / ".lock"
    lock.mkdir()
    with pytest.raises(ArgumentError, match=r"\.lock cannot be opened \(Is a directory\).*choose another"), run.locked():
        pass
    lock.rmdir()
    lock.write_bytes(b"\xff\xfe" * 100)  # any content
    with run.locked(), pytest.raises(ArgumentError, match=r"another process \(PID \d+\)"), run.locked():
        pass
    if os.geteuid() != 0:  # root may open every file
        lock.chmod(stat.S_IRUSR)
        with pytest.raises(ArgumentError, match="belongs to another user"), run.locked():
            pass


# ---- what kill -9 leaves ------------------------------------------------------------------------------------------------


def test_temporary_files_are_removed_by_the_next_start(run: RunFolder) -> None:
    run.averaged.mkdir()
    kept = sorted(path for path in run.path.rglob("*") if path.is_file())
    left = [
        run.path / ".model.json.0123abcd.tmp",
        run.path / ".probe-77",
        run.path / ".subwords.model.77.partial",
        run.validations / ".4.txt.0123abcd.tmp",
        run.averaged / ".average.json.0123abcd.tmp",
        run.checkpoint("4").path / ".state.json.0123abcd.tmp",
    ]
    for path in left:
        path.write_bytes(b"half")
    (run.path / ".prepared.77.old").mkdir()
    assert run.remove_incomplete() == []
    assert sorted(path for path in run.path.rglob("*") if path.is_file()) == kept
    assert not (run.path / ".prepared.77.old").exists()


def test_a_pickled_checkpoint_of_others_is_refused(run: RunFolder, tmp_path: Path) -> None:
    foreign, loaded = tmp_path / "foreign", tmp_path / "loaded"
    foreign.mkdir()
    (foreign / ".metadata").write_bytes(f"cos\nmkdir\n(S'{loaded}'\ntR.".encode())
    with pytest.raises(DataError, match="pickled metadata"):
        load_run(run.path, foreign)
    with pytest.raises(DataError, match="pickled metadata"):
        convert(foreign)
    assert not loaded.exists()
