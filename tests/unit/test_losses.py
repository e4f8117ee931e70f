"""The Fenchel-Young losses: against their definition, against cross entropy at alpha = 1, derivatives, options, transforms."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from entformer.errors import ArgumentError
from entformer.functional import entmax
from entformer.kernels.entmax import ops
from entformer.losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    EntmaxLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_loss,
    normmax_bisect_loss,
    sparsemax_loss,
)

INF = math.inf
TIGHT = 1e-12  # float64 arithmetic on rows of moderate size
ALPHAS = [0.7, 1.0, 1.0 + 1e-9, 1.001, 1.3, 1.5, 2.0, 3.0]


def scores(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(1))


def value_and_gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The loss and its gradients under one fixed direction, so that unreduced losses are compared entry by entry."""
    direction = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return [loss.detach(), *torch.autograd.grad(loss, inputs, direction)]


# ---- the definition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.7, 1.3, 1.5, 2.0, 3.0])
def test_entmax_loss_by_its_definition(alpha: float) -> None:
    x, target = scores(9, 6), classes(6, 9)
    p = entmax(x, alpha)
    entropy = (1.0 - p.pow(alpha).sum(-1)) / (alpha * (alpha - 1.0))
    expected = (p * x).sum(-1) + entropy - x.gather(-1, target[:, None]).squeeze(-1)
    torch.testing.assert_close(entmax_loss(x, target, alpha, reduction="none"), expected, rtol=0.0, atol=TIGHT)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("learned", [False, True])
def test_gradient_is_weights_less_target(alpha: float, learned: bool) -> None:
    x, target = scores(8, 6).requires_grad_(), classes(6, 8)
    given = torch.tensor(alpha, dtype=torch.float64, requires_grad=True) if learned else alpha
    (grad,) = torch.autograd.grad(entmax_loss(x, target, given, reduction="sum"), x)
    p, onehot = entmax(x, alpha), F.one_hot(target, 6)
    torch.testing.assert_close(grad, p - onehot, rtol=0.0, atol=TIGHT)
    assert (grad[(p == 0.0) & (onehot == 0)] == 0.0).all()


@pytest.mark.parametrize("loss", [sparsemax_loss, entmax15_loss, normmax_bisect_loss])
def test_no_loss_and_no_gradient_once_the_target_has_all_weight(loss: Callable[..., Tensor]) -> None:
    x = torch.tensor([[5.0, 0.0, 1.0]], requires_grad=True)
    value = loss(x, torch.tensor([0]))
    assert value.item() == 0.0
    assert (torch.autograd.grad(value, x)[0] == 0.0).all()


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-7, 1.0001, 1.001, 1.01, 1.1, 1.5, 1.9, 2.0, 2.5])
def test_alpha_gradient_against_fifty_digits(alpha: float) -> None:
    """dL/dalpha = dH_alpha/dalpha at fixed p, in float32, where Correia's formula divided by (alpha - 1)^2 loses everything."""
    x = scores(5, 40).float()
    given = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(entmax_loss(x, classes(40, 5), given, reduction="sum"), given)
    with mpmath.workdps(50):
        weights = [mpmath.mpf(p) for p in entmax(x.double(), alpha).flatten().tolist() if p > 0.0]
        a = mpmath.mpf(alpha)
        e = a - 1

        def slope(p: mpmath.mpf) -> mpmath.mpf:
            log, deformed = mpmath.log(p), mpmath.expm1(e * mpmath.log(p)) / e if e else mpmath.log(p)
            if not e:
                return p * (deformed - log**2 / 2)
            return p * (deformed / a - (log * p**e - deformed) / e) / a

        expected = float(mpmath.fsum(slope(p) for p in weights))
    assert grad.item() == pytest.approx(expected, rel=1e-5)


