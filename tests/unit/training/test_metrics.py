"""metrics.jsonl after a restart holds exactly the steps of the checkpoint, and every line is JSON."""

import json
from pathlib import Path

import pytest

from entformer.errors import RunFailed
from entformer.training.console import Reporter
from entformer.training.metrics import Metrics


def steps(path: Path) -> list[tuple[str, int]]:
    return [(entry["kind"], entry["step"]) for entry in map(json.loads, path.read_text(encoding="utf-8").splitlines())]


def test_later_steps_and_a_malformed_line_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "alphas", "step": 0}\n', encoding="utf-8")  # a new run begins with an empty file
    with Metrics(path, from_step=-1) as metrics:
        for step in (10, 20, 30):
            metrics.write("train", step, loss=1.0)
            metrics.write("valid", step, bleu=1.0)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    with Metrics(path, from_step=20, validated=10) as metrics:
        metrics.write("train", 21, loss=float("nan"))
    assert steps(path) == [("train", 10), ("valid", 10), ("train", 20), ("train", 21)]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["loss"] is None


def test_tensorboard_that_is_not_installed_is_a_note(tmp_path: Path) -> None:
    with Metrics(tmp_path / "metrics.jsonl", from_step=-1, tensorboard=tmp_path / "board") as metrics:
        metrics.write("train", 1, loss=1.0)
        assert metrics.notes == [] or "pip install" in metrics.notes[0]


def test_a_full_disk_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.symlink_to("/dev/full")
    with pytest.raises(RunFailed, match="the disk is full"), Metrics(path, from_step=-1) as metrics:
        metrics.write("train", 1, loss=1.0)
    with pytest.raises(RunFailed, match="the disk is full"), Reporter(path, quiet=True) as reporter:
        reporter.say("step 1")
