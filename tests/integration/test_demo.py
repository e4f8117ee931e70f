"""`entformer demo` with a few training steps: what it shows, which files it writes, how it stops and resumes."""

import dataclasses
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from entformer.analysis.history import metrics_of
from entformer.cli import demo as demo_module
from entformer.cli.demo_training import check_directories, describe_progress, make_models
from entformer.errors import ArgumentError, RunFailed

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds


@pytest.mark.slow
def test_shows_every_part(demo: tuple[Path, str]) -> None:
    folder, shown = demo
    assert "2 of 10" in shown  # sparsemax leaves two keys
    assert "→ 1.73" in shown  # the hidden alpha was found
    for step in (5, 10, 15, 20):
        assert f"step {step:>4} of 20" in shown
    assert shown.count("nrefs:1") == 2  # signatures of BLEU and chrF
    assert "test BLEU" in shown
    assert not re.search(r"(?<!test )(?<!validation )\bBLEU\b", shown)  # no score without the set it is of
    assert "Schläft die Ente montags unter einem Baum ein?" in shown
    for title in ("encoder self", "decoder self", "decoder to source"):
        assert shown.count(title) == 2  # alphas, densities
    assert re.search(r"layer +head 0 +head 1 +head 2 +head 3 *\n  encoder self +0 .*\n.*\n +1 ", shown)  # counted from 0
    assert "alphas correlate" in shown
    assert f"translate '{folder}/entmax'" in shown
    picture = (folder / "demo.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


@pytest.mark.slow
def test_the_numbers_are_in_a_file_too(demo: tuple[Path, str]) -> None:
    folder, shown = demo
    models = json.loads((folder / "demo.json").read_text(encoding="utf-8"))["models"]
    assert list(models) == ["softmax", "entmax"]
    softmax, learned = models.values()
    assert softmax["steps"] == learned["steps"] == 20
    assert set(softmax["density"].values()) == {1.0}
    assert all(0 < density < 1 for density in learned["density"].values())
    assert [head["alpha"] for head in softmax["heads"]] == [1.0] * 24
    assert len({head["alpha"] for head in learned["heads"]}) == 24  # each head has its own
    assert all(f"{head['alpha']:.2f}" in shown for head in learned["heads"])
    assert all(model["scores"]["bleu"]["signature"] for model in models.values())
    assert len((folder / "entmax.test.de").read_text(encoding="utf-8").splitlines()) == 20


@pytest.mark.slow
def test_it_ends_with_a_report_of_both_models(demo: tuple[Path, str]) -> None:
    folder, shown = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [run["name"] for run in data["runs"]] == ["softmax", "learned alpha"]
    assert [run["data"]["sentences"] for run in data["runs"]] == [20, 20]
    models = json.loads((folder / "demo.json").read_text(encoding="utf-8"))["models"]
    table = shown.partition("Translation quality")[2].partition("Translations")[0]
    for run, model in zip(data["runs"], models.values(), strict=True):
        scores = {score["name"]: score["value"] for score in run["scores"]}
        assert scores.keys() >= {"test BLEU", "test chrF", "validation perplexity"}
        assert scores["test BLEU"] == model["scores"]["bleu"]["score"]
        assert scores["validation perplexity"] == model["validation"]["perplexity"]
        (line,) = (line for line in table.splitlines() if line.startswith(f"  {run['name']} "))
        shown_values = re.findall(r"\d+\.\d+", line)
        assert shown_values == [f"{value:.1f}" for value in scores.values()]  # the same numbers in the same order
    first, second = ([sentence["id"] for sentence in run["sentences"]] for run in data["runs"])
    assert second[: len(first)] == first  # the same sentences, to compare
    assert data["title"] in page
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".png"}
    assert (folder / "report.html").as_uri() in shown
    assert "specialized" in shown.partition("What the heads do")[2]


def test_a_report_that_fails_does_not_take_the_results_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_module, "show_row", lambda *_: None)
    monkeypatch.setattr("entformer.cli.demo_training.train_side_by_side", lambda *_: 0)
    monkeypatch.setattr(demo_module, "_evaluate", lambda *_, **__: {})
    monkeypatch.setattr("entformer.analysis.html_report.write_report", full)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    with pytest.raises(
        RunFailed, match=r"could not be written \(OSError: .*No space left on device\); everything else is saved"
    ):
        demo_module.demo(tmp_path, quick=True)
    shown = capsys.readouterr().out
    assert "Files" in shown
    assert "demo.json" in shown
    assert "report.html" not in shown