# ---- alpha = 1 is cross entropy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (7, 5), (4, 5, 3), (2, 5, 3, 2), (1, 1), (3, 1, 1)])
def test_alpha_1_is_cross_entropy(shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: str) -> None:
    x, count = scores(*shape).requires_grad_(), shape[0] if len(shape) == 1 else shape[1]
    weight = torch.linspace(0.2, 1.7, count, dtype=torch.float64) if weighted else None
    options: dict[str, Any] = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    index = classes(count, *(() if len(shape) == 1 else (shape[0], *shape[2:])))
    if index.numel() > 3:
        index.view(-1)[::3] = -100
    theirs = value_and_gradients(F.cross_entropy(x, index, **options), x)
    for alpha in (1.0, torch.tensor(1.0)):
        mine = value_and_gradients(entmax_loss(x, index, alpha, **options), x)
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=TIGHT)

    q = torch.softmax(scores(*shape, seed=2), 0 if len(shape) == 1 else 1).requires_grad_()
    mine = value_and_gradients(entmax_loss(x, q, 1.0, **options), x, q)
    theirs = value_and_gradients(F.cross_entropy(x, q, **options), x, q)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=TIGHT)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_options_mean_the_same_at_every_alpha(alpha: float) -> None:
    """Weights, smoothing, ignoring and the mean, spelled out from the losses of single classes."""
    x, target, weight = scores(6, 4), classes(4, 6), torch.tensor([0.5, 1.0, 2.0, 0.1], dtype=torch.float64)
    target[2] = 7
    per_class = torch.stack([entmax_loss(x, torch.full((6,), k), alpha, reduction="none") for k in range(4)], 1) * weight
    kept = torch.arange(6) != 2
    one = 0.8 * per_class[kept].gather(1, target[kept, None]).squeeze(1) + 0.2 / 4 * per_class[kept].sum(1)
    loss = entmax_loss(x, target, alpha, weight=weight, ignore_index=7, label_smoothing=0.2)
    torch.testing.assert_close(loss, one.sum() / weight[target[kept]].sum(), rtol=0.0, atol=TIGHT)


def test_reductions_and_the_empty_mean() -> None:
    x, target = scores(4, 3), torch.tensor([0, -100, 2, 1])
    losses = entmax_loss(x, target, reduction="none")
    assert losses[1] == 0.0
    torch.testing.assert_close(entmax_loss(x, target, reduction="sum"), losses.sum())
    torch.testing.assert_close(entmax_loss(x, target, reduction="elementwise_mean"), losses.sum() / 3)
    assert entmax_loss(x, torch.full((4,), -100)).isnan()
    assert entmax_loss(x, torch.full((4,), -100), reduction="sum") == 0.0
    assert entmax_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), reduction="none").shape == (0,)


