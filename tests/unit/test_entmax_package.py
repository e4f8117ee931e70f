"""Changing `import entmax` to `import entformer as entmax` is enough: same signatures, same numbers, and no old complaints.

`test_complaint_NN_...` holds what users of `entmax` reported or what we measured there. Each fails with release 1.3, but for
number 16, repaired in it.
"""

import inspect
import math
from typing import Any

import entmax as package
import pytest
import torch
from torch import Tensor, nn

import entformer as ef
from entformer.errors import ArgumentError

INF = math.inf
NAMES = [
    *("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"),
    *("Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect", "NormmaxBisect", "BudgetBisect"),
    *("sparsemax_loss", "entmax15_loss", "sparsemax_bisect_loss", "entmax_bisect_loss", "normmax_bisect_loss"),
    *("SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss", "NormmaxBisectLoss"),
]
MAPPINGS: list[tuple[str, dict[str, Any]]] = [
    ("sparsemax", {}),
    ("entmax15", {}),
    ("sparsemax_bisect", {}),
    ("entmax_bisect", {"alpha": 1.2}),
    ("entmax_bisect", {"alpha": 2.7}),
    ("normmax_bisect", {}),
    ("normmax_bisect", {"alpha": 1.3}),
    ("normmax_bisect", {"alpha": 7}),
    ("budget_bisect", {}),
    ("budget_bisect", {"budget": 3.4}),
]
LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("sparsemax_loss", {}),
    ("entmax15_loss", {"k": 3}),
    ("sparsemax_bisect_loss", {}),
    ("entmax_bisect_loss", {"alpha": 1.2}),
    ("normmax_bisect_loss", {"alpha": 1.3}),
    ("normmax_bisect_loss", {}),
]
ENTMAX_FAMILY = NAMES[:4]
TIGHT = 1e-10  # theirs: 50 halvings in float64, then a division


def rows(*shape: int, scale: float = 1.5, seed: int = 0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labels(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(1))


# ---- the same surface ----------------------------------------------------------------------------------------------------


def test_every_public_name_is_here() -> None:
    public = {name for name, value in vars(package).items() if callable(value) and not name.startswith("_")}
    assert public == set(NAMES)
    assert all(hasattr(ef, name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    """Theirs is a prefix of ours: same names, order and defaults; what we add comes after and has a default."""
    theirs = list(inspect.signature(getattr(package, name)).parameters.values())
    ours = list(inspect.signature(getattr(ef, name)).parameters.values())
    assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in ours[: len(theirs)])
    assert all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in ours[len(theirs) :])


@pytest.mark.parametrize(("name", "arguments"), MAPPINGS)
@pytest.mark.parametrize(("shape", "dim"), [((40, 9), -1), ((9, 40), 0), ((3, 17, 5), 1)])
def test_same_weights_and_gradients(name: str, arguments: dict[str, Any], shape: tuple[int, ...], dim: int) -> None:
    results = []
    for home in (ef, package):
        x = rows(*shape).requires_grad_()
        weights = getattr(home, name)(x, dim=dim, **arguments)
        (grad,) = torch.autograd.grad(weights, x, rows(*shape, seed=1))
        results.append((weights.detach(), grad))
    torch.testing.assert_close(*results, rtol=TIGHT, atol=TIGHT)


@pytest.mark.parametrize("alpha", [1.05, 1.33, 1.5, 2.0, 3.0])
def test_same_alpha_gradients(alpha: float) -> None:
    gradients = []
    for home in (ef, package):
        each = torch.full((12, 1), alpha, dtype=torch.float64, requires_grad=True)
        (grad,) = torch.autograd.grad(home.entmax_bisect(rows(12, 8), each), each, rows(12, 8, seed=1))
        gradients.append(grad)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)  # theirs divides rounding errors by (alpha - 1)^2


