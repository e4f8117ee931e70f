"""`nn.dropout.Dropout` is torch.nn.Dropout but for the way it draws."""

import pytest
import torch

from entformer.nn.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_each_element_is_kept_with_its_probability(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(7, 1001, 31, requires_grad=True)
    y = Dropout(p)(x)
    kept = (y > 0.0).double()
    n = kept.numel()
    assert abs(kept.mean().item() - (1.0 - p)) < 4.0 * (p * (1.0 - p) / n) ** 0.5
    assert abs(y.double().mean().item() - 1.0) < 4.0 * (p / (1.0 - p) / n) ** 0.5
    for lag in (1, 2, 3, 4, 31):  # neighbors share a draw of 64 bits
        flat = kept.flatten() - kept.mean()
        assert abs((flat[lag:] * flat[:-lag]).mean().item()) < 4.0 * p * (1.0 - p) / n**0.5
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())


def test_a_seed_gives_the_same_mask() -> None:
    x = torch.randn(5, 13)
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(Dropout(0.3)(x.to(torch.bfloat16)))
    assert torch.equal(*drawn)
    assert drawn[0].dtype == torch.bfloat16


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (1e-9, True), (0.4, False)])
def test_the_ends_are_those_of_torch(p: float, training: bool) -> None:
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(p).train(training)(x), torch.nn.Dropout(p).train(training)(x))


def test_nothing_and_other_layouts() -> None:
    assert Dropout(0.5)(torch.zeros(0, 3)).shape == (0, 3)
    x = torch.randn(6, 10).T
    y = Dropout(0.5)(x)
    assert torch.equal(y[y != 0.0], 2.0 * x[y != 0.0])


def test_transforms_and_the_compiler_take_torch_s() -> None:
    x = torch.ones(3, 8)
    dropped = torch.func.vmap(Dropout(0.5), randomness="different")(x)
    assert set(dropped.unique().tolist()) <= {0.0, 2.0}
    compiled = torch.compile(Dropout(0.5), fullgraph=True, backend="eager")
    assert set(compiled(x).unique().tolist()) <= {0.0, 2.0}
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(Dropout(0.5)))
    assert set(traced(x).unique().tolist()) <= {0.0, 2.0}
