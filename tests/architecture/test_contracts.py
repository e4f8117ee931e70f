"""The import contracts of pyproject.toml hold, and each of them can fail: a planted violation is caught."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the tree under `root`, and on no installed copy of the package."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo", "--config", str(root / "pyproject.toml")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


VIOLATIONS = {
    "a lower package imports a higher one": ("errors.py", "import entformer.cli.main", "Packages"),
    "an unlisted module": ("helpers.py", "", "Packages"),
    "a model imports pydantic": ("models/lm.py", "import pydantic", "core"),
    "losses import modules": ("losses.py", "import entformer.nn", "Packages"),
    "native imports entmax": ("kernels/native.py", "import entformer.kernels.entmax.api", "Inside kernels"),
    "the reference imported directly": ("bench/rows.py", "import entformer.kernels.entmax.reference", "Implementations"),
    "the library imported directly": ("cli/demo.py", "import entformer.kernels.native", "native library"),
    "triton": ("kernels/entmax/api.py", "import triton", "Triton"),
    "matplotlib outside the plotting files": ("bench/rows.py", "import matplotlib.pyplot", "matplotlib"),
    "the entmax package as a dependency": ("kernels/entmax/api.py", "import entmax", "entmax package"),
    "a cycle": ("kernels/registry.py", "import entformer.kernels.entmax.api", "No cycles"),
}


@pytest.mark.parametrize(("file", "line", "contract"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_violation_is_caught(tmp_path: Path, file: str, line: str, contract: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "entformer" / file).open("a", encoding="utf-8") as target:
        target.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    broken = [text for text in done.stdout.splitlines() if "BROKEN" in text]
    assert any(contract in text for text in broken), done.stdout
