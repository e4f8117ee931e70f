"""A run folder gives back the model that was saved, and says in one sentence what does not fit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from entformer.checkpoint import RunFolder, average_checkpoints, load_run, load_weights, save_weights
from entformer.checkpoint.average import best_checkpoints, last_checkpoints
from entformer.checkpoint.weights import read_tensors, tensors_of
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json, write_json
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

Make = Callable[..., Seq2Seq]


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return list(tensors_of(model).values())


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize(("which", "seed"), [("best", 4), ("last", 12), ("step-8", 8), ("step-00000008", 8)])
def test_a_run_loads_without_pickle(
    run: RunFolder, subwords: SubwordTokenizer, make_model: Make, which: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("torch.load or pickle was used")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr("pickle.load", refuse)
    loaded = load_run(run.path, which)
    assert same(loaded.model, make_model(seed))
    assert not loaded.model.training
    assert (loaded.source_language, loaded.target_language, loaded.step) == ("xx", "yy", seed)
    assert loaded.info["lowercase"] is True
    assert loaded.subwords.fingerprint == subwords.fingerprint


def test_weights_can_be_named_by_paths(run: RunFolder, make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.checkpoint("8").path
    assert load_run(run.path, path).step == 8
    assert same(load_run(run.path, str(path / "model.safetensors")).model, make_model(8))
    average_checkpoints(run, ["8", "12"])
    averaged = load_run(run.path, "averaged").model
    assert same(load_run(run.path, run.averaged).model, averaged)
    assert load_run(run.path, str(run.averaged)).step == 12
    assert load_run(run.path, str(run.path)).step == 4  # a run: its best
    assert load_run(run.path, "checkpoints/step-00000008").step == 8  # from the run directory
    monkeypatch.chdir(run.checkpoints)
    assert load_run(run.path, "step-00000008/").step == 8
    copy = run.path.parent / "copy"
    shutil.copytree(path, copy)
    assert same(load_run(run.path, copy).model, make_model(8))
    (run.path.parent / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no weights; pass a run, a checkpoint directory or a safetensors file"):
        load_run(run.path, run.path.parent / "empty")


def test_without_a_usable_pointer_the_last_complete_checkpoint_is_loaded(run: RunFolder) -> None:
    path = run.checkpoint("12").weights
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=r"last\.json is missing or incomplete; the last one is used"):
        assert load_run(run.path, "last").step == 8
    (run.path / "best.json").unlink()  # as before the first validation
    assert load_run(run.path).step == 8


def test_subwords_of_another_model_are_an_error(run: RunFolder, subwords: SubwordTokenizer) -> None:
    info = read_json(run.model)
    info["subwords"]["fingerprint"] = "f" * 16
    write_json(run.model, info)
    with pytest.raises(DataError, match="is not the one this model was trained with"):
        load_run(run.path)
    other = SubwordTokenizer.train(["x y z hello world"] * 5, vocab_size=276)
    other.save(run.subwords)
    with pytest.raises(DataError, match=rf"has a vocabulary of {subwords.size}, .*subwords.model of {other.size}; restore"):
        load_run(run.path)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"vocab_size": 40}, "the checkpoint has 40 types of subwords, the subwords in use have "),
        ({"encoder": {"normalizer": "softmax"}}, r"it lacks 1 tensors, the first is encoder\.0\.attention\.alpha\.pre_alpha"),
    ],
)
def test_weights_of_another_model_are_an_error(make_model: Make, tmp_path: Path, saved: dict[str, Any], message: str) -> None:
    save_weights(tmp_path / "w.safetensors", make_model(**saved))
    with pytest.raises(DataError, match=message):
        load_weights(tmp_path / "w.safetensors", make_model())


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_tied_tensors_are_stored_once_and_come_back_tied(make_model: Make, tmp_path: Path, tied: str) -> None:
    choices: dict[str, Any] = {"tied_embeddings": tied, "encoder": {"alpha_tied": "kind"}, "encoder_layers": 2}
    first, second = make_model(1, **choices), make_model(2, **choices)
    save_weights(tmp_path / "w.safetensors", first)
    stored = read_tensors(tmp_path / "w.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in first.parameters())
    load_weights(tmp_path / "w.safetensors", second)
    assert same(first, second)


def test_folders_that_are_no_runs_are_told_apart(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(DataError, match="there is no run directory"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"is not an entformer run: it has no model\.json"):
        load_run(tmp_path / "other")
    with pytest.raises(DataError, match=r"has no averaged weights; create them with: entformer average"):
        load_run(run.path, "averaged")
    shutil.rmtree(run.checkpoints)
    with pytest.warns(UserWarning, match="is missing"), pytest.raises(DataError, match="has no complete checkpoint yet"):
        load_run(run.path)


def test_average_is_the_mean_and_loads(run: RunFolder, make_model: Make) -> None:
    average_checkpoints(run.path, ["step-12", "step-4"])
    loaded = load_run(run.path, "averaged")
    assert loaded.step == 12
    every = [weights(model) for model in (loaded.model, make_model(4), make_model(12))]
    for mean, first, last in zip(*every, strict=True):
        torch.testing.assert_close(mean, (first + last) / 2)
    assert read_json(run.averaged / "average.json")["checkpoints"] == ["step-00000004", "step-00000012"]
    average_checkpoints(run.path, ["8"])
    assert same(load_run(run.path, "averaged").model, make_model(8))


def test_which_checkpoints_are_last_and_best(run: RunFolder) -> None:
    assert [checkpoint.step for checkpoint in last_checkpoints(run, 2)] == [4, 12]  # step 8 was saved because of a stop
    assert [checkpoint.step for checkpoint in best_checkpoints(run, 5)] == [4, 12]
    assert [checkpoint.step for checkpoint in best_checkpoints(run, 1)] == [12]
    with pytest.raises(ArgumentError, match="must not be empty"):
        average_checkpoints(run, [])