@pytest.mark.parametrize(("name", "arguments"), LOSSES)
def test_same_losses_and_gradients(name: str, arguments: dict[str, Any]) -> None:
    results = []
    for home in (ef, package):
        x = rows(30, 7).requires_grad_()
        losses = getattr(home, name)(x, labels(7, 30), **arguments)
        (grad,) = torch.autograd.grad(losses, x, rows(30, seed=1))
        results.append((losses.detach(), grad))
    torch.testing.assert_close(*results, rtol=TIGHT, atol=TIGHT)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("Loss")])
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
def test_same_loss_modules(name: str, reduction: str) -> None:
    x, target = rows(30, 7), labels(7, 30)
    ours, theirs = (getattr(home, name)(ignore_index=2, reduction=reduction)(x, target) for home in (ef, package))
    torch.testing.assert_close(ours, theirs, rtol=TIGHT, atol=TIGHT)


@pytest.mark.parametrize("name", ["Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect", "NormmaxBisect", "BudgetBisect"])
def test_same_modules(name: str) -> None:
    x = rows(4, 5, 6)
    ours, theirs = (getattr(home, name)(dim=1)(x) for home in (ef, package))
    torch.testing.assert_close(ours, theirs, rtol=TIGHT, atol=TIGHT)
    assert "dim=1" in repr(getattr(ef, name)(dim=1))


def test_modules_learn_an_alpha_given_as_parameter() -> None:
    for name in ("EntmaxBisect", "NormmaxBisect", "Entmax"):
        module = getattr(ef, name)(nn.Parameter(torch.tensor(1.4)))
        assert list(module.state_dict()) == ["alpha"]
        module(rows(3, 4)).square().sum().backward()
        assert module.alpha.grad != 0.0
        assert list(getattr(ef, name)(torch.tensor(1.4)).parameters()) == []
    assert ef.Entmax(1.0)(rows(3, 4)).allclose(rows(3, 4).softmax(-1))
    weights, sizes = ef.Sparsemax(return_support_size=True)(rows(3, 4))
    assert torch.equal(sizes, (weights > 0).sum(-1, keepdim=True))


def test_readme_numbers() -> None:
    """The values printed in the README of `entmax`, four digits."""
    x = torch.tensor([-2, 0, 0.5])
    assert ef.sparsemax(x, dim=0).tolist() == pytest.approx([0.0, 0.25, 0.75], abs=5e-5)
    assert ef.entmax15(x, dim=0).tolist() == pytest.approx([0.0, 0.3260, 0.6740], abs=5e-5)
    assert ef.normmax_bisect(x, alpha=2, dim=0).tolist() == pytest.approx([0.0, 0.3110, 0.6890], abs=5e-5)
    assert ef.normmax_bisect(x, alpha=1000, dim=0).tolist() == pytest.approx([0.0, 0.4997, 0.5003], abs=5e-5)
    assert ef.budget_bisect(x, budget=2, dim=0).tolist() == pytest.approx([0.0, 1.0, 1.0], abs=5e-5)
    alpha = torch.tensor(1.33, requires_grad=True)
    p = ef.entmax_bisect(torch.tensor([[-1, 0, 0.5], [1, 2, 3.5]]), alpha)
    assert p[0].tolist() == pytest.approx([0.0460, 0.3276, 0.6264], abs=5e-5)
    assert p[1].tolist() == pytest.approx([0.0026, 0.1012, 0.8963], abs=6e-5)
    assert torch.autograd.grad(p[0, 0], alpha)[0].item() == pytest.approx(-0.2562, abs=5e-5)


# ---- the complaints ------------------------------------------------------------------------------------------------------


