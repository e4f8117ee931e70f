"""Light imports, in fresh interpreters: what is not there must not be missed, and what is not needed must not be loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Loading these is slow or they may not be installed. torch._dynamo alone costs more than torch itself.
HEAVY = ("matplotlib", "triton", "entmax", "rich", "typer", "transformers", "torch._dynamo")

BLOCK = """
import sys

class Blocked:
    names = {names!r}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"{{name}} is blocked here", name=name)

sys.meta_path.insert(0, Blocked())
"""
LOADED = "\nimport json; print(json.dumps(sorted(sys.modules)))"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def modules_after(code: str) -> set[str]:
    done = run(f"import sys\n{code}{LOADED}")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def run_without_extras(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """No optional package, no compiler on the path, and an empty cache, so that no kernel was built before either."""
    block = BLOCK.format(names=("triton", "entmax", "transformers"))
    return run(block + code, PATH=str(cache), CXX="", ENTFORMER_CACHE=str(cache / "kernels"))


USE = """
import warnings, torch, entformer
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        weights = entformer.entmax(torch.tensor([2.0, 1.5, 0.1, -3.0]), 1.5)
assert [round(w, 4) for w in weights.tolist()] == [0.674, 0.326, 0.0, 0.0], weights
print(len(caught), caught[0].category.__name__, caught[0].message)
"""


def test_package_works_without_triton_and_compiler(tmp_path: Path) -> None:
    done = run_without_extras(USE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 SlowPathWarning "), done.stdout  # said once, not at every call
    assert "compiler" in done.stdout


def test_every_public_name_is_there_without_triton_and_compiler(tmp_path: Path) -> None:
    names = "import entformer\nfor name in getattr(entformer, '__all__', ['entmax']): getattr(entformer, name)"
    done = run_without_extras(names, tmp_path)
    assert done.returncode == 0, done.stderr


def test_import_is_light() -> None:
    assert modules_after("import torch, entformer") & set(HEAVY) == set()


def test_first_use_is_light() -> None:
    assert modules_after("import torch, entformer; entformer.entmax(torch.zeros(3), 1.5)") & set(HEAVY) == set()


APP = ("typer", "rich", "matplotlib", "sentencepiece", "sacrebleu", "safetensors", "pydantic", "yaml", "fastapi", "uvicorn")
CORE = """
import torch, entformer as ef
q, k, v = torch.randn(3, 1, 2, 4, 8, requires_grad=True).unbind()
ef.attention(q, k, v, alpha=1.5).sum().backward()
ef.MultiheadAttention(8, 2)(q[0], q[0], q[0], need_weights=False)
ef.EntmaxLoss()(torch.randn(3, 5), torch.tensor([0, 1, 2]))
ef.sparsemax(torch.randn(3)), ef.entmax15(torch.randn(3))
"""


def test_functions_and_modules_need_torch_and_numpy_only() -> None:
    done = run(BLOCK.format(names=APP) + CORE)
    assert done.returncode == 0, done.stderr


def test_a_command_without_the_application_extras_names_them() -> None:
    done = run(BLOCK.format(names=APP) + "sys.argv = ['entformer', 'train', 'demo']\nimport entformer.__main__ as m; m.main()")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "entformer train needs the application extras (typer is missing): pip install 'entformer[app]'"
    )


HELP = "from entformer.cli.main import main\nsys.argv = ['entformer', {arguments}]\ntry: main()\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "arguments", ["'--help'", "'--version'", "'demo', '--help'", "'doctor', '--help'", "'bench', 'rows', '-h'"]
)
def test_help_does_not_import_torch(arguments: str) -> None:
    loaded = modules_after(HELP.format(arguments=arguments))
    assert "typer" in loaded
    assert loaded & {"torch", "numpy", "matplotlib"} == set()


# ---- the checks above can fail -----------------------------------------------------------------------------------------


def test_a_heavy_import_would_be_seen() -> None:
    assert {"torch", "torch._dynamo"} <= modules_after("import torch, entformer, torch._dynamo")
    assert "torch" in modules_after("import entformer.cli.main, entformer.cli.doctor")


def test_a_needed_but_blocked_package_would_be_seen(tmp_path: Path) -> None:
    done = run_without_extras("import entformer\nimport triton.language", tmp_path)
    assert done.returncode != 0
    assert "triton.language is blocked here" in done.stderr or "triton is blocked here" in done.stderr


def test_a_compiler_on_the_path_would_be_found(tmp_path: Path) -> None:
    """The search the package makes: empty with our path, and a file named c++ in it is seen."""
    code = "from entformer.kernels import native; print(native.compiler())"
    assert run_without_extras(code, tmp_path).stdout.strip() == "None"
    (tmp_path / "c++").touch(mode=0o755)
    assert run_without_extras(code, tmp_path).stdout.strip() == str([str(tmp_path / "c++")])
