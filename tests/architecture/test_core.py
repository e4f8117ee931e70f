"""Functions and modules need torch and numpy alone; the command line names the extra it needs.

Runs in the development environment, with the application's packages blocked, and for real in `make test-core`.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"PyYAML": "yaml"}  # distributions whose module has another name
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
APP = [re.match(r"[\w-]+", requirement)[0] for requirement in EXTRAS["app"]]  # type: ignore[index]

BLOCK = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {["triton", "entmax", "transformers", *(MODULES.get(name, name) for name in APP)]!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""

USE = """
import torch, entformer as ef
import entformer.compat as entmax
for name in ef.__all__:
    getattr(ef, name)
q, k, v = torch.randn(3, 1, 2, 4, 8, requires_grad=True).unbind()
ef.attention(q, k, v, alpha=1.5).sum().backward()
ef.MultiheadAttention(8, 2, normalizer="entmax", alpha="learned")(q[0], q[0], q[0])[0].sum().backward()
ef.CausalLM(ef.LMConfig(vocab_size=9, layers=1, heads=2, width=8, hidden=16))(torch.tensor([[1, 2, 3]]))
ef.EntmaxLoss()(torch.randn(3, 5), torch.tensor([0, 1, 2]))
assert torch.equal(entmax.entmax15(torch.ones(4)), torch.full((4,), 0.25))
ef.show(ef.attention(q, k, v, return_support=True), list("abcd")).html
sizes, ids = {"vocab_size": 8, "width": 8, "heads": 2, "hidden": 8}, torch.ones(1, 3, dtype=torch.long)
ef.CausalLM(ef.LMConfig(**sizes, layers=1, attention={"normalizer": "entmax"}))(ids).sum().backward()
ef.Seq2Seq(ef.Seq2SeqConfig(**sizes, encoder_layers=1, decoder_layers=1))(ids, ids).sum().backward()
"""


def run_without_app(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", BLOCK + code], env=environment, capture_output=True, text=True, check=False)


def test_functions_and_modules_need_torch_and_numpy_only() -> None:
    done = run_without_app(USE)
    assert done.returncode == 0, done.stderr


def test_a_command_names_the_extra_to_install() -> None:
    done = run_without_app("sys.argv = ['entformer', 'train', 'demo']\nimport entformer.__main__ as m; m.main()")
    assert done.returncode == 2
    assert re.match(r"entformer train needs the application extras.*: pip install 'entformer\[app\]'", done.stderr), done.stderr


def test_a_missing_package_of_the_extra_is_recognized() -> None:
    from entformer.__main__ import _APP_MODULES

    assert {MODULES.get(name, name) for name in APP} == _APP_MODULES
