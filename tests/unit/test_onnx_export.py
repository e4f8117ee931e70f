"""Modules exported by torch.onnx.export and run by onnxruntime: equal numbers, and graphs of moderate size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import entformer as ef
from entformer.kernels.entmax import closed_form, reference

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.filterwarnings("ignore")]  # the exporter warns of its own parts


class Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def normal(*shape: int) -> Tensor:
    return 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def nodes_and_error(module: nn.Module, directory: Path, *inputs: Tensor, dynamic: Any = None) -> tuple[int, float]:
    """How many nodes the ONNX graph has, and how far its results are from the module's, on other sizes too if dynamic."""
    program = torch.onnx.export(module.eval(), inputs[:1], dynamo=True, verbose=False, dynamic_shapes=dynamic)
    assert program is not None
    program.save(str(directory / "model.onnx"))
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"))
    name, error = session.get_inputs()[0].name, 0.0
    for x in inputs:
        (found,) = session.run(None, {name: x.numpy()})
        error = max(error, float(np.abs(found - module(x).detach().numpy()).max()))
    return len(list(program.model.graph.all_nodes())), error


ROWS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {  # with the largest number of nodes
    "entmax15": (lambda x: ef.entmax15(x), 100),
    "sparsemax along dim 1": (lambda x: ef.sparsemax(x, dim=1), 100),
    "softmax": (lambda x: ef.entmax(x, 1.0), 50),
    "alpha per row and a mask": (
        lambda x: ef.entmax(x, torch.tensor([[[1.0]], [[1.4]], [[2.6]]]), mask=torch.arange(9) != 4),
        700,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_functions(name: str, tmp_path: Path) -> None:
    function, most = ROWS[name]
    nodes, error = nodes_and_error(Module(function), tmp_path, normal(3, 5, 9))
    assert nodes < most
    assert error < 2e-6


def test_attention(tmp_path: Path) -> None:
    bias = normal(6, 6).masked_fill(torch.arange(6) == 2, -torch.inf)

    def function(x: Tensor) -> Tensor:
        y = ef.attention(x, x, x, is_causal=True, key_mask=torch.arange(6) < torch.tensor([[6], [4]]))
        z = ef.attention(x, x, x, attn_mask=bias, normalizer="sparsemax")
        assert isinstance(y, Tensor)
        assert isinstance(z, Tensor)
        return y + z

    nodes, error = nodes_and_error(Module(function), tmp_path, normal(2, 4, 6, 8))
    assert nodes < 300
    assert error < 5e-6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = ef.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False, is_causal=True)[0]
        return out


@pytest.mark.slow
def test_multihead_attention_with_learned_alphas_of_any_length(tmp_path: Path) -> None:
    dynamic = {"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    nodes, error = nodes_and_error(Block(), tmp_path, normal(2, 6, 16), normal(3, 11, 16), dynamic=dynamic)
    assert nodes < 800
    assert error < 5e-6


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.0001, 1.2, 1.5, 1.9, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_exported_arithmetic_is_entmax(alpha: float, scale: float) -> None:
    x = scale * normal(20, 40)
    x[0, ::2], x[1], x[2], x[3, :3] = -torch.inf, -torch.inf, 1.0, torch.inf
    right = reference.entmax(x.double(), torch.full((20,), alpha, dtype=torch.float64))
    for given in (alpha, torch.full((20,), alpha)):
        found = closed_form.entmax(x, given).double()
        torch.testing.assert_close(found, right, rtol=0.0, atol=5e-6)
