"""The output layer and its loss in one against torch's cross entropy and our entmax loss, values and gradients."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.losses import entmax_loss
from entformer.models import fused_loss as output
from entformer.models.fused_loss import output_loss

from .tensors import RecordTensors

ROWS, SIZE, CLASSES = 37, 6, 50


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, SIZE, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(CLASSES, SIZE, generator=generator, dtype=dtype).requires_grad_()
    return hidden, weight, torch.randint(CLASSES, (ROWS,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 20 * CLASSES, 10**9])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_the_composition(
    monkeypatch: pytest.MonkeyPatch, chunk: int, smoothing: float, alpha: float, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(output, "CHUNK", chunk)
    monkeypatch.setattr(output, "ROWS", 16)
    hidden, weight, target = inputs(dtype)
    scores = hidden @ weight.t()
    if alpha == 1.0:
        plain = F.cross_entropy(scores, target, reduction="sum")
        expected = F.cross_entropy(scores, target, reduction="sum", label_smoothing=smoothing)
    else:
        plain = entmax_loss(scores, target, alpha, reduction="sum")
        expected = entmax_loss(scores, target, alpha, reduction="sum", label_smoothing=smoothing)
    found = output_loss(hidden, weight, target, label_smoothing=smoothing, alpha=alpha)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.nll, plain)
    assert found.correct == (scores.argmax(-1) == target).sum()
    assert not found.nll.requires_grad
    ours = torch.autograd.grad(found.loss / 7.0, (hidden, weight))
    theirs = torch.autograd.grad(expected / 7.0, (hidden, weight))
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_without_gradients_only_values_are_computed() -> None:
    hidden, weight, target = inputs()
    with torch.no_grad():
        found = output_loss(hidden, weight, target, label_smoothing=0.1)
    assert not found.loss.requires_grad
    torch.testing.assert_close(found.loss, output_loss(hidden, weight, target, label_smoothing=0.1).loss.detach())


def test_no_rows_cost_nothing() -> None:
    hidden, weight, target = inputs()
    found = output_loss(hidden[:0], weight, target[:0])
    found.loss.backward()
    assert found.loss == 0.0
    assert weight.grad.abs().sum() == 0.0


def test_scores_are_never_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "CHUNK", 16 * CLASSES)
    monkeypatch.setattr(output, "ROWS", 16)
    hidden, weight, target = inputs(torch.float32)
    with RecordTensors() as recorded:
        output_loss(hidden, weight, target, label_smoothing=0.1).loss.backward()
    assert max(t.numel() for t in recorded.made) <= 16 * CLASSES


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_autocast_narrows_the_products_and_not_the_loss(alpha: float) -> None:
    hidden, weight, target = inputs(torch.float32)
    exact = output_loss(hidden, weight, target, label_smoothing=0.1, alpha=alpha)
    wanted = torch.autograd.grad(exact.loss, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        found = output_loss(hidden, weight, target, label_smoothing=0.1, alpha=alpha)
    got = torch.autograd.grad(found.loss, (hidden, weight))
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, exact.loss, rtol=0.01, atol=0.0)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_improbable_class_keeps_its_loss(smoothing: float) -> None:
    """Its probability is 0 in float32; its loss is not infinite."""
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [400.0], [-400.0]])
    found = output_loss(hidden, weight, torch.tensor([2]), label_smoothing=smoothing)
    expected = F.cross_entropy(hidden @ weight.t(), torch.tensor([2]), label_smoothing=smoothing)
    torch.testing.assert_close(found.loss, expected)
    assert found.nll == 800.0
