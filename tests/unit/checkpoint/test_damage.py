"""Files of a run that were changed, cut short or left behind: found before they are used, and told in one sentence."""

import json
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from entformer.checkpoint import RunFolder, average_checkpoints, load_run, load_weights, model_info, save_weights
from entformer.checkpoint.average import best_checkpoints
from entformer.checkpoint.folder import Checkpoint
from entformer.checkpoint.weights import save_tensors
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json, write_json
from entformer.models.config import Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer
from entformer.training.optim import make_optimizer
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.state import Progress, load_progress, random_tensors, save_progress

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 8, "hidden": 16}


@pytest.fixture(scope="module")
def subwords() -> SubwordTokenizer:
    return SubwordTokenizer.train(["a b c d e f", "b a d c f e"] * 5, vocab_size=280)


def model_of(size: int, seed: int = 1) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2Seq(Seq2SeqConfig.from_dict({**SIZES, "vocab_size": size}))


@pytest.fixture
def run(tmp_path: Path, subwords: SubwordTokenizer) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    subwords.save(folder.subwords)
    config = model_of(subwords.size).config
    languages: dict[str, Any] = {"source_language": "xx", "target_language": "yy", "tokenized": False, "lowercase": True}
    write_json(folder.model, model_info(config, subwords, data_fingerprint="0123", **languages))
    ranks = Ranks("cpu")
    for step in (4, 8, 12):
        model = model_of(subwords.size, step)
        progress = Progress(step=step, best=[(4, 9.0)])
        save_progress(
            folder,
            progress,
            model=model,
            optimizer=make_optimizer(model, TrainingConfig()),
            random_states=random_tensors(ranks),
            ranks=ranks,
            scheduled=True,
            data_fingerprint="0123",
        )
    folder.set_pointer("best", folder.checkpoint("4"), metric="bleu", value=9.0)
    return folder


def resume(folder: RunFolder, size: int) -> Progress:
    latest = folder.latest()
    assert latest is not None
    model = model_of(size)
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


@pytest.mark.parametrize("victim", ["model.safetensors", "state.safetensors"])
def test_one_flipped_bit_is_found_before_training_goes_on(run: RunFolder, subwords: SubwordTokenizer, victim: str) -> None:
    newest = run.checkpoint("12")
    flip(newest.path / victim)
    with pytest.raises(DataError, match=rf"step-00000012/{victim} is damaged: its content does not match its checksum"):
        resume(run, subwords.size)


def test_a_changed_number_in_the_state_is_found(run: RunFolder, subwords: SubwordTokenizer) -> None:
    path = run.checkpoint("12").path / "state.json"
    path.write_text(path.read_text().replace('"position": 0', '"position": 7'))
    with pytest.raises(DataError, match=r"state\.json is damaged: its content does not match its checksum"):
        resume(run, subwords.size)


def test_one_flipped_bit_is_found_before_translating(run: RunFolder, subwords: SubwordTokenizer) -> None:
    flip(run.checkpoint("4").weights)
    expected = r"model\.safetensors is damaged: .* checksum; use another checkpoint: step-00000008, step-00000012\."
    for which in ("best", "step-4", run.checkpoint("4").path):
        with pytest.raises(DataError, match=expected):
            load_run(run.path, which)
    with pytest.raises(DataError, match="is damaged"):
        load_run(run.path, run.checkpoint("4").weights)
    with pytest.raises(DataError, match=r"step-00000004/model\.safetensors is damaged"):
        average_checkpoints(run, ["4", "8"])
    with pytest.raises(DataError, match=expected):
        load_weights(run.checkpoint("4").weights, model_of(subwords.size))
    assert load_run(run.path, "last").step == 12


def test_one_flipped_bit_in_averaged_weights_is_found(run: RunFolder) -> None:
    flip(average_checkpoints(run, ["4", "8"]))
    with pytest.raises(DataError, match=r"averaged/model\.safetensors is damaged: .*recreate it with: entformer average"):
        load_run(run.path, "averaged")


