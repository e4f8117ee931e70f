"""`best` names the weights that validated best: a checkpoint, or the average when that is better."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.checkpoint import RunFolder, average_checkpoints, load_run
from entformer.checkpoint.average import worth_averaging
from entformer.checkpoint.folder import Checkpoint
from entformer.checkpoint.weights import read_tensors, tensors_of
from entformer.cli.average import average
from entformer.cli.train import train as train_command
from entformer.training import train
from entformer.training.task import Results

Make = Callable[..., Path]


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """BLEU by the name of the file of translations; what is not there has 40."""
    given: dict[str, float] = {}

    def evaluate(_: object, __: object, file: Path, *___: object) -> Results:
        bleu = given.get(file.name, 40.0)
        names = ("loss", "nll", "perplexity", "accuracy", "bleu", "signature", "chrf", "seconds")
        return dict(zip(names, (1.0, 1.0, 2.7, 0.5, bleu, "signature", bleu, 0.0), strict=True))

    monkeypatch.setattr("entformer.tasks.translation.Translation.evaluate", evaluate)
    return given


def is_averaged(run: Path) -> bool:
    loaded = tensors_of(load_run(run).model)
    stored = read_tensors(run / "averaged" / "model.safetensors")
    return all(loaded[name].equal(tensor) for name, tensor in stored.items())


def test_a_worse_average_is_not_recommended(
    make_recipe: Make, tmp_path: Path, scores: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    scores.update({"8": 49.0, "best": 49.64, "averaged": 37.3})
    run = tmp_path / "run"
    train_command(str(make_recipe()), out=run, threads=1)
    said = capsys.readouterr().err
    assert "with beam 2: best checkpoint bleu 49.64, average of 2 checkpoints bleu 37.30; best is now the checkpoint" in said
    assert f"\ntranslate with: entformer translate {run}\n" in said
    assert said.rstrip().endswith(f"see its heads with: entformer report {run}, or entformer explore {run}")
    assert load_run(run).step == 8
    assert not is_averaged(run)


def test_a_better_average_becomes_best_for_every_reader(make_recipe: Make, tmp_path: Path, scores: dict[str, float]) -> None:
    scores.update({"8": 49.0, "best": 50.0, "averaged": 50.5})
    run = tmp_path / "run"
    summary = train(make_recipe(), run, threads=1, quiet=True)
    assert (summary.best, summary.recommended) == (49.0, "averaged")
    assert summary.choice is not None
    assert (summary.choice.checkpoint_value, summary.choice.averaged_value) == (50.0, 50.5)
    assert summary.choice.averaged_from == ("step-00000008", "step-00000012")
    assert is_averaged(run)
    assert json.loads(json.dumps(summary.as_json()))["recommended"] == "averaged"
    again = train(make_recipe(), run, threads=1, quiet=True)  # nothing is validated again
    assert (again.choice, again.averaged) == (summary.choice, summary.averaged)
    assert is_averaged(run)


def test_models_without_useful_bleu_are_compared_without_a_wide_beam(
    make_recipe: Make, tmp_path: Path, scores: dict[str, float]
) -> None:
    scores.update({"4": 0.1, "8": 0.3, "12": 0.2, "averaged": 0.4})
    summary = train(make_recipe(), tmp_path / "run", threads=1, quiet=True)
    assert summary.choice is not None
    assert (summary.choice.settings["beam"], summary.choice.checkpoint_value, summary.recommended) == (1, 0.3, "averaged")
    assert not (tmp_path / "run" / "validations" / "best.txt").exists()


def test_an_average_is_compared_again_when_the_comparison_is_missing_or_training_resumes(
    make_recipe: Make, tmp_path: Path, scores: dict[str, float]
) -> None:
    run = tmp_path / "run"  # all checkpoints have the same score
    scores["averaged"] = 40.0
    assert train(make_recipe(), run, threads=1, quiet=True).recommended == "step-00000004"
    record = run / "averaged" / "average.json"  # as an earlier version wrote it
    facts = json.loads(record.read_text(encoding="utf-8"))
    del facts["compared"]
    record.write_text(json.dumps(facts), encoding="utf-8")
    scores["averaged"] = 45.0
    assert train(make_recipe(), run, threads=1, quiet=True).recommended == "averaged"
    scores.update({"16": 60.0, "best": 60.0})
    assert train(make_recipe(steps=16), run, threads=1, quiet=True).recommended == "step-00000016"
    assert load_run(run).step == 16


def test_an_average_made_by_hand_is_not_best(
    make_recipe: Make, tmp_path: Path, scores: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    scores["averaged"] = 45.0
    train(make_recipe(), run, threads=1, quiet=True)
    average(run, last=1)
    assert "It replaces the average that training selected as best" in capsys.readouterr().out
    assert load_run(run).step == 4
    average_checkpoints(run, ["step-12"])
    assert load_run(run).step == 4
    with pytest.warns(UserWarning, match="step-00000004 was saved during warmup"):
        average(run, checkpoint=["step-4"], as_json=True)
    capsys.readouterr()
    average(run, as_json=True)
    assert json.loads(capsys.readouterr().out)["checkpoints"] == ["step-00000008", "step-00000012"]


def test_a_run_without_two_late_checkpoints_averages_nothing(
    make_recipe: Make, tmp_path: Path, scores: dict[str, float]
) -> None:
    run = tmp_path / "run"
    summary = train(make_recipe(warmup=11, average_count=3), run, threads=1, quiet=True)
    assert (summary.averaged, summary.choice) == (None, None)
    assert "nothing to average: 1 of the kept checkpoints" in (run / "train.log").read_text(encoding="utf-8")
    assert not RunFolder(run).averaged.exists()


def test_averages_reach_back_over_a_third_of_the_run_and_never_into_warm_up() -> None:
    def steps(every: int, total: int, warmup: int, center: int) -> list[int]:
        checkpoints = [Checkpoint(step, Path(str(step))) for step in range(every, total + 1, every)]
        return [one.step for one in worth_averaging(checkpoints, center=center, step=total, warmup=warmup)]

    assert steps(100, 500, 50, 500) == [400, 500]  # not the whole run
    assert steps(100, 8000, 2000, 8000)[0] == 5400
    assert steps(10, 100, 85, 100) == [90, 100]
    assert steps(10, 100, 200, 100) == []
    assert steps(10, 90, 10, 60) == [30, 40, 50, 60, 70, 80, 90]  # around the best
