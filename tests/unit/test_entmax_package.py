"""The `entmax` package replaced by `entformer` or `entformer.compat`: its modules, names, signatures and numbers."""

import importlib
import inspect
from typing import Any

import entmax as package
import pytest
import torch
from torch import Tensor, nn

import entformer as ef

SUBMODULES = ("activations", "root_finding", "losses")
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
    ("normmax_bisect_loss", {"alpha": 5.0}),
    ("normmax_bisect_loss", {}),
]
TIGHT = 1e-10  # theirs: 50 halvings in float64, then a division


def rows(*shape: int, scale: float = 1.5, seed: int = 0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labels(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(1))


def value_and_gradient(function: Any, x: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    x = x.requires_grad_()
    out = function(x, *arguments, **options)
    return out.detach(), torch.autograd.grad(out, x, rows(*out.shape, seed=1))[0]


# ---- the same surface ----------------------------------------------------------------------------------------------------


def test_every_public_name_is_here() -> None:
    public = {name for name, value in vars(package).items() if callable(value) and not name.startswith("_")}
    assert public == set(NAMES)
    assert all(hasattr(ef, name) for name in NAMES)
    assert public <= set(ef.compat.__all__)


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
    ours, theirs = (value_and_gradient(getattr(home, name), rows(*shape), dim=dim, **arguments) for home in (ef, package))
    torch.testing.assert_close(ours, theirs, rtol=TIGHT, atol=TIGHT)


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
    target = labels(7, 30)
    ours, theirs = (value_and_gradient(getattr(home, name), rows(30, 7), target, **arguments) for home in (ef, package))
    torch.testing.assert_close(ours, theirs, rtol=TIGHT, atol=TIGHT)


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


# ---- what the package gets wrong -----------------------------------------------------------------------------------------


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
    assert x.grad.isfinite().all()
    assert alpha.pre_alpha.grad.isfinite()


@pytest.mark.parametrize("alpha", [3.0, 5.0, 10.0])
def test_large_alpha_is_smooth_in_float32(alpha: float) -> None:
    """Errors of entmax 1.3 here: 4e-4, 3e-2 and 0.2."""
    x = rows(500, 32).float()
    exact = ef.entmax_bisect(x.double(), alpha)
    torch.testing.assert_close(ef.entmax_bisect(x, alpha).double(), exact, rtol=0.0, atol=1e-6)
    support = exact > 0.0  # one level tau per row with p^(alpha-1) = (alpha-1) x - tau shows that `exact` is
    tau = torch.where(support, (alpha - 1.0) * x.double() - exact.pow(alpha - 1.0), 0.0)
    torch.testing.assert_close(tau, torch.where(support, tau.gather(-1, exact.argmax(-1, keepdim=True)), 0.0))


def test_arguments_that_tune_the_package_have_no_effect() -> None:
    x = rows(4, 5, 6, scale=0.3)
    for name, dim in (("sparsemax", -3), ("entmax15", 1)):
        torch.testing.assert_close(getattr(ef, name)(x, dim=dim, k=2), getattr(ef, name)(x, dim=dim))
    for n_iter in (1, 500):
        torch.testing.assert_close(ef.sparsemax_bisect(x, n_iter=n_iter), ef.sparsemax(x))
        torch.testing.assert_close(ef.SparsemaxBisect(n_iter=n_iter)(x), ef.sparsemax(x))
        torch.testing.assert_close(ef.EntmaxBisect(1.5, n_iter=n_iter)(x), ef.entmax15(x))
        torch.testing.assert_close(ef.entmax_bisect(x, 1.5, -1, n_iter, ensure_sum_one=False), ef.entmax15(x))
        scores, target = x[0], torch.tensor([0, 3, -100, 1, 2])
        torch.testing.assert_close(ef.sparsemax_bisect_loss(scores, target, n_iter), ef.sparsemax_loss(scores, target))
        torch.testing.assert_close(ef.entmax_bisect_loss(scores, target, 1.5, n_iter), ef.entmax15_loss(scores, target, k=2))


# ---- submodules and autograd functions -----------------------------------------------------------------------------------


def definitions(module: Any) -> set[str]:
    """Functions and classes that a module of the package defines."""
    return {n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__}


@pytest.mark.parametrize("name", SUBMODULES)
def test_every_name_of_every_submodule(name: str) -> None:
    """The signature of `apply` begins as theirs of `forward`."""
    theirs, ours = importlib.import_module(f"entmax.{name}"), importlib.import_module(f"entformer.compat.{name}")
    assert len(definitions(theirs)) > 3
    assert definitions(theirs) - set(dir(ours)) == set()
    for function in (found for found in definitions(theirs) if found.endswith("Function")):
        wanted = list(inspect.signature(getattr(theirs, function).forward).parameters.values())[1:]  # without ctx
        given = list(inspect.signature(getattr(ours, function).apply).parameters.values())[: len(wanted)]
        assert [(p.name, p.default) for p in given] == [(p.name, p.default) for p in wanted], function


FUNCTIONS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("activations", "SparsemaxFunction", (1, None)),
    ("activations", "SparsemaxFunction", ()),
    ("activations", "Entmax15Function", ()),  # along the first dimension, as there
    ("activations", "Entmax15Function", (1, 3)),
    ("root_finding", "EntmaxBisectFunction", (1.3, 0, 50, True)),
    ("root_finding", "EntmaxBisectFunction", (torch.tensor([[1.2], [1.5], [1.9], [2.4]], dtype=torch.float64),)),
    ("root_finding", "SparsemaxBisectFunction", (1, 60)),
    ("root_finding", "NormmaxBisectFunction", (1.7, 1, 60)),
    ("root_finding", "BudgetBisectFunction", (2.5, -1, 60)),
    ("losses", "SparsemaxLossFunction", (None,)),
    ("losses", "SparsemaxBisectLossFunction", (60,)),
    ("losses", "Entmax15LossFunction", (None,)),
    ("losses", "EntmaxBisectLossFunction", (1.3, 60)),
    ("losses", "NormmaxBisectLossFunction", (1.7, 60)),
]


@pytest.mark.parametrize(("module", "name", "arguments"), FUNCTIONS, ids=[f"{n}-{i}" for i, (_, n, _) in enumerate(FUNCTIONS)])
def test_apply_of_the_function_classes(module: str, name: str, arguments: tuple[Any, ...]) -> None:
    target = (torch.tensor([0, 3, 5, 2]),) if module == "losses" else ()
    homes = (importlib.import_module(f"{home}.{module}") for home in ("entformer.compat", "entmax"))
    ours, theirs = (value_and_gradient(getattr(home, name).apply, rows(4, 6), *target, *arguments) for home in homes)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