def test_masks_of_a_transformer() -> None:
    """Softmax swapped for sparsemax: padding and causal masks together leave rows with nothing to attend to."""
    scores = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    padding = torch.tensor([[False, False, True, True, True], [True] * 5])[:, None, None, :]  # left padding
    mask = padding & torch.ones(5, 5, dtype=torch.bool).tril()
    weights = ef.sparsemax(scores, mask=mask)
    weights.square().sum().backward()
    assert (weights[0, :, :2] == 0.0).all()
    torch.testing.assert_close(weights[0, :, 2:].sum(-1), torch.ones(4, 3))
    assert (weights.masked_select(~mask) == 0.0).all()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    with pytest.raises(ArgumentError, match="broadcast"):
        ef.sparsemax(scores, mask=mask[..., :3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pre_alpha", [-18.0, 0.0, 18.0])
def test_loss_stays_finite_late_in_training(dtype: torch.dtype, pre_alpha: float) -> None:
    """Confident, badly shifted scores and an alpha driven to either end."""
    x = (rows(6, 50, scale=300.0) - 2e4).to(dtype).requires_grad_()
    alpha = ef.LearnedAlpha(1, parametrization="sigmoid")
    nn.init.constant_(alpha.pre_alpha, pre_alpha)
    loss = ef.entmax_bisect_loss(x, labels(50, 6), alpha=alpha().squeeze()).mean()
    loss.backward()
    assert loss.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert alpha.pre_alpha.grad is not None
    assert alpha.pre_alpha.grad.isfinite()


def test_learned_alpha_cannot_drift_below_1() -> None:
    """Twenty steps of descent that push alpha down as hard as they can."""
    x, learned = rows(4, 2, 3, 5), ef.EntmaxAlpha(2)
    optimizer = torch.optim.SGD(learned.parameters(), lr=50.0)
    for _ in range(20):
        optimizer.zero_grad()
        loss = learned(x).square().sum()  # denser is better
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
        assert (learned.alpha_chooser() >= 1.0).all()
    assert (learned.alpha_chooser() < 1.02).all()


@pytest.mark.parametrize("alpha", [3.0, 5.0, 10.0])
def test_large_alpha_is_smooth_in_float32(alpha: float) -> None:
    """Errors of entmax 1.3 here: 4e-4, 3e-2 and 0.2."""
    x = rows(500, 32).float()
    exact = ef.entmax_bisect(x.double(), alpha)
    torch.testing.assert_close(ef.entmax_bisect(x, alpha).double(), exact, rtol=0.0, atol=1e-6)
    support = exact > 0.0  # one level tau per row with p^(alpha-1) = (alpha-1) x - tau shows that `exact` is
    tau = torch.where(support, (alpha - 1.0) * x.double() - exact.pow(alpha - 1.0), 0.0)
    torch.testing.assert_close(tau, torch.where(support, tau.gather(-1, exact.argmax(-1, keepdim=True)), 0.0))


def test_peaked_scores() -> None:
    """Bisection once returned NaN or the wrong winner here."""
    x = 1000.0 * torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    for alpha in (1.5, 3.0, 8.0):
        weights = ef.entmax_bisect(x, alpha)
        torch.testing.assert_close(weights.sum(-1), torch.ones(200))
        assert torch.equal(weights.argmax(-1), x.argmax(-1))
        torch.testing.assert_close(weights.double(), ef.entmax_bisect(x.double(), alpha), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_half_precision_far_below_zero(dtype: torch.dtype, alpha: float) -> None:
    x = torch.tensor([[-1000.0, -1008.0, -1000.0, -5000.0]], dtype=dtype)
    weights = ef.entmax_bisect(x, alpha)
    assert weights.dtype == dtype
    assert weights.tolist() == [[0.5, 0.0, 0.5, 0.0]]


def test_autocast() -> None:
    x, target = rows(4, 6).bfloat16().requires_grad_(), labels(6, 4)
    alpha = torch.tensor(1.3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        weights = [ef.entmax15(x), ef.sparsemax(x), ef.entmax_bisect(x, alpha), ef.normmax_bisect(x)]
        loss = ef.entmax_bisect_loss(x, target, alpha).mean()
    assert [w.dtype for w in weights] == [torch.float32] * 4  # as torch.softmax and cross_entropy under autocast
    assert loss.dtype == torch.float32
    torch.testing.assert_close(weights[2], ef.entmax_bisect(x.float(), alpha))
    (loss + weights[2].square().sum()).backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert alpha.grad is not None


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.001, 1.01])
def test_alpha_gradient_near_1_in_float32(alpha: float) -> None:
    x, direction = rows(6, 9), rows(6, 9, seed=1)
    given = torch.tensor(alpha, requires_grad=True)
    (grad,) = torch.autograd.grad(ef.entmax_bisect(x.float(), given), given, direction.float())
    # Float64 central differences of the weights at the float32 alpha: accurate to step^2 = 1e-8 and 1e-16/step.
    at, step = given.item(), 1e-4
    slope = (ef.entmax_bisect(x, at + step) - ef.entmax_bisect(x, at - step)) / (2 * step)
    terms = slope * direction
    assert grad.item() == pytest.approx(terms.sum().item(), abs=1e-5 * terms.abs().sum().item())


@pytest.mark.parametrize("ignored", [-100, -1, 2])
@pytest.mark.parametrize(
    "name", ["SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss", "NormmaxBisectLoss"]
)
def test_ignore_index_and_reduction_as_cross_entropy(name: str, ignored: int) -> None:
    x, target = rows(6, 5).requires_grad_(), torch.tensor([0, ignored, 4, ignored, 1, 3])
    kept = target != ignored
    mean, old = (getattr(ef, name)(ignore_index=ignored, reduction=r)(x, target) for r in ("mean", "elementwise_mean"))
    each = getattr(ef, name)(reduction="none")(x[kept], target[kept])
    torch.testing.assert_close(mean, each.mean())
    torch.testing.assert_close(mean, old)
    (grad,) = torch.autograd.grad(mean, x)
    assert (grad[~kept] == 0.0).all()
    assert (grad[kept] != 0.0).any()


def test_losses_of_sequences() -> None:
    x, target = rows(2, 7, 3), labels(7, 2, 3)  # (N, C, L), (N, L) as cross_entropy
    flat = ef.sparsemax_loss(x.movedim(1, -1).reshape(6, 7), target.reshape(6)).reshape(2, 3)
    torch.testing.assert_close(ef.SparsemaxLoss(reduction="none")(x, target), flat)
    torch.testing.assert_close(ef.SparsemaxLoss(reduction="none", dim=-1)(x.movedim(1, -1), target), flat)  # (N, L, C)
    torch.testing.assert_close(ef.SparsemaxLoss()(x, target), flat.mean())


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("dim", [-3, -2, 0, 1])
@pytest.mark.parametrize("k", [1, 2, 100])
def test_k_with_any_dimension(name: str, dim: int, k: int) -> None:
    x = rows(4, 5, 6, scale=0.3)
    expected = getattr(ef, name)(x.movedim(dim, -1).contiguous()).movedim(-1, dim)
    torch.testing.assert_close(getattr(ef, name)(x, dim=dim, k=k), expected)


def test_iterations_do_not_decide_the_result() -> None:
    x = rows(10, 20)
    for n_iter in (1, 2, 50, 500):
        torch.testing.assert_close(ef.sparsemax_bisect(x, n_iter=n_iter), ef.sparsemax(x))
        torch.testing.assert_close(ef.SparsemaxBisect(n_iter=n_iter)(x), ef.sparsemax(x))
        torch.testing.assert_close(ef.EntmaxBisect(1.5, n_iter=n_iter)(x), ef.entmax15(x))
        for ensure_sum_one in (True, False):
            torch.testing.assert_close(ef.entmax_bisect(x, 1.5, -1, n_iter, ensure_sum_one), ef.entmax15(x))


@pytest.mark.parametrize("name", ["sparsemax_loss", "entmax15_loss"])
def test_losses_are_tensors_unless_asked(name: str) -> None:
    loss = getattr(ef, name)
    x, target = rows(6, 5), labels(5, 6)
    assert isinstance(loss(x, target), Tensor)
    assert isinstance(loss(x, target, 3), Tensor)
    losses, sizes = loss(x, target, return_support_size=True)
    assert torch.equal(losses, loss(x, target))
    assert sizes.shape == (6, 1)


def test_log_probabilities_for_beam_search_and_sampling() -> None:
    x = rows(1, 12, scale=1.0)
    logs, support = ef.log_entmax(x, 1.5), ef.entmax_support(x, 1.5)
    assert torch.equal(logs.isfinite(), support)
    assert 1 < support.sum() < 12
    top = logs.topk(12, -1)
    assert torch.equal(top.values.isfinite().sum(), support.sum())  # a beam stops at the first -inf
    draws = torch.multinomial(logs.exp(), 500, replacement=True, generator=torch.Generator().manual_seed(0))
    assert support[0, draws[0]].all()
