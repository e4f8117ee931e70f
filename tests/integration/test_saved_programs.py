"""Programs saved in one process and run in another: torch.export, AOTInductor and torch.jit find the operators after
`import entformer`, in any order of imports, with and without the C++ kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import torch
import entformer as ef

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = ef.MultiheadAttention(16, 4, batch_first=True)
        self.out = torch.nn.Linear(16, 8)

    def forward(self, x):
        y, _ = self.attention(x, x, x, need_weights=False, is_causal=True)
        return ef.sparsemax(self.out(y), dim=1), ef.budget_bisect(y), ef.normmax_bisect(y)

def data():
    return torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))

model = Model().eval()
"""
SAVE = {
    "export": 'torch.export.save(torch.export.export(model, (data(),)), "{path}")',
    "aot": 'torch._inductor.aoti_compile_and_package(torch.export.export(model, (data(),)), package_path="{path}")',
    "jit": 'with torch.no_grad(): torch.jit.save(torch.jit.trace(model, (data(),)), "{path}")',
}
LOAD = {
    "export": 'program = torch.export.load("{path}").module()',
    "aot": 'program = torch._inductor.aoti_load_package("{path}")',
    "jit": 'program = torch.jit.load("{path}")',
}
RUN = """
x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    found = program(x)
for ours, right in zip(found, torch.load("{results}"), strict=True):
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)
print("equal")
"""
IMPORTS = {"entformer first": "import entformer\nimport torch\n", "torch first": "import torch\nimport entformer\n"}


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs and the model's own results, saved by one process."""
    folder = tmp_path_factory.mktemp("programs")
    lines = [MODEL, f'torch.save([t.detach() for t in model(data())], "{folder / "results.pt"}")']
    lines += [text.format(path=folder / f"{kind}.pt2") for kind, text in SAVE.items()]
    python("\n".join(lines))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("order", "native"), [("entformer first", "1"), ("torch first", "0")], ids=["kernels", "no kernels"])
def test_saved_programs_run_in_a_new_process(saved: Path, order: str, native: str) -> None:
    code = IMPORTS[order]
    for kind, text in LOAD.items():
        code += text.format(path=saved / f"{kind}.pt2") + RUN.format(results=saved / "results.pt")
    assert python(code, ENTFORMER_NATIVE=native).split() == ["equal"] * len(LOAD)


HOOK = """
import importlib.util, sys
import entformer
assert "torch" not in sys.modules
assert importlib.util.find_spec("torch") is not None  # a look that imports nothing
hooks = len(sys.meta_path)
import torch
assert len(sys.meta_path) == hooks - 1
assert "exec_module" not in vars(torch.__spec__.loader)
operators = "entmax entmax_backward attention attention_backward attention_support budget_threshold"
for name in operators.split():
    assert hasattr(torch.ops.entformer, name), name
"""
LAZY = """
import entformer as ef
ef.entmax
import torch
torch.ops.entformer.attention, torch.ops.entformer.normmax_threshold
"""
CALL = """
import entformer as ef
ef.register_operators()
ef.register_operators()
import torch
torch.ops.entformer.attention
"""
BROKEN = """
import sys
import entformer
sys.modules["entformer.functional"] = None  # whose import then fails
import torch
assert torch.ones(1).item() == 1.0
try:
    entformer.entmax
except ImportError:
    print("told on use")
"""


@pytest.mark.parametrize("code", [HOOK, LAZY, CALL], ids=["hook", "lazy", "call"])
def test_operators_are_registered(code: str) -> None:
    python(code)


def test_importing_torch_never_fails_because_of_us() -> None:
    assert python(BROKEN) == "told on use\n"
