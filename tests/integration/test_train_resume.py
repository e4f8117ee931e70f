"""A training that is killed, stopped or moved goes on as if nothing had happened; what may not change is refused by name."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from entformer.checkpoint import RunFolder, load_run
from entformer.checkpoint.weights import read_tensors
from entformer.errors import ArgumentError, DataError, RunFailed
from entformer.models.seq2seq import Seq2Seq
from entformer.training import train
from entformer.training.loop import Trainer
from entformer.training.prefetch import BatchPrefetcher

ROOT = Path(__file__).resolve().parents[2]


def wait_for_step(process: subprocess.Popen[bytes], run: Path, step: int) -> None:
    """Until metrics.jsonl has a line of this step or a later one."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "metrics.jsonl").is_file():
            lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
            if any(line.endswith("\n") and json.loads(line)["step"] >= step for line in lines):
                return
        time.sleep(0.01)


def numbers(run: Path) -> list[dict[str, object]]:
    """metrics.jsonl without what depends on the clock."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    clock = ("seconds", "tokens_per_second")
    return [{key: value for key, value in json.loads(line).items() if key not in clock} for line in lines]


def assert_same_run(first: Path, second: Path) -> None:
    """Bit for bit: the last weights, the optimizer's state, the averaged weights, the metrics, the translations."""
    names = [checkpoint.name for checkpoint in RunFolder(first).complete()]
    assert [checkpoint.name for checkpoint in RunFolder(second).complete()] == names
    files = [f"checkpoints/{name}/{kind}.safetensors" for name in names for kind in ("model", "state")]
    for file in [*files, "averaged/model.safetensors"]:
        ours, theirs = read_tensors(first / file), read_tensors(second / file)
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == [], file
    assert numbers(first) == numbers(second)
    for path in (first / "validations").iterdir():
        assert path.read_bytes() == (second / "validations" / path.name).read_bytes()
    assert (first / "best.json").read_bytes() == (second / "best.json").read_bytes()


