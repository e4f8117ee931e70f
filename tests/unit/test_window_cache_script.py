"""benchmarks/window_cache.py on a tiny trained run: it finds both caches equal, and the shorter one smaller."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entformer.errors import DataError
from entformer.longcontext.registry import get_task_config
from entformer.longcontext.results import sweep
from entformer.longcontext.train import RunSpec

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "window_cache.py"


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(folder), "--length", "1500", "--steps", "8"])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_caches_of_a_trained_run_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"width": 16, "heads": 4, "hidden": 16, "steps": 6, "batch": 4, "sequences": 2, "eval_lengths": (16,)}
    sweep(replace(get_task_config("copy"), **sizes), [RunSpec("entmax", "nape", 0)], tmp_path)
    run(tmp_path / "runs" / "entmax_nape_0", monkeypatch)
    found = json.loads(capsys.readouterr().out)
    assert found["length"] == 1500
    assert found["scores compared"] == 9
    assert found["largest difference"] < 1e-4
    assert found["cache bytes"]["window"] < found["cache bytes"]["full"]
    with pytest.raises(DataError, match="runs/"):
        run(tmp_path, monkeypatch)
