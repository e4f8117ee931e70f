"""Light imports, checked in fresh interpreters: what is not needed is not loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Slow to load, or possibly not installed. torch._dynamo alone costs more than torch itself.
HEAVY = {"matplotlib", "triton", "entmax", "rich", "typer", "transformers", "torch._dynamo"}


def modules_after(code: str) -> set[str]:
    """Returns what is loaded after `code` in a fresh interpreter."""
    code = f"import sys\n{code}\nimport json; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_first_use_is_light() -> None:
    loaded = modules_after("import torch, entformer; entformer.entmax(torch.zeros(3), 1.5)")
    assert "torch" in loaded
    assert loaded & HEAVY == set()


def test_hugging_face_names_the_extra_to_install() -> None:
    code = """
import sys
import entformer
assert "transformers" not in sys.modules
sys.modules["transformers"] = None  # as if it were not installed
try:
    entformer.hf
except entformer.MissingExtra as err:
    print(err)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "entformer.hf needs transformers, which is not installed: pip install 'entformer[hf]'"


def test_reports_and_the_explorer_of_runs_need_no_transformers() -> None:
    loaded = modules_after("import entformer.analysis.language_model_report, entformer.cli.text_score, entformer.explore.app")
    assert "transformers" not in loaded