def test_checkpoints_without_checksums_still_load(run: RunFolder, subwords: SubwordTokenizer) -> None:
    without_checksums(run.checkpoint("12"))
    assert resume(run, subwords.size).step == 12
    assert run.set_damaged_aside() == []
    assert load_run(run.path, "last").step == 12
    average_checkpoints(run, ["4", "12"])
    record = read_json(run.averaged / "average.json")
    del record["sha256"]
    write_json(run.averaged / "average.json", record)
    assert load_run(run.path, "averaged").step == 12


# ---- going on from an older one -----------------------------------------------------------------------------------------


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_is_used(
    run: RunFolder, subwords: SubwordTokenizer
) -> None:
    flip(run.checkpoint("12").tensors)
    (note,) = run.set_damaged_aside()
    assert note.startswith("WARNING: ")
    assert "state.safetensors is damaged" in note
    assert "resumes from step-00000008 and repeats the 4 steps in between" in note
    assert resume(run, subwords.size).step == 8
    assert (run.checkpoints / "damaged-step-00000012" / "state.safetensors").is_file()
    assert run.set_damaged_aside() == []  # said once


def test_with_no_whole_checkpoint_training_does_not_silently_start_again(run: RunFolder) -> None:
    for checkpoint in run.complete():
        flip(checkpoint.weights)
    with pytest.raises(DataError, match=r"step-00000004.* is damaged: .* no other checkpoint to resume from; restore the file"):
        run.set_damaged_aside()
    assert [checkpoint.step for checkpoint in run.complete()] == [4]


def test_the_ranking_names_only_checkpoints_that_are_still_there(run: RunFolder, subwords: SubwordTokenizer) -> None:
    run.prune([8, 12])  # a better one of step 12 took the place of step 4
    flip(run.checkpoint("12").weights)
    run.set_damaged_aside()
    assert resume(run, subwords.size).best == []


def test_a_pointer_to_a_checkpoint_that_is_gone_is_told(run: RunFolder) -> None:
    run.prune([8, 12])
    with pytest.warns(UserWarning, match=r"checkpoint named in .*best\.json is missing or incomplete; the last one is used"):
        assert load_run(run.path).step == 12
    run.set_pointer("best", run.checkpoint("8"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_run(run.path).step == 8


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
def test_a_state_of_other_types_is_one_sentence(run: RunFolder, subwords: SubwordTokenizer, said: str) -> None:
    newest = run.checkpoint("12")
    without_checksums(newest)
    state = newest.state()
    STATES[said](state)
    (newest.path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=said) as caught:
        resume(run, subwords.size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\x00\x01", "[" * 100_000, '{"format": 1}', '{"format": 2}'])
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


def test_a_model_too_large_to_build_is_one_sentence(run: RunFolder) -> None:
    info = read_json(run.model)
    info["model"] |= {"width": 2**40, "hidden": 2**40}
    write_json(run.model, info)
    with pytest.raises(DataError, match=r"model\.json") as caught:
        load_run(run.path)
    assert "\n" not in str(caught.value)


def test_a_ranking_of_other_types_is_one_sentence(run: RunFolder) -> None:
    newest = run.checkpoint("12")
    without_checksums(newest)
    (newest.path / "state.json").write_text(json.dumps(newest.state() | {"best": [1, 2]}))
    with pytest.raises(DataError, match=r"state\.json is damaged: `best`"):
        best_checkpoints(run, 2)


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
        run.averaged / ".model.safetensors.tmp",
        run.checkpoint("4").path / ".state.json.0123abcd.tmp",
    ]
    for path in left:
        path.write_bytes(b"half")
    (run.path / ".prepared.77.old").mkdir()
    assert run.remove_incomplete() == []
    assert sorted(path for path in run.path.rglob("*") if path.is_file()) == kept
    assert not (run.path / ".prepared.77.old").exists()


def test_state_of_a_step_saved_again_matches_its_checksum(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()

    def write(path: Path) -> None:
        save_weights(path / "model.safetensors", torch.nn.Linear(2, 2))
        save_tensors(path / "state.safetensors", {"x": torch.zeros(1)})

    folder.save(1, write, {"step": 1, "loss": float("nan"), "rate": 1e-300})
    again = folder.save(1, write, {"step": 1, "validated": 1, "0.1": [0.1, 1e22, -0.0]})
    again.verify()
    assert again.state()["validated"] == 1
