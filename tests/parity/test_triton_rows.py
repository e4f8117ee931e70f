"""entmax by Triton kernels, in Triton's interpreter, against the reference: weights and gradients of scores and alpha."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from interpreted import ONLY_INTERPRETED

from entformer.kernels.entmax.api import entmax

pytestmark = [ONLY_INTERPRETED, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

ALPHAS = (0.5, 1.0, 1.0001, 1.25, 1.5, 2.0, 3.0)
# Some units of float32 and of the solver's stopping rule; for alpha > 2, see test_triton_attention.py.
CLOSE = {"rtol": 1e-5, "atol": 2e-5}


def both(x: Tensor, alpha: Tensor) -> list[list[Tensor]]:
    found = []
    for impl in ("triton", "reference"):
        scores, shape = x.clone().requires_grad_(), alpha.clone().requires_grad_()
        weights = entmax(scores, shape, impl=impl)  # type: ignore[arg-type]
        grad = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)).to(weights.dtype)
        found.append([weights.detach(), *torch.autograd.grad(weights, (scores, shape), grad)])
    return found


@pytest.mark.parametrize(("rows", "n"), [(3, 1), (5, 37), (2, 300)])
def test_every_alpha(rows: int, n: int) -> None:
    x = 2.0 * torch.randn(len(ALPHAS), rows, n, generator=torch.Generator().manual_seed(n))
    alpha = torch.tensor(ALPHAS, dtype=torch.float64)[:, None, None].expand(-1, rows, 1).contiguous()
    for ours, right in zip(*both(x, alpha), strict=True):
        torch.testing.assert_close(ours, right, **CLOSE)


def test_rows_longer_than_registers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from entformer.kernels.entmax.triton import rows

    monkeypatch.setattr(rows, "IN_REGISTERS", 64)
    x = torch.randn(2, 150, generator=torch.Generator().manual_seed(0))
    for ours, right in zip(*both(x, torch.tensor([[1.3], [2.0]], dtype=torch.float64)), strict=True):
        torch.testing.assert_close(ours, right, **CLOSE)


def test_half_precision() -> None:
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(0)).half()
    for ours, right in zip(*both(x, torch.full((4, 1), 1.4, dtype=torch.float64)), strict=True):
        torch.testing.assert_close(ours, right, rtol=2e-3, atol=2e-3)


def test_masked_rows_ties_infinity_and_nan() -> None:
    x = torch.tensor(
        [
            [-math.inf, -math.inf, -math.inf],
            [1.0, 1.0, 1.0],
            [math.inf, 0.0, math.inf],
            [math.nan, 0.0, 1.0],
            [-math.inf, 2.0, -math.inf],
        ]
    )
    for alpha in (1.0, 1.5, 3.0):
        ours = entmax(x, alpha, impl="triton")
        torch.testing.assert_close(ours, entmax(x, alpha, impl="reference"), equal_nan=True, **CLOSE)