@pytest.mark.slow
def test_a_second_run_reuses_finished_models(
    demo: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, shown = demo
    before = (folder / "entmax" / "train.log").read_bytes()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("entformer.analysis.html_report.write_report", lambda *_, **__: None)  # it is there
    demo_module.demo(folder, quick=True)
    again = capsys.readouterr().out
    assert again.count("already trained") == 2
    start, end = "Translation quality", "Files"
    assert again.partition(start)[2].partition(end)[0] == shown.partition(start)[2].partition(end)[0]
    assert (folder / "entmax" / "train.log").read_bytes() == before
    with pytest.raises(ArgumentError, match=r"softmax contains a model that was trained with other settings; add --fresh"):
        demo_module.demo(folder)
    assert capsys.readouterr().out == ""


def test_fresh_removes_what_the_demo_made_and_nothing_else(tmp_path: Path) -> None:
    models = make_models(tmp_path, quick=True)
    check_directories(models, fresh=False)
    run, data = tmp_path / "softmax", tmp_path / "data"
    data.mkdir()
    (data / "prep.json").write_text('{"format": 1}')
    (run / "recipe.yaml").write_text("name: other\n")
    (run / "mine.txt").write_text("mine")
    (run / "checkpoints" / "step-00000010").mkdir()
    check_directories(models, fresh=True)
    assert not data.exists()
    assert not (run / "recipe.yaml").exists()
    assert not (run / "checkpoints").exists()
    assert (run / "mine.txt").read_text() == "mine"


def test_the_two_models_differ_in_the_normalizer_alone(tmp_path: Path) -> None:
    softmax, learned = (model.recipe for model in make_models(tmp_path, quick=False))
    kinds = ("encoder", "decoder", "cross")
    assert {getattr(softmax.model, kind).normalizer for kind in kinds} == {"softmax"}
    assert {getattr(learned.model, kind).alpha for kind in kinds} == {"learned"}
    same = dict.fromkeys(kinds, learned.model.encoder)
    assert dataclasses.replace(softmax.model, **same) == learned.model
    assert (softmax.training, softmax.data, softmax.decoding) == (learned.training, learned.data, learned.decoding)


# ---- stopping ------------------------------------------------------------------------------------------------------------


def steps_done(folder: Path) -> int:
    entries = [metrics_of(folder / name / "metrics.jsonl") for name in ("softmax", "entmax")]
    return min(max((entry["step"] for entry in own), default=0) for own in entries)


def is_free(run: Path) -> bool:
    with open(run / ".lock", "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


# Its own settings of --quick: a line of the log after every step, and more steps than anyone waits for.
LONG_DEMO = """
from entformer.cli import demo_training, main
demo_training.QUICK = ("training.log_every=1", "training.tokens=128")
main.main()
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A demo that has come to its first updates. It would take minutes."""
    folder = tmp_path / "demo"
    with subprocess.Popen(
        [sys.executable, "-c", LONG_DEMO, "demo", "--quick", "--out", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or steps_done(folder) > 0)
            assert process.poll() is None
            yield folder, process
        finally:
            process.kill()


@pytest.mark.slow
def test_ctrl_c_saves_and_prints_how_to_resume(running: "tuple[Path, subprocess.Popen[str]]") -> None:
    folder, process = running
    process.send_signal(signal.SIGINT)
    shown, warned = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert warned == ""
    assert "Stopped by Ctrl-C. Everything so far is saved; resume with:" in shown
    assert f"demo --quick --out {folder}" in shown
    for model in make_models(folder, quick=False):
        assert is_free(model.folder.path)
        latest = model.folder.latest()
        assert latest is not None
        assert 0 < latest.step < model.steps
        assert not model.finished()


@pytest.mark.slow
def test_trainings_do_not_outlive_a_killed_demo(running: "tuple[Path, subprocess.Popen[str]]") -> None:
    folder, process = running
    process.kill()
    process.wait()
    wait_until(lambda: is_free(folder / "softmax") and is_free(folder / "entmax"))
    assert all(model.folder.latest() is not None for model in make_models(folder, quick=False))  # they saved first


def test_progress_names_the_step_of_the_validation() -> None:
    latest = {"train": {"step": 1400, "loss": 1.0, "accuracy": 0.5}, "valid": {"step": 1200, "bleu": 72.94}}
    assert describe_progress(latest).endswith(", validation BLEU 72.9 (step 1,200)")
