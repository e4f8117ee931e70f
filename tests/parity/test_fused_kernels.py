"""Cross entropy of rows: the C++ against plain torch, on every instruction set, and its mistakes."""

import pytest
import torch

from entformer.kernels.fused import api, reference


@pytest.mark.parametrize("classes", [1, 3, 16, 33, 100, 1031])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_reference(isa: str, classes: int, smoothing: float, dtype: torch.dtype, poisoned_memory: None) -> None:
    generator = torch.Generator().manual_seed(classes)
    scores = (4.0 * torch.randn(19, classes, generator=generator)).to(dtype)
    target = torch.randint(classes, (19,), generator=generator)
    exact = scores.double()
    wanted = reference.cross_entropy_(exact, target, smoothing, True)
    values = api.cross_entropy_(scores, target, smoothing, False)
    found = api.cross_entropy_(scores, target, smoothing, True)
    assert torch.equal(values, found)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=2e-6)
    assert torch.equal(found[:, 2].double(), wanted[:, 2])
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3  # half of the last of bfloat16's 8 bits
    torch.testing.assert_close(scores.double(), exact, rtol=tolerance, atol=tolerance)


def test_the_reference_is_torch() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.tensor([0, 6, 3, 3, 1])
    loss = torch.nn.functional.cross_entropy(scores, target, reduction="none", label_smoothing=0.2)
    gradient = torch.autograd.grad(loss.sum(), scores)[0]
    work = scores.detach().clone()
    sums = api.cross_entropy_(work, target, 0.2, True)
    torch.testing.assert_close(sums[:, 0], loss.detach())
    torch.testing.assert_close(work, gradient)


def test_large_scores_and_infinities(kernels: None) -> None:
    scores = torch.tensor([[1e4, 0.0, -1e4], [0.0, -torch.inf, 1.0], [-1e4, 1e4, 0.0]])
    sums = api.cross_entropy_(scores, torch.tensor([0, 2, 0]), 0.0, True)
    torch.testing.assert_close(sums[:, 1], torch.tensor([0.0, 0.313262, 2e4]))
    torch.testing.assert_close(scores[1], torch.tensor([0.268941, 0.0, -0.268941]))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_class_that_is_none_is_named(kernels: None, wrong: int) -> None:
    with pytest.raises(RuntimeError, match=f"target {wrong} is not a class"):
        api.cross_entropy_(torch.zeros(2, 3), torch.tensor([0, wrong]), 0.0, True)


def test_nan_stays_in_its_row(kernels: None) -> None:
    scores = torch.zeros(2, 40)
    scores[0, 7] = torch.nan
    sums = api.cross_entropy_(scores, torch.tensor([1, 1]), 0.1, True)
    assert sums[0, :2].isnan().all()
    assert sums[1].isfinite().all()
    assert scores[1].isfinite().all()
