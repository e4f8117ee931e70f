"""Every example runs, and stays as short as it promises."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


RUN = """
import pathlib, runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print("ran", pathlib.Path(path).name)
"""


def test_examples_run(tmp_path: Path) -> None:
    """One process runs them all: importing torch and transformers takes longer than most of them."""
    accelerate = importlib.util.find_spec("accelerate") is not None  # transformers' Trainer needs it
    paths = [path for path in EXAMPLES if accelerate or "Trainer" not in path.read_text(encoding="utf-8")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *paths], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in printed if line.startswith("ran ")] == [f"ran {path.name}" for path in paths]
    assert len(printed) >= 2 * len(paths)  # each says something


def test_asentmax_takes_25_lines() -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "drop_in_asentmax")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 25