# ---- scores out of the ordinary ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("learned", [False, True])
def test_excluded_classes(alpha: float, learned: bool) -> None:
    x = torch.tensor([[1.0, -INF, 0.5], [0.0, -INF, 3.0]], requires_grad=True)
    given = torch.tensor(alpha, requires_grad=True) if learned else alpha
    losses = entmax_loss(x, torch.tensor([0, 1]), given, reduction="none")
    kept = entmax_loss(x[:, [0, 2]], torch.tensor([0, 0]), alpha, reduction="none")
    torch.testing.assert_close(losses[0], kept[0])
    assert losses[1] == INF
    (grad,) = torch.autograd.grad(losses[0], x)
    assert grad.isfinite().all()
    assert (grad[:, 1] == 0.0).all()
    assert entmax_loss(torch.full((1, 3), -INF), torch.tensor([2]), given).item() == INF
    q = torch.tensor([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    assert entmax_loss(x, q, given).isfinite()


@pytest.mark.parametrize("shift", [1e3, -1e7, 1e7])
@pytest.mark.parametrize("loss", [entmax_loss, normmax_bisect_loss])
def test_shifts_change_nothing(loss: Callable[..., Tensor], shift: float) -> None:
    x, target = torch.tensor([[0.0, -1.0, 1.0, -3.0]]), torch.tensor([1])  # exact in float32 after the shift too
    torch.testing.assert_close(loss(x + shift, target), loss(x, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x, target = scores(5, 7).to(dtype).requires_grad_(), classes(7, 5)
    loss = entmax_loss(x, target)
    assert loss.dtype == dtype
    assert torch.autograd.grad(loss, x)[0].dtype == dtype
    assert loss == entmax_loss(x.float(), target).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        inside = entmax_loss(x, target)
    assert inside.dtype == torch.float32  # as cross_entropy does
    torch.testing.assert_close(inside, entmax_loss(x.float(), target))


# ---- derivatives and transforms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ALPHAS)
def test_first_and_second_derivatives(alpha: float) -> None:
    x, target = scores(4, 5).requires_grad_(), classes(5, 4)
    assert gradcheck(lambda x: entmax_loss(x, target, alpha, reduction="none"), (x,))
    assert gradgradcheck(lambda x: entmax_loss(x, target, alpha, reduction="none"), (x,))
    each = torch.full((4, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, a: entmax_loss(x, target, a, reduction="none"), (x, each), check_forward_ad=True)
    assert gradgradcheck(lambda x, a: entmax_loss(x, target, a, reduction="none"), (x, each))


@pytest.mark.parametrize("alpha", [1.3, 2.0, 4.0])
def test_normmax_derivatives(alpha: float) -> None:
    x, target = scores(4, 5, scale=0.5).requires_grad_(), classes(5, 4)
    given = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, a: normmax_bisect_loss(x, target, a), (x, given), check_forward_ad=True)
    assert gradgradcheck(lambda x, a: normmax_bisect_loss(x, target, a), (x, given))


def test_first_order_backward_runs_no_backward_pass_of_entmax(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = scores(3, 4).requires_grad_()
    monkeypatch.setattr(ops, "entmax_backward", None)  # a call would raise
    entmax_loss(x, classes(4, 3), 1.5).backward()
    assert x.grad is not None
    with pytest.raises(TypeError):
        entmax(x, 1.5).square().sum().backward()


def test_vmap_and_grad() -> None:
    x, target = scores(6, 5), classes(5, 6)
    losses = entmax_loss(x, target, 1.5, reduction="none")
    torch.testing.assert_close(torch.func.vmap(lambda x, t: entmax_loss(x, t, 1.5))(x, target), losses)
    per_sample = torch.func.vmap(torch.func.grad(lambda x, t: entmax_loss(x, t, 1.5)))(x, target)
    torch.testing.assert_close(per_sample, entmax(x, 1.5) - F.one_hot(target, 5), rtol=0.0, atol=TIGHT)
    alphas = torch.linspace(1.0, 2.0, 6, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(entmax_loss(x, target, alphas[:, None], reduction="sum"), alphas)
    by_alpha = torch.func.vmap(torch.func.grad(lambda a, x, t: entmax_loss(x, t, a)))(alphas.detach(), x, target)
    torch.testing.assert_close(by_alpha, expected, rtol=0.0, atol=TIGHT)


@pytest.mark.parametrize("learned", [False, True])
def test_compiles_without_graph_breaks(learned: bool) -> None:
    x, target = scores(6, 5).requires_grad_(), classes(5, 6)
    alpha = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    wanted = [x, alpha] if learned else [x]

    def loss(x: Tensor, target: Tensor, alpha: Tensor) -> Tensor:
        return entmax_loss(x, target, alpha if learned else 1.3, label_smoothing=0.1)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    mine, eager = (value_and_gradients(f(x, target, alpha), *wanted) for f in (compiled, loss))
    torch.testing.assert_close(mine, eager, rtol=0.0, atol=TIGHT)


# ---- functions, modules, mistakes ----------------------------------------------------------------------------------------


def test_support_sizes_beside_the_loss() -> None:
    x, target = scores(5, 4), torch.tensor([0, 3, -100, 1, 2])
    losses, sizes = sparsemax_loss(x, target, return_support_size=True)
    mean, same_sizes = SparsemaxLoss(return_support_size=True)(x, target)
    assert torch.equal(losses, sparsemax_loss(x, target))
    assert mean == SparsemaxLoss()(x, target)
    assert torch.equal(sizes, (entmax(x, 2.0) > 0.0).sum(-1, keepdim=True))
    assert torch.equal(same_sizes, sizes)


@pytest.mark.parametrize("module", [SparsemaxLoss, SparsemaxBisectLoss, Entmax15Loss, EntmaxBisectLoss, EntmaxLoss])
def test_modules_have_every_option(module: type[nn.Module]) -> None:
    x, target, weight = scores(5, 3, 4), classes(4, 5, 3), torch.tensor([1.0, 2.0, 0.5, 0.0]).double()
    target[0, 0] = 3
    options: dict[str, Any] = {"ignore_index": 3, "weight": weight, "label_smoothing": 0.1, "dim": -1}
    loss = module(**options)
    torch.testing.assert_close(loss(x, target), entmax_loss(x, target, loss.alpha, **options))
    assert set(loss.state_dict()) == {"weight"}
    assert "ignore_index=3" in repr(loss)
    assert module(reduction="none")(x.movedim(-1, 1), target).shape == (5, 3)


@pytest.mark.parametrize("module", [EntmaxLoss, EntmaxBisectLoss, NormmaxBisectLoss])
def test_alpha_of_a_module_is_learned_or_moved(module: Callable[[Any], nn.Module]) -> None:
    x, target = scores(5, 4), classes(4, 5)
    learned = module(nn.Parameter(torch.tensor(1.2)))
    assert [name for name, _ in learned.named_parameters()] == ["alpha"]
    learned(x, target).backward()
    assert next(learned.parameters()).grad.item() != 0.0  # type: ignore[union-attr]
    fixed = module(torch.tensor(1.2))
    assert list(fixed.parameters()) == []
    assert fixed.double().alpha.dtype == torch.float64  # type: ignore[union-attr]
    torch.testing.assert_close(fixed(x, target), learned(x, target))


def test_invalid_arguments_raise() -> None:
    x, target = torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long)
    for reduction in ("avg", "", "MEAN"):
        with pytest.raises(ArgumentError, match="reduction"):
            EntmaxLoss(reduction=reduction)
    with pytest.raises(ArgumentError, match="label_smoothing"):
        SparsemaxLoss(label_smoothing=1.5)
    with pytest.raises(ArgumentError, match="target 3 is not a class"):
        entmax_loss(x, target + 3)
    with pytest.raises(ArgumentError, match=r"need dim=-1"):
        entmax_loss(x, torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ArgumentError, match="probabilities must have the shape"):
        entmax_loss(x, torch.zeros(2, 4))
    with pytest.raises(ArgumentError, match="weight has shape"):
        entmax_loss(x, target, weight=torch.ones(4))
    with pytest.raises(ArgumentError, match="positive, finite alpha"):
        entmax_loss(x, target, 0.0)
    with pytest.raises(ArgumentError, match="alpha >= 1"):
        normmax_bisect_loss(x, target, 0.9)
    with pytest.raises(ArgumentError, match="no classes"):
        entmax_loss(torch.zeros(2, 0), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ArgumentError, match="floating-point tensor of scores"):
        entmax_loss(target, target)
    with pytest.raises(ArgumentError, match="does not broadcast"):
        entmax_loss(x, target, torch.tensor([1.5, 1.6]))


def test_ignore_index_with_probabilities_is_refused() -> None:
    x, target = torch.randn(3, 5), torch.rand(3, 5).softmax(1)
    with pytest.raises(ArgumentError, match="ignore_index=2 names a class index, but the target has class probabilities"):
        entmax_loss(x, target, ignore_index=2)
    with pytest.raises(ArgumentError, match="ignore_index=2"):
        NormmaxBisectLoss(ignore_index=2)(x, target)
    assert entmax_loss(x, target, ignore_index=-1).isfinite()  # as in torch
