"""A language model from files to generated text; a stopped run ends with the same weights."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
import yaml

from entformer.analysis import collect
from entformer.analysis.language_model_report import cut_windows
from entformer.checkpoint.language_model import is_language_model, load_language_model
from entformer.cli.text_score import language_report
from entformer.data.text import PreparedText
from entformer.errors import ArgumentError, DataError
from entformer.tasks import train
from entformer.tasks.language_modeling import LanguageModeling, open_language_modeling, score_text
from entformer.training.lm_recipe import LMRecipe
from entformer.training.recipe_file import RecipeError, builtin_recipes, load_recipe
from entformer.training.setup import run_training

from .test_train_resume import assert_same_run, wait_for_step

Entformer = Callable[..., object]
TEXT = "the cat sees a dog\nthe dog sees a bird\nthe bird sees the cat\n\n"
TINY = {
    "task": "language_modeling",
    "model": {"layers": 1, "heads": 2, "width": 16, "hidden": 16, "attention": {"normalizer": "entmax", "alpha": "learned"}},
    "training": {"steps": 12, "context": 16, "tokens": 64, "lr": 0.01, "warmup": 2, "schedule": "cosine"}
    | {"validate_every": 4, "log_every": 2, "average_count": 2, "keep_last": 2, "density_target": 0.5},
}


@pytest.fixture
def recipe(tmp_path: Path) -> LMRecipe:
    file = tmp_path / "text.txt"
    file.write_text(TEXT * 30, encoding="utf-8")
    data = {"text": str(file), "tokenizer": "bytes", "documents": "paragraph"}
    return LMRecipe.model_validate({**TINY, "data": data})


def test_a_stopped_run_ends_with_the_same_weights(recipe: LMRecipe, tmp_path: Path) -> None:
    def stop(step: int, *_: object) -> None:
        if step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    straight = train(recipe, tmp_path / "straight", threads=1, quiet=True)
    stopped = run_training(recipe, open_language_modeling, tmp_path / "stopped", threads=1, quiet=True, on_interval=stop)
    assert (stopped.stopped, stopped.step) == ("SIGTERM", 6)
    train(recipe, tmp_path / "stopped", threads=1, quiet=True)
    for file in ("model.safetensors", "state.safetensors"):
        paths = [tmp_path / run / "checkpoints" / "step-00000012" / file for run in ("straight", "stopped")]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    averages = [tmp_path / run / "averaged" / "model.safetensors" for run in ("straight", "stopped")]
    assert averages[0].read_bytes() == averages[1].read_bytes()
    assert straight.validation is not None
    assert straight.validation.keys() >= {"loss", "perplexity", "bits_per_byte", "accuracy"}
    kinds = {json.loads(line)["kind"] for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()}
    assert kinds >= {"train", "valid", "alphas", "alpha_gradients", "densities", "density_target", "averaged"}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_weights(recipe: LMRecipe, tmp_path: Path) -> None:
    """ENTFORMER_KILLS: how often; between steps, in the middle of one, in validations and while files are written."""
    kills = int(os.environ.get("ENTFORMER_KILLS", "2"))
    changed = {"steps": 60 * (kills + 1), "validate_every": 25, "save_minutes": 0.001}
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update=changed)})
    file, killed = tmp_path / "recipe.yaml", tmp_path / "killed"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(recipe.resolved(), default=str))), encoding="utf-8")
    command = [sys.executable, "-m", "entformer.cli.main", "train", str(file), "--out", str(killed), "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    random = Random(kills)
    for number in range(kills):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        wait_for_step(process, killed, 60 * number + random.randrange(5, 50))
        time.sleep(random.uniform(0.0, 0.05))  # the moment is to be a random one
        assert process.poll() is None
        process.kill()
        process.wait()
    train(file, tmp_path / "whole", threads=1, quiet=True)
    summary = train(file, killed, threads=1, quiet=True)
    assert summary.complete
    assert_same_run(tmp_path / "whole", killed)


def test_from_text_to_a_generated_paragraph(tmp_path: Path, entformer: Entformer) -> None:
    def run(*arguments: object) -> str:
        done = entformer(*arguments)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT * 30, encoding="utf-8")
    data, out = tmp_path / "data", tmp_path / "run"
    assert "documents" in run("prep", data, "--text", tmp_path / "a.txt", tmp_path / "b.txt", "--vocab-size", 290)
    small = ("model.layers=1", "model.heads=2", "model.width=16", "model.hidden=16", "training.steps=6", "training.warmup=2")
    small += ("training.context=16", "training.tokens=64", "training.validate_every=3", "training.log_every=3")
    settings = [word for one in (*small, f"data.prepared={data}") for word in ("--set", one)]
    assert "language_modeling" in run("config", "show", "lm-books-entmax", *settings)
    summary = json.loads(run("train", "lm-books-entmax", "--out", out, "--threads", 1, "--json", *settings))
    assert (summary["complete"], summary["metric"]) == (True, "loss")
    found = json.loads(run("score", "--run", out, "--json", "--stride", 4))
    assert found["signature"].startswith("context:16|stride:4|tok:bpe-")
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * found["tokens"] / 0.6931471805599453 / found["bytes"])
    assert json.loads(run("score", "--run", out, "--json", "--test", tmp_path / "a.txt"))["bytes"] > 1000
    assert run("generate", out, "--prompt", "the cat", "--tokens", 5, "--temperature", 0).startswith("the cat")
    texts = [json.loads(line) for line in run("generate", out, "--prompt", "a", "--samples", 2, "--json").splitlines()]
    assert len(texts) == 2
    lengths = tmp_path / "lengths"
    options = ("--text", tmp_path / "a.txt", "--longest", 4, "--windows", 2, "--out", lengths, "--json")
    (found,) = json.loads(run("longctx", "lm", out, *options))
    assert list(found["perplexity"]) == list(found["needle"]) == ["16", "32", "64"]
    assert all(0.0 < value < 1000.0 for value in found["perplexity"].values())
    assert {path.name for path in lengths.iterdir()} == {"results.json", "table.md", "curves.png"}
    assert run("average", out, "--last", 2)
    assert is_language_model(out)
    assert load_language_model(out, "averaged").context == 16


def test_scores_and_heads_of_a_run_whose_documents_are_shorter_than_rows(recipe: LMRecipe, tmp_path: Path) -> None:
    train(recipe, tmp_path / "run", threads=1, quiet=True)
    loaded = load_language_model(tmp_path / "run")
    text = PreparedText.open(tmp_path / "run" / "prepared")
    ids = text.ids("valid")
    starts = [*(ids == 2).nonzero()[0].tolist(), len(ids)]
    alone = [score_text(loaded.model, ids[a:b], 64, 64) for a, b in pairwise(starts)]
    whole = score_text(loaded.model, ids, len(ids), len(ids))
    assert whole is not None
    assert whole.tokens == len(ids)
    assert whole.nll == pytest.approx(sum(one.nll for one in alone if one is not None), rel=1e-5)
    settings = {"checkpoint": "best", "title": None, "length": 32, "texts": 6, "examples": 2}
    content = language_report({tmp_path / "run": "tiny"}, data=None, split="valid", progress=lambda *_: None, **settings)
    (own,) = content["runs"]
    assert [(head["attn_type"], head["layer"], head["head"]) for head in own["heads"]] == [("decoder", 0, 0), ("decoder", 0, 1)]
    assert own["alpha_steps"][-1] == own["step"] == loaded.step
    assert {score["name"]: score["digits"] for score in own["scores"]} == {
        "validation perplexity": 2,
        "validation bits per byte": 3,
    }
    assert own["data"]["source_tokens"] == 0 < own["data"]["target_tokens"]
    longest = max(map(len, cut_windows(ids, 32, 6)))
    assert all(len(head["density_by_keys"]) == longest.bit_length() and head["alpha_initial"] for head in own["heads"])
    collected = collect(loaded.model, [ids[:20].tolist()])
    assert [row.key for row in collected] == ["decoder.0.0", "decoder.0.1"]
    assert {"first token", "previous token"} <= {role["role"] for role in own["roles"]}
    shown = own["sentences"][0]["heads"]["decoder.0.0"]
    assert shown["scores"] is not None
    task = LanguageModeling(recipe, text)
    batch = next(iter(task.train_batches(rank=0, world_size=1).epoch(0)))
    assert batch.cu_seqlens is not None  # paragraphs are shorter than rows
    assert torch.isfinite(task.loss(loaded.model, batch).loss)


def test_language_recipes_are_complete_and_name_mistakes(tmp_path: Path) -> None:
    names = [name for name in builtin_recipes() if name.startswith("lm-")]
    assert {"lm-demo", "lm-books-entmax", "lm-books-softmax"} <= set(names)
    for name in names:
        loaded = load_recipe(name)
        assert isinstance(loaded, LMRecipe)
        assert LMRecipe.model_validate(loaded.resolved()) == loaded
    with pytest.raises(ArgumentError, match="the recipe names no text"):
        train("lm-books-entmax", tmp_path / "run", quiet=True)
    for setting, message in {
        "model.widht=8": "did you mean 'width'",
        "model.attention.alpha=0.5": "alpha 0.5 must be at least 1",
        "model.rotary_base=500": "positions are nape; leave it out, or set positions: rotary",
        "training.validate_beam=3": "validate_beam",
        "data.tokenizer=characters": "data.tokenizer",
    }.items():
        with pytest.raises(RecipeError, match=message):
            load_recipe("lm-demo", [setting])
    rotary = load_recipe("lm-demo", ["model.positions=rotary", "model.rotary_base=500"])
    assert isinstance(rotary, LMRecipe)
    assert rotary.model.rotary_base == 500.0


def test_a_translation_run_is_not_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"format": 1}', encoding="utf-8")
    with pytest.raises(DataError, match="is not a language model"):
        load_language_model(tmp_path)
