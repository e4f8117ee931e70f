"""The course of a training in the explorer, with and without a checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.checkpoint import LoadedRun, RunFolder
from entformer.explore import create_app
from entformer.explore.training import MOST_POINTS, read_training

from .conftest import Client, sentence_of

LINES = [
    {"kind": "alphas", "step": 0, "encoder": [[1.5, 1.5]]},
    {"kind": "train", "step": 10, "loss": 4.0},
    {"kind": "densities", "step": 10, "encoder": [[0.5, 0.7]]},
    {"kind": "alphas", "step": 10, "encoder": [[1.6, 1.5]]},
    {"kind": "valid", "step": 10, "loss": 3.5, "bleu": None},
    {"kind": "train", "step": 20, "loss": 3.0},
    {"kind": "valid", "step": 20, "loss": 3.2, "bleu": 12.5},
]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.path.mkdir()
    found.metrics.write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"kind": "tra', encoding="utf-8")
    found.recipe.write_text("training: {steps: 50}\n", encoding="utf-8")
    return found


def test_curves_are_read_as_far_as_they_are_written(folder: RunFolder) -> None:
    found = read_training(folder)
    assert (found.step, found.steps) == (20, 50)
    assert found.loss == [(10, 4.0), (20, 3.0)]
    assert found.validation_loss == [(10, 3.5), (20, 3.2)]
    assert found.bleu == [(20, 12.5)]
    assert found.density == [(10, pytest.approx(0.6))]
    assert found.alpha_steps == [0, 10]
    assert found.alpha_paths == {"encoder": [[[1.5, 1.6], [1.5, 1.5]]]}


def test_long_curves_are_thinned_and_keep_their_last_point(folder: RunFolder) -> None:
    lines = [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, 2001)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = read_training(folder).loss
    assert len(found) <= MOST_POINTS + 1
    assert found[-1][0] == 2000


def test_a_run_without_checkpoint_shows_its_training_and_nothing_else(folder: RunFolder) -> None:
    client = Client(create_app(None, name="run", folder=folder.path))
    assert client.get("/api/training").json()["step"] == 20
    assert "no checkpoint yet" in sentence_of(client.get("/api/model"), 503)
    assert "no checkpoint yet" in sentence_of(client.translate(), 503)


def test_a_model_without_directory_has_no_training(make_run: Callable[..., LoadedRun]) -> None:
    client = Client(create_app(make_run(), name="run"))
    assert client.get("/api/training").json()["loss"] == []
