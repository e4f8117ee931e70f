"""`import entformer.compat as entmax`: the package's modules, names, signatures and numbers."""

import importlib
import inspect
import re
from typing import Any

import entmax as package
import pytest
import torch
from torch import Tensor

SUBMODULES = ("activations", "root_finding", "losses")


def public(module: Any, home: str) -> set[str]:
    """Functions and classes that the module defines."""
    return {n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == home}


def scores() -> Tensor:
    return torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("name", SUBMODULES)
def test_every_name_of_every_submodule(name: str) -> None:
    theirs = importlib.import_module(f"entmax.{name}")
    ours = importlib.import_module(f"entformer.compat.{name}")
    wanted = public(theirs, f"entmax.{name}")
    assert len(wanted) > 3
    assert wanted - set(dir(ours)) == set()


def test_every_name_of_the_package() -> None:
    import entformer.compat as entmax

    wanted = {n for n, v in vars(package).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert wanted - set(entmax.__all__) == set()
    for submodule in SUBMODULES:
        assert inspect.ismodule(getattr(entmax, submodule))


def test_the_package_is_found_from_entformer() -> None:
    import entformer as ef

    assert ef.compat.entmax15(scores()).shape == (4, 6)


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
    found = []
    for home in ("entmax", "entformer.compat"):
        function = getattr(importlib.import_module(f"{home}.{module}"), name)
        x = scores()
        target = (torch.tensor([0, 3, 5, 2]),) if module == "losses" else ()
        out = function.apply(x, *target, *arguments)
        weight = torch.linspace(0.5, 2.0, out.numel(), dtype=torch.float64).reshape(out.shape)
        found.append((out.detach(), torch.autograd.grad((out * weight).sum(), x)[0]))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


def test_signatures_of_apply_begin_as_those_of_forward() -> None:
    for module in SUBMODULES:
        theirs = importlib.import_module(f"entmax.{module}")
        ours = importlib.import_module(f"entformer.compat.{module}")
        for name in public(theirs, f"entmax.{module}"):
            if re.fullmatch(r"[A-Z]\w*Function", name):
                wanted = list(inspect.signature(getattr(theirs, name).forward).parameters.values())[1:]  # without ctx
                given = list(inspect.signature(getattr(ours, name).apply).parameters.values())
                shared = [(p.name, p.default) for p in given[: len(wanted)]]
                assert shared == [(p.name, p.default) for p in wanted], name
