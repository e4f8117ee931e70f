"""Two processes under torchrun: the same steps, summed gradients, one writer, exact resume."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from entformer.checkpoint import RunFolder
from entformer.checkpoint.weights import read_tensors
from entformer.data.batching import TokenBatches
from entformer.data.prepared import Prepared
from entformer.training import train
from entformer.training.metrics import metrics_of

ROOT = Path(__file__).resolve().parents[2]


THREADS_AT_THE_END = """
import os
from pathlib import Path
from entformer.cli.main import main
try:
    main()
finally:
    names = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    Path(__file__).with_name("threads" + os.environ["RANK"]).write_text(" ".join(name for name in names if "gloo" in name))
"""


KILLED_ONCE = """
import os, signal
from entformer.cli.main import main
from entformer.training.loop import Trainer
update = Trainer._update
def update_or_die(trainer, stream):
    if (trainer.progress.step, os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (6, "1", "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    update(trainer, stream)
Trainer._update = update_or_die
main()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def torchrun(
    *arguments: str | Path, program: Sequence[str | Path] = ("-m", "entformer"), restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    if restarts:
        where = ["--nproc-per-node", "2", "--standalone", "--max-restarts", str(restarts)]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *where, *map(str, program), "train", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    latest = RunFolder(run).latest()
    assert latest is not None
    return read_tensors(latest.weights)


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one_that_accumulates_two_batches(
    make_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    # Projected alphas and the price of density are part of the step, so they must not differ between the processes either.
    still = {"dropout": 0.0, "attention_dropout": 0.0, "attention": {"alpha_parametrization": "projected"}}
    training = {"tokens": 56, "epochs": 2, "density_target": 0.5, "alpha_lr_factor": 3.0}
    one, two = tmp_path / "one", tmp_path / "two"
    alone = train(make_recipe("one", model=still, accumulate=2, **training), one, threads=1, quiet=True)
    script = tmp_path / "ends.py"
    script.write_text(THREADS_AT_THE_END, encoding="utf-8")
    recipe = make_recipe("two", model=still, **training)
    done = torchrun(recipe, "--out", two, "--threads", "1", program=[script])
    assert done.returncode == 0, done.stderr
    # A thread of the process group that is left may abort a finished process: "terminate called without an active exception".
    assert [(tmp_path / f"threads{rank}").read_text(encoding="utf-8") for rank in (0, 1)] == ["", ""]
    assert done.stderr.count("validation at step 4") == 1  # only one process logs
    assert done.stderr.count("translate with:") == 1
    batches = TokenBatches(Prepared.open(one / "prepared").store("train"), tokens=56)
    assert batches.batches_in(0) % 2 == 0, "the data must have an even number of batches"
    latest = RunFolder(two).latest()
    assert latest is not None
    assert (latest.step, latest.state()["processes"]) == (alone.step, 2)
    for name, tensor in last_weights(one).items():
        torch.testing.assert_close(last_weights(two)[name], tensor, rtol=2e-3, atol=2e-4)
        assert "alpha" not in name or ((tensor >= 1.0) & (tensor <= 2.0)).all()


@pytest.mark.slow
def test_a_killed_process_changes_nothing(make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    whole, killed, script = tmp_path / "whole", tmp_path / "killed", tmp_path / "killed.py"
    script.write_text(KILLED_ONCE, encoding="utf-8")
    recipe = make_recipe(steps=8, parallel="sum", log_batches=True)
    done = torchrun(recipe, "--out", whole, "--threads", "1")
    assert done.returncode == 0, done.stderr
    done = torchrun(recipe, "--out", killed, "--threads", "1", program=[script], restarts=1)
    assert done.returncode == 0, done.stderr
    assert f"resuming from {killed}/checkpoints/step-00000004" in done.stderr
    assert "process 0 lost another process of the run (connection" in (killed / "train.log").read_text(encoding="utf-8")
    ours, theirs = last_weights(whole), last_weights(killed)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    seen = [[line for line in metrics_of(run / "metrics.jsonl") if line["kind"] == "batches"] for run in (whole, killed)]
    assert seen[0] == seen[1]
    assert [line["step"] for line in seen[0]] == [*range(1, 9)]
    # A single process can resume the run; the change is logged.
    more = train(make_recipe("more", steps=10, parallel="sum"), killed, threads=1, quiet=True)
    assert more.step == 10
    assert "processes: 2 before, 1 now" in (killed / "train.log").read_text(encoding="utf-8")