@pytest.mark.slow
def test_killed_and_resumed_gives_bitwise_identical_weights(make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    # A save now and then besides the validations, so that the restarts begin in the middle of everything.
    recipe = make_recipe(steps=24, validate_every=8, save_minutes=0.005, accumulate=2, average_count=2, keep_last=3)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(recipe, whole, threads=1, quiet=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "entformer.cli.main", "train", recipe, "--out", killed, "--threads", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.DEVNULL,
    )
    wait_for_step(process, killed, 10)  # neither at a validation nor at its checkpoint
    process.kill()
    process.wait()
    train(recipe, killed, threads=1, quiet=True)
    assert_same_run(whole, killed)


def send_at(monkeypatch: pytest.MonkeyPatch, sent: int, *steps: int) -> None:
    """Sends a signal to this process after each of these steps."""
    real = Trainer._update

    def update(self: Trainer, stream: BatchPrefetcher) -> None:
        real(self, stream)
        if self.progress.step in steps:
            os.kill(os.getpid(), sent)

    monkeypatch.setattr(Trainer, "_update", update)


@pytest.mark.parametrize("alphas", ["sigmoid", "projected", "density"])
def test_stopped_after_every_few_steps_gives_bit_identical_weights(
    make_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alphas: str
) -> None:
    form = "sigmoid" if alphas == "sigmoid" else "projected"
    goal = {"density_target": 0.3, "max_loss_increase": 0.01} if alphas == "density" else {}
    model = {"attention": {"alpha_parametrization": form}}
    recipe = make_recipe(steps=12, validate_every=4, log_every=3, model=model, alpha_seed=4, alpha_start_step=3, **goal)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train(recipe, whole, threads=1, quiet=True)
    torch.manual_seed(1234)  # the caller's state must not matter
    first = train(recipe, pieces, threads=1, stop_after_minutes=1e-9, quiet=True)
    assert (first.stopped, first.exit_code) == ("time is up", 0)
    stops = (3, 4, 5, 10)  # at a line of the log, before a validation, after it, between both
    send_at(monkeypatch, signal.SIGTERM, *stops)
    for step in stops:
        assert train(recipe, pieces, threads=1, quiet=True).step == step
    assert train(recipe, pieces, threads=1, quiet=True).complete
    assert_same_run(whole, pieces)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_and_print_how_to_resume(
    make_recipe: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entformer: Callable[..., subprocess.CompletedProcess[str]],
    sent: int,
    code: int,
) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    send_at(monkeypatch, sent, 3)
    done = entformer("train", recipe, "--out", run, "--threads", "1")
    assert done.returncode == code
    assert f"resume with: entformer train {recipe} --out {run} --threads 1" in done.stderr
    assert "Traceback" not in done.stderr
    latest = RunFolder(run).latest()
    assert latest is not None
    assert (latest.step, latest.state()["scheduled"]) == (3, False)


def test_more_steps_are_fine_and_other_changes_are_refused_by_name(make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(make_recipe(steps=4), run, threads=1, quiet=True)
    longer = train(make_recipe(steps=8, log_every=1), run, threads=1, quiet=True)
    assert longer.step == 8
    assert "recipe: training.steps 4 -> 8" in (run / "train.log").read_text(encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"began with another recipe: training\.lr 0\.01 -> 0\.02\. Restore the old value"):
        train(make_recipe(steps=8, lr=0.02), run, threads=1, quiet=True)
    with pytest.raises(ArgumentError, match=r"model\.width 16 -> 32"):
        train(make_recipe(steps=8, model={"width": 32}), run, threads=1, quiet=True)
    linear = tmp_path / "linear"  # a schedule that ends with the steps cannot get more of them
    train(make_recipe(steps=1, schedule="linear"), linear, threads=1, quiet=True)
    with pytest.raises(ArgumentError, match=r"training\.steps 1 -> 8"):
        train(make_recipe(steps=8, schedule="linear"), linear, threads=1, quiet=True)


def test_changed_files_need_leave_and_keep_the_subwords(make_recipe: Callable[..., Path], text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(make_recipe(steps=4), run, threads=1, quiet=True)
    subwords = (run / "subwords.model").read_bytes()
    with (text / "train.xx").open("a", encoding="utf-8") as source, (text / "train.yy").open("a", encoding="utf-8") as target:
        source.write("a b c h h h\n")
        target.write("h h h c b a\n")
    with pytest.raises(DataError, match=r"train\.xx has changed since .*; add --resume-with-new-data"):
        train(make_recipe(steps=8), run, threads=1, quiet=True)
    summary = train(make_recipe(steps=8), run, threads=1, quiet=True, resume_with_new_data=True)
    assert (summary.step, summary.epoch) == (8, summary.epoch)
    assert (run / "subwords.model").read_bytes() == subwords
    assert "the data has changed; starting a new epoch" in (run / "train.log").read_text(encoding="utf-8")
    train(make_recipe(steps=8), run, threads=1, quiet=True)  # the new data are the run's data from now on


# ---- a finished run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(make_recipe: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A recipe and its finished run."""
    recipe, run = make_recipe(), tmp_path / "run"
    train(recipe, run, threads=1, quiet=True)
    return recipe, run


def test_a_finished_run_is_not_trained_again(finished: tuple[Path, Path]) -> None:
    recipe, run = finished
    before = (run / "metrics.jsonl").read_bytes(), (run / "averaged" / "model.safetensors").stat().st_mtime_ns
    summary = train(recipe, run, threads=1, quiet=True)
    assert summary.step == 12
    assert summary.averaged is not None
    assert ((run / "metrics.jsonl").read_bytes(), (run / "averaged" / "model.safetensors").stat().st_mtime_ns) == before
    # Other prepared data is detected by its fingerprint.
    other = run.parent / "other"
    shutil.copytree(run / "prepared", other)
    facts = json.loads((other / "prep.json").read_text(encoding="utf-8"))
    (other / "prep.json").write_text(json.dumps({**facts, "fingerprint": "0" * 16}), encoding="utf-8")
    with pytest.raises(DataError, match=r"fingerprint .* 0{16}"):
        train(recipe, run, settings=[f"data.prepared={other}", "training.steps=16"], threads=1, quiet=True)
    # So is another vocabulary.
    smaller = run.parent / "smaller"
    train(recipe, smaller, settings=["data.vocab_size=276", "training.steps=1"], threads=1, quiet=True)
    shutil.rmtree(run / "prepared")
    shutil.copytree(smaller / "prepared", run / "prepared")
    with pytest.raises(DataError, match=r"has \d+ types of subwords .* 276"):
        train(recipe, run, settings=["training.steps=16"], threads=1, quiet=True, resume_with_new_data=True)


def test_training_resumes_from_the_checkpoint_before_a_truncated_or_damaged_one(finished: tuple[Path, Path]) -> None:
    recipe, run = finished
    truncated, damaged = run.parent / "truncated", run.parent / "damaged"
    for copy in (truncated, damaged):
        shutil.copytree(run, copy)
        shutil.rmtree(copy / "averaged")
    os.truncate(RunFolder(truncated).checkpoint("12").weights, 100)
    moments = RunFolder(damaged).checkpoint("12").tensors
    data = bytearray(moments.read_bytes())
    data[-9] ^= 1  # the size stays
    moments.write_bytes(data)
    (damaged / ".model.json.0123abcd.tmp").write_bytes(b"as kill -9 leaves it")
    for copy, message in (
        (truncated, "step-00000012 was incomplete and is removed"),
        (damaged, "is damaged: its content does not match its checksum"),
    ):
        train(recipe, copy, threads=1, quiet=True)
        assert message in (copy / "train.log").read_text(encoding="utf-8")
        assert_same_run(run, copy)
    assert "from step-00000008 and repeats the 4 steps in between" in (damaged / "train.log").read_text(encoding="utf-8")
    assert (damaged / "checkpoints" / "damaged-step-00000012").is_dir()
    assert not list(damaged.rglob("*.tmp"))


def test_nan_stops_the_run_and_leaves_the_last_checkpoint(
    make_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    real, calls = Seq2Seq.loss, 0

    def loss(self: Seq2Seq, batch: object) -> object:
        nonlocal calls
        found = real(self, batch)  # type: ignore[arg-type]
        calls += self.training
        return found._replace(loss=found.loss * float("nan")) if self.training and calls == 6 else found

    with monkeypatch.context() as patch:
        patch.setattr(Seq2Seq, "loss", loss)
        with pytest.raises(RunFailed, match=r"training diverged at step 6: .*training examples \d+"):
            train(make_recipe(), run, threads=1, quiet=True)
    assert load_run(run, "last").step == 4
    assert "stopped: training diverged at step 6" in (run / "train.log").read_text(encoding="utf-8")
    assert train(make_recipe(), run, threads=1, quiet=True).step == 12  # and it can go on


def test_early_stop_keeps_the_best_and_says_why(make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    summary = train(
        make_recipe(steps=400, validate_every=1, patience=2, lr=1e-9, keep_last=1, average="best", average_count=2),
        tmp_path / "run",
        threads=1,
        quiet=True,
    )
    assert (summary.stopped, summary.step, summary.best_step, summary.complete) == ("no better validation", 3, 1, True)
    assert load_run(tmp_path / "run", "best").step == 1


def test_the_run_folder_holds_what_the_design_says(make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = train(make_recipe(epochs=2, steps=10_000, metric="loss"), run, threads=1, quiet=True)
    assert summary.stopped == "finished"
    assert summary.epoch == 2
    files = {path.relative_to(run).parts[0] for path in run.rglob("*") if path.is_file()}
    expected = {"recipe.yaml", "model.json", "subwords.model", "metrics.jsonl", "train.log", "validations", "checkpoints"}
    assert files == expected | {"best.json", "last.json", "averaged", "prepared", ".lock"}
    assert yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))["training"]["epochs"] == 2
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = {"train", "alphas", "alpha_gradients", "densities", "valid", "averaged"}
    assert {entry["kind"] for entry in entries} == kinds
    alphas = [entry for entry in entries if entry["kind"] == "alphas"]
    assert alphas[0]["step"] == 0
    assert [len(alphas[-1][kind][0]) for kind in ("encoder", "decoder", "cross")] == [2, 2, 2]
    best = json.loads((run / "best.json").read_text(encoding="utf-8"))
    assert best["value"] == min(entry["loss"] for entry in entries if entry["kind"] == "valid")
    assert not list(run.rglob("*.pt")) + list(run.rglob("*.bin.tmp"))
