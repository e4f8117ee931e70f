"""The import contracts of pyproject.toml hold, and each of them can fail: planted violations are caught."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lint_imports(root: Path) -> str:
    """Runs import-linter on the tree under `root`, and on no installed copy of the package; returns what it prints."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo", "--config", str(root / "pyproject.toml")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


VIOLATIONS = {  # file: lines added to it
    "errors.py": "import entformer.cli.main, typer, transformers",
    "helpers.py": "",  # a module that no layer lists
    "losses.py": "import entformer.nn",
    "kernels/registry.py": "import entformer.kernels.entmax.api, triton",
    "bench/rows.py": "import entformer.kernels.entmax.reference, matplotlib.pyplot",
    "cli/demo.py": "import entformer.kernels.native, entmax",
}


def test_contracts_hold() -> None:
    assert ", 0 broken" in lint_imports(ROOT)


def test_planted_violations_break_every_contract(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line in VIOLATIONS.items():
        with (tmp_path / "src" / "entformer" / file).open("a", encoding="utf-8") as target:
            target.write(f"\n{line}\n")
    printed = lint_imports(tmp_path)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    assert [contract["name"] for contract in contracts if f"{contract['name']} BROKEN" not in printed] == []
    for violation in ("entformer.errors -> entformer.cli.main", "entformer.losses -> entformer.nn", "- entformer.helpers"):
        assert violation in printed
