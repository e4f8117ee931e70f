"""Every example runs, and stays as short as it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    if "Trainer" in path.read_text(encoding="utf-8"):
        pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_asentmax_takes_25_lines() -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "drop_in_asentmax")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 25
