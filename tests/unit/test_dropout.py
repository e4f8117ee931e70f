"""Dropout by hash: the right share, the right mean, no pattern, the same from the same seed, state and number of threads."""

from collections.abc import Iterator

import pytest
import torch

from entformer.errors import ArgumentError
from entformer.kernels import native
from entformer.kernels.fused.api import dropout
from entformer.nn.layers import Dropout


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("p", [0.003, 0.1, 0.3, 0.5, 0.9])
def test_share_and_mean(p: float, isa: str) -> None:
    y = dropout(torch.ones(1000, 1000), p)
    deviation = (p * (1 - p) / 1e6) ** 0.5
    assert abs((y == 0).double().mean().item() - p) < 5 * deviation
    torch.testing.assert_close(y.unique(), torch.tensor([0.0, 1.0 / (1.0 - p)]))


def test_no_pattern_within_a_draw_and_between_draws() -> None:
    """Correlations of the masks with themselves, moved, and with other draws are those of rng: 1/sqrt(n)."""
    n = 2**18
    masks = [(dropout(torch.ones(n), 0.5) == 0).float().sub_(0.5).mul_(2.0) for _ in range(6)]
    for shift in (1, 2, 3, 8, 16, 64, 128, 256, 1024, 4096):
        for mask in masks:
            assert abs((mask[shift:] * mask[:-shift]).mean().item()) < 5 * n**-0.5, shift
    for i, first in enumerate(masks):
        for second in masks[:i]:
            assert abs((first * second).mean().item()) < 5 * n**-0.5
            assert abs((first[1:] * second[:-1]).mean().item()) < 5 * n**-0.5


def test_instruction_sets_draw_the_same(kernels: None) -> None:
    found, before = [], native.isa()
    for name in ("avx512", "avx2", "portable"):
        if native.set_isa(name):
            torch.manual_seed(1)
            found.append(dropout(torch.arange(5000.0), 0.3, torch.ones(5000)))
    native.set_isa(before)
    assert all(torch.equal(found[0], other) for other in found)


def test_threads_draw_the_same(threads: None) -> None:
    x, found = torch.randn(300, 1001), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        torch.manual_seed(2)
        found.append(dropout(x, 0.3))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_gradient_is_the_same_mask(with_residual: bool, narrow: bool) -> None:
    x = torch.randn(33, 7, dtype=torch.bfloat16 if narrow else torch.float32, requires_grad=True)
    residual = torch.randn(33, 7, requires_grad=True) if with_residual else None
    y = dropout(x, 0.4, residual)
    assert y.dtype == (torch.float32 if with_residual else x.dtype)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == x.dtype
    assert set(x.grad.unique().tolist()) == {0.0, torch.tensor(1 / 0.6, dtype=x.dtype).item()}
    rest = (y - residual) if residual is not None else y
    torch.testing.assert_close(rest.float(), (x * x.grad).float(), rtol=2e-2 if narrow else 1e-5, atol=1e-6)
    if residual is not None:
        assert residual.grad is not None
        assert (residual.grad == 1.0).all()


def test_gradients_of_gradients() -> None:
    x = torch.randn(20, requires_grad=True)
    grad = torch.autograd.grad(dropout(x * x, 0.5).sum(), x, create_graph=True)[0]
    again = torch.autograd.grad(grad.sum(), x)[0]
    torch.testing.assert_close(again * x, grad.detach())


def test_seed_and_state_repeat_it() -> None:
    x = torch.randn(5, 13)
    torch.manual_seed(3)
    first = dropout(x, 0.3)
    state = torch.get_rng_state()
    second = dropout(x, 0.3)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.3), second)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.3), first)
    assert not torch.equal(first, second)


def test_a_nan_that_is_dropped_is_gone() -> None:
    y = dropout(torch.full((1000,), torch.nan), 0.5)
    assert (y == 0).any()
    assert y.isnan().any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (4, 3, 5)])
def test_any_shape_layout_and_dtype(shape: tuple[int, ...], poisoned_memory: None) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        y = dropout(torch.ones(shape, dtype=dtype), 0.5)
        assert y.shape == shape
        assert y.dtype == dtype
    x = torch.ones(4, 6).t()
    assert dropout(x, 0.5, torch.zeros(4, 6).t()).shape == (6, 4)


def test_module_acts_in_training_only() -> None:
    module, x = Dropout(0.5), torch.ones(100)
    assert (module(x) == 0).any()
    assert set(module(x, x).tolist()) == {1.0, 3.0}
    assert module.eval()(x) is x
    assert torch.equal(module(x, x), x + x)
    assert Dropout(0.0)(x) is x


def test_mistakes_are_named() -> None:
    with pytest.raises(ArgumentError, match="dropout=1"):
        Dropout(1.0)
    with pytest.raises(ArgumentError, match=r"dropout=-0\.1"):
        dropout(torch.ones(2), -0.1)
    with pytest.raises(ArgumentError, match=r"residual has shape \(3,\)"):
        dropout(torch.ones(2), 0.1, torch.ones(3))
