"""A run folder gives back the model that was saved, and says in one sentence what does not fit."""

import shutil
from pathlib import Path

import pytest
import torch

from entformer.checkpoint import RunFolder, average_checkpoints, load_run, load_weights, model_info, save_weights
from entformer.checkpoint.average import best_checkpoints, last_checkpoints
from entformer.checkpoint.weights import read_tensors, save_tensors, tensors_of
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json, write_json
from entformer.models.config import Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 8, "hidden": 16}


def model_of(vocab_size: int, seed: int = 1, **changes: object) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2Seq(Seq2SeqConfig.from_dict({**SIZES, "vocab_size": vocab_size, **changes}))


@pytest.fixture(scope="module")
def subwords() -> SubwordTokenizer:
    return SubwordTokenizer.train(["a b c d e f", "b a d c f e"] * 5, vocab_size=280)


@pytest.fixture
def run(tmp_path: Path, subwords: SubwordTokenizer) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    subwords.save(folder.subwords)
    config = model_of(subwords.size).config
    languages = {"source_language": "xx", "target_language": "yy", "tokenized": False, "lowercase": True}
    write_json(folder.model, model_info(config, subwords, data_fingerprint="0123", **languages))  # type: ignore[arg-type]
    for step in (1, 2, 3):

        def write(path: Path, seed: int = step) -> None:
            save_weights(path / "model.safetensors", model_of(subwords.size, seed))
            save_tensors(path / "state.safetensors", {"x": torch.zeros(1)})

        state = {"step": step, "scheduled": step != 2, "best": [[3, 9.0], [1, 5.0]] if step == 3 else []}
        folder.set_pointer("last", folder.save(step, write, state))
    folder.set_pointer("best", folder.checkpoint("1"), metric="bleu", value=5.0)
    return folder


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return list(tensors_of(model).values())


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize(("which", "seed"), [("best", 1), ("last", 3), ("step-2", 2), ("step-00000002", 2)])
def test_a_run_loads_without_pickle(
    run: RunFolder, subwords: SubwordTokenizer, which: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("torch.load or pickle was used")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr("pickle.load", refuse)
    loaded = load_run(run.path, which)
    assert same(loaded.model, model_of(subwords.size, seed))
    assert not loaded.model.training
    assert (loaded.source_language, loaded.target_language, loaded.step) == ("xx", "yy", seed)
    assert loaded.info["lowercase"] is True
    assert loaded.subwords.fingerprint == subwords.fingerprint


def test_a_checkpoint_can_be_named_by_its_path(run: RunFolder, subwords: SubwordTokenizer) -> None:
    path = run.checkpoint("2").path
    assert load_run(run.path, path).step == 2
    assert same(load_run(run.path, str(path / "model.safetensors")).model, model_of(subwords.size, 2))


def test_weights_can_be_named_by_folders(run: RunFolder, subwords: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    average_checkpoints(run, ["2", "3"])
    averaged = load_run(run.path, "averaged").model
    assert same(load_run(run.path, run.averaged).model, averaged)
    assert load_run(run.path, str(run.averaged)).step == 3
    assert load_run(run.path, str(run.path)).step == 1  # a run: its best
    assert load_run(run.path, "checkpoints/step-00000002").step == 2  # from the run folder
    monkeypatch.chdir(run.checkpoints)
    assert load_run(run.path, "step-00000002/").step == 2
    copy = run.path.parent / "copy"
    shutil.copytree(run.checkpoint("2").path, copy)
    assert same(load_run(run.path, copy).model, model_of(subwords.size, 2))
    (run.path.parent / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no weights; pass a run, a checkpoint directory or a safetensors file"):
        load_run(run.path, run.path.parent / "empty")


def test_best_is_the_last_one_while_there_is_no_validation(run: RunFolder) -> None:
    (run.path / "best.json").unlink()
    assert load_run(run.path).step == 3


def test_load_skips_a_truncated_checkpoint(run: RunFolder) -> None:
    path = run.checkpoint("3").weights
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=r"last\.json is missing or incomplete; the last one is used"):
        assert load_run(run.path, "last").step == 2


def test_subwords_of_another_size_are_told_by_numbers(run: RunFolder, subwords: SubwordTokenizer) -> None:
    other = SubwordTokenizer.train(["x y z hello world"] * 5, vocab_size=276)
    assert other.size != subwords.size
    other.save(run.subwords)
    with pytest.raises(DataError, match=rf"has a vocabulary of {subwords.size}, .*subwords.model of {other.size}; restore"):
        load_run(run.path)


def test_subwords_of_the_same_size_but_other_content_are_refused(run: RunFolder) -> None:
    info = read_json(run.model)
    info["subwords"]["fingerprint"] = "f" * 16
    write_json(run.model, info)
    with pytest.raises(DataError, match="is not the one this model was trained with"):
        load_run(run.path)


def test_weights_of_another_vocabulary_are_told_by_numbers(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", model_of(40))
    with pytest.raises(DataError, match="the checkpoint has 40 types of subwords, the subwords in use have 50"):
        load_weights(tmp_path / "w.safetensors", model_of(50))


def test_weights_of_another_model_are_told_by_name(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", model_of(40, encoder={"normalizer": "softmax"}))
    with pytest.raises(DataError, match=r"it lacks 1 tensors, the first is encoder\.0\.attention\.alpha\.pre_alpha"):
        load_weights(tmp_path / "w.safetensors", model_of(40))


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: Path, tied: str) -> None:
    choices = {"tied_embeddings": tied, "encoder": {"alpha_tied": "kind"}, "encoder_layers": 2}
    first, second = model_of(40, 1, **choices), model_of(40, 2, **choices)
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
    with pytest.raises(DataError, match="has no complete checkpoint yet"):
        load_run(run.path)


def test_average_is_the_mean_and_loads(run: RunFolder, subwords: SubwordTokenizer) -> None:
    average_checkpoints(run.path, ["step-3", "step-1"])
    loaded = load_run(run.path, "averaged")
    assert loaded.step == 3
    for mean, first, third in zip(
        weights(loaded.model), weights(model_of(subwords.size, 1)), weights(model_of(subwords.size, 3)), strict=True
    ):
        torch.testing.assert_close(mean, (first + third) / 2)
    assert read_json(run.averaged / "average.json")["checkpoints"] == ["step-00000001", "step-00000003"]


def test_average_of_one_is_that_one_bit_for_bit(run: RunFolder, subwords: SubwordTokenizer) -> None:
    average_checkpoints(run.path, ["2"])
    assert same(load_run(run.path, "averaged").model, model_of(subwords.size, 2))


def test_which_checkpoints_are_last_and_best(run: RunFolder) -> None:
    assert [checkpoint.step for checkpoint in last_checkpoints(run, 2)] == [1, 3]  # step 2 was saved because of a stop
    assert [checkpoint.step for checkpoint in best_checkpoints(run, 5)] == [1, 3]
    assert [checkpoint.step for checkpoint in best_checkpoints(run, 1)] == [3]
    with pytest.raises(ArgumentError, match="must not be empty"):
        average_checkpoints(run, [])
