"""`entformer train`, `average` and `config` as a user runs them: what is printed, where, and the exit codes."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from entformer.training import loop, train

Entformer = Callable[..., CompletedProcess[str]]


def test_train_then_average(entformer: Entformer, make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = entformer("train", make_recipe(average="none"), "--out", run, "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["step"], summary["complete"], summary["averaged"]) == (12, True, None)
    lines = done.stderr.splitlines()
    assert any(line.startswith("step 2/12  epoch 0  loss ") and "tokens/s" in line and "left" in line for line in lines)
    assert any(line.startswith("step 1/12  epoch 0  loss ") and "for the first step  (next: step 2)" in line for line in lines)
    assert any(line.startswith("validation at step 4: loss ") and "BLEU" in line for line in lines)
    assert [line.split(" ", 2)[2] for line in (run / "train.log").read_text(encoding="utf-8").splitlines()] == lines
    averaged = entformer("average", run, "--last", "2", "--json")
    assert averaged.returncode == 0, averaged.stderr
    assert json.loads(averaged.stdout)["checkpoints"] == ["step-00000008", "step-00000012"]
    wrong = entformer("average", run, "--checkpoint", "step-5")
    assert wrong.returncode == 2
    assert "has no checkpoint 'step-5'; it has step-0000000" in wrong.stderr
    both = entformer("average", run, "--last", "2", "--best", "2")
    assert both.returncode == 2
    again = entformer("config", "diff", make_recipe("other", average="none", lr=0.5), run)
    assert again.returncode == 1
    assert again.stdout.splitlines() == ["name: other -> tiny", "training.lr: 0.5 -> 0.01"]


def test_config_shows_validates_and_lists(entformer: Entformer) -> None:
    shown = entformer("config", "show", "multi30k-entmax", "--set", "training.lr=1e-3", "--json")
    values = json.loads(shown.stdout)
    assert (values["training"]["lr"], values["model"]["encoder"]["alpha"]) == (0.001, "learned")
    assert "vocab_size" not in values["model"]
    right = entformer("config", "validate", "demo")
    assert (right.returncode, right.stdout) == (0, "demo: valid\n")
    wrong = entformer("config", "validate", "demo", "--set", "training.lr=fast")
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1
    assert wrong.stderr.startswith("entformer: --set training.lr=fast: training.lr must be a number, not 'fast'.")
    listed = entformer("config", "list")
    assert any(line.startswith("demo ") for line in listed.stdout.splitlines())


def test_config_validate_finds_what_training_would_refuse(entformer: Entformer, tmp_path: Path, text: Path) -> None:
    recipe = tmp_path / "own.yaml"
    languages = "source_language: xx\n  target_language: yy\n"
    for given in ("text/train", "[text/train]", "[text/train.xx, text/train.yy]", "'text/train.xx,text/train.yy'"):
        recipe.write_text(f"data:\n  train: {given}\n  valid: text/valid\n  {languages}", encoding="utf-8")
        right = entformer("config", "validate", recipe)
        assert (right.returncode, right.stdout) == (0, f"{recipe}: valid\n"), right.stderr
    recipe.write_text(
        f"data:\n  train: text/trains\n  valid: [text/valid.yy, text/valid.xx]\n  test: gone.tsv\n  {languages}",
        encoding="utf-8",
    )
    wrong = entformer("config", "validate", recipe)
    assert wrong.returncode == 2
    lines = [line.removeprefix(f"entformer: {recipe}:") for line in wrong.stderr.splitlines()]
    assert len(lines) == 3
    assert lines[0].startswith("2: ")
    assert "text/trains.xx: there is no such file, nor trains.xx.gz" in lines[0]
    assert "ends in .yy: source and target are swapped" in lines[1]
    assert lines[2].startswith("4: ")
    assert lines[2].endswith("gone.tsv: there is no such file.")
    recipe.write_text("data:\n  prepared: nothing\n", encoding="utf-8")
    assert "is not a prepared directory; create it with" in entformer("config", "validate", recipe).stderr


def test_a_recipe_trains_from_a_prefix_of_compressed_files(entformer: Entformer, tmp_path: Path, text: Path) -> None:
    for path in list(text.iterdir()):
        (text / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        "data: {train: text/train, valid: [text/valid], source_language: xx, target_language: yy, vocab_size: 300}\n"
        "model: {encoder_layers: 1, decoder_layers: 1, heads: 2, width: 16, hidden: 32}\n"
        "training: {steps: 2, tokens: 64, validate_every: 2, metric: loss, validate_beam: 0, average: none}\n",
        encoding="utf-8",
    )
    done = entformer("train", recipe, "--out", tmp_path / "run", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 2


def test_settings_that_contradict_prepared_data_are_refused(entformer: Entformer, tmp_path: Path, text: Path) -> None:
    made = entformer(
        "prep", tmp_path / "made", "--train", text / "train", "--valid", text / "valid", "-l", "xx-yy", "--vocab-size", "300"
    )
    assert made.returncode == 0, made.stderr
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        "data: {prepared: made, train: text/train, valid: text/valid, source_language: xx, target_language: yy, "
        "vocab_size: 280}\n",
        encoding="utf-8",
    )
    done = entformer("train", recipe, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "data.vocab_size is 280, but" in done.stderr
    assert "was prepared with 300; remove data.vocab_size" in done.stderr


def test_a_device_that_is_not_there_is_one_sentence(entformer: Entformer, make_recipe: Callable[..., Path]) -> None:
    done = entformer("train", make_recipe(), "--device", "cuda:7")
    assert done.returncode == 2
    assert "training.device is cuda:7" in done.stderr


def test_long_log_intervals_are_not_silent(
    make_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SILENCE", 0.0)
    train(make_recipe(steps=3, log_every=8, average="none"), tmp_path / "run", threads=1, quiet=True)
    lines = [line.split(" ", 2)[2] for line in (tmp_path / "run" / "train.log").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split("  ")[0] for line in steps] == ["step 1/3", "step 2/3", "step 3/3"]
    assert all("left  (next: step 3)" in line for line in steps[1:])
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "train" not in kinds
