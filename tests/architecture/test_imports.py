"""Light imports, checked in fresh interpreters: what is missing is not needed, and what is not needed is not loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Slow to load, or possibly not installed. torch._dynamo alone costs more than torch itself.
HEAVY = {"matplotlib", "triton", "entmax", "rich", "typer", "transformers", "torch._dynamo"}

WITHOUT_EXTRAS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "entmax", "transformers"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run(code: str, **environment: str) -> str:
    """Runs code in a fresh interpreter and returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_after(code: str) -> set[str]:
    printed = run(f"import sys\n{code}\nimport json; print(json.dumps(sorted(sys.modules)))")
    return set(json.loads(printed.splitlines()[-1]))


USE = """
import warnings, torch, entformer
for name in entformer.__all__:
    getattr(entformer, name)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        weights = entformer.entmax(torch.tensor([2.0, 1.5, 0.1, -3.0]), 1.5)
assert [round(w, 4) for w in weights.tolist()] == [0.674, 0.326, 0.0, 0.0], weights
print(len(caught), caught[0].category.__name__, caught[0].message)
"""


def test_package_works_without_extras_and_compiler(tmp_path: Path) -> None:
    printed = run(WITHOUT_EXTRAS + USE, PATH=str(tmp_path), CXX="", ENTFORMER_CACHE=str(tmp_path / "empty"))
    assert printed.startswith("1 SlowPathWarning "), printed  # once, not for every call
    assert "compiler" in printed


def test_first_use_is_light() -> None:
    loaded = modules_after("import torch, entformer; entformer.entmax(torch.zeros(3), 1.5)")
    assert "torch" in loaded
    assert loaded & HEAVY == set()


HELP = "from entformer.cli.main import main\nsys.argv = ['entformer', {arguments}]\ntry: main()\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "arguments", ["'--help'", "'--version'", "'demo', '--help'", "'doctor', '--help'", "'bench', 'rows', '-h'"]
)
def test_help_does_not_import_torch(arguments: str) -> None:
    loaded = modules_after(HELP.format(arguments=arguments))
    assert "typer" in loaded
    assert loaded & {"torch", "numpy", "matplotlib"} == set()
