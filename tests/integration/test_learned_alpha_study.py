"""experiments/learned_alpha.py makes its tables and figures of any folder of runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.training import train

ROOT = Path(__file__).resolve().parents[2]


def study(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "experiments" / "learned_alpha.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_tables_and_figures_of_a_folder_of_runs(make_recipe: Callable[..., Path], tmp_path: Path) -> None:
    learned = {"attention": {"alpha_parametrization": "projected"}}
    for name, model, more in (
        ("softmax", {"attention": {"normalizer": "softmax"}}, {}),
        ("projected-a", learned, {"alpha_seed": 1}),
        ("projected-b", learned, {"alpha_seed": 2}),
    ):
        train(make_recipe(name, model=model, steps=4, **more), tmp_path / "runs" / name, threads=1, quiet=True)
        study("collect", tmp_path / "runs" / name, tmp_path / "results" / f"{name}.json", "--beam", "1")
    output = study("tables", tmp_path / "results", "--out", tmp_path / "out", "--resamples", "10")
    rows = [line.split(" | ") for line in output.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows] == [
        "run",
        *("projected-a", "projected-b", "softmax"),
        "pair of alpha seeds",
        "projected",
    ]
    softmax = rows[3]
    assert softmax[5] == "1.00 / 1.00 / 1.00"  # its density
    assert softmax[7] == "-"  # it has no alpha to correlate
    assert float(rows[1][7]) > 0.5  # after four steps alphas are near their start
    assert (tmp_path / "out" / "results.md").read_text(encoding="utf-8") == output
    for figure in ("trajectories.png", "distribution.png", "longest.png"):
        assert (tmp_path / "out" / figure).stat().st_size > 5000
