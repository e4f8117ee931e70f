"""The learned alpha: bounds, starts, ties, state dicts, and the two names that circulate in other projects."""

import math
from typing import Any

import pytest
import torch

from entformer.errors import ArgumentError
from entformer.functional import entmax
from entformer.nn.alpha import AlphaChooser, EntmaxAlpha, LearnedAlpha, project_alphas
from entformer.nn.multihead_attention import MultiheadAttention


def test_random_start_is_the_papers() -> None:
    heads = 5000
    module = LearnedAlpha(heads, parametrization="sigmoid", generator=torch.Generator().manual_seed(3))
    for form in ("sigmoid", "projected"):
        again = LearnedAlpha(heads, parametrization=form, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(again(), module())
    # Standard normal: mean and deviation of 5000 draws lie within 5 standard errors.
    assert abs(module.pre_alpha.mean().item()) < 5.0 / math.sqrt(heads)
    assert abs(module.pre_alpha.std().item() - 1.0) < 5.0 / math.sqrt(2 * heads)
    torch.testing.assert_close(module(), 1.0 + torch.sigmoid(module.pre_alpha))


@pytest.mark.parametrize(("low", "high", "start"), [(1.0, 2.0, 1.5), (1.0, 2.0, 1.001), (1.0, 4.0, 3.9), (0.5, 1.5, 1.0)])
@pytest.mark.parametrize("tied", [False, True])
def test_start_at_a_given_alpha(low: float, high: float, start: float, tied: bool) -> None:
    module = LearnedAlpha(3, tied=tied, init=start, low=low, high=high, parametrization="sigmoid")
    assert module().shape == (3,)
    torch.testing.assert_close(module(), torch.full((3,), start))
    assert torch.equal(module.alpha, module())
    assert list(module.state_dict()) == ["pre_alpha"]
    assert module.pre_alpha.shape == ((1,) if tied else (3,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"init": init, "parametrization": "sigmoid"}, "strictly between 1.0 and 2.0") for init in (1.0, 2.5, math.nan)),
        ({"init": 2.5}, "^init=2.5 must lie between 1.0 and 2.0"),
        ({"init": "normal"}, "^init='normal'"),
        ({"init": [1.5, 1.5]}, '^init must be "random" or a number, not list'),
        ({"init": None}, '^init must be "random" or a number, not NoneType'),
        ({"num_heads": 0}, "num_heads=0"),
        ({"low": 2.0, "high": 1.0}, "low=2.0 must be below high=1.0"),
        ({"parametrization": "softplus"}, "parametrization='softplus'"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LearnedAlpha(**{"num_heads": 2} | options)


def test_mistakes_are_named_as_the_caller_wrote_them() -> None:
    with pytest.raises(ArgumentError, match=r"^alpha_parametrization='softplus' is not known"):
        MultiheadAttention(8, 2, alpha_parametrization="softplus")
    with pytest.raises(ArgumentError, match=r"^optimizer must be an optimizer of torch.optim, not float"):
        project_alphas(MultiheadAttention(8, 2), 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("pre_alpha", [-200.0, -30.0, 30.0, 200.0])
def test_alpha_stays_in_bounds_and_usable_wherever_training_drives_it(pre_alpha: float) -> None:
    module = LearnedAlpha(2, parametrization="sigmoid")
    torch.nn.init.constant_(module.pre_alpha, pre_alpha)
    project_alphas(module)  # leaves this form alone
    assert (module.pre_alpha == pre_alpha).all()
    alpha = module()
    assert ((alpha >= 1.0) & (alpha <= 2.0)).all()
    weights = entmax(torch.tensor([[0.3, 1.0, -2.0]] * 2), alpha, alpha_dim=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    (grad,) = torch.autograd.grad(weights[0, 1], module.pre_alpha)
    assert grad.isfinite().all()


def test_every_head_gets_its_own_gradient_and_tied_heads_share() -> None:
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    free, tied = (LearnedAlpha(3, init=1.4, tied=tied, parametrization="sigmoid") for tied in (False, True))
    for module in (free, tied):
        entmax(scores, module(), alpha_dim=1).square().sum().backward()
    assert (free.pre_alpha.grad != 0.0).all()
    torch.testing.assert_close(tied.pre_alpha.grad, free.pre_alpha.grad.sum(0, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_parameters_give_float32_alphas(dtype: torch.dtype) -> None:
    module = LearnedAlpha(2, init=1.002, parametrization="sigmoid").to(dtype)
    assert module().dtype == torch.float32
    torch.testing.assert_close(module(), torch.full((2,), 1.002), rtol=0.0, atol=5e-5)  # pre_alpha holds 3 digits or so
    module().sum().backward()
    assert module.pre_alpha.grad.dtype == dtype


# ---- AlphaChooser and EntmaxAlpha ----------------------------------------------------------------------------------------


def test_alpha_chooser() -> None:
    chooser = AlphaChooser(4)
    chooser.load_state_dict({"pre_alpha": torch.tensor([-9.0, -1.0, 0.0, 2.0])})
    torch.testing.assert_close(chooser(), 1.0 + torch.sigmoid(torch.tensor([-9.0, -1.0, 0.0, 2.0])))
    chooser().sum().backward()
    assert (chooser.pre_alpha.grad != 0.0).all()  # type: ignore[union-attr]  # no clamp at 1.01 to stop it


@pytest.mark.parametrize("dim", [-1, -2, 3])
def test_entmax_alpha(dim: int) -> None:
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    module = EntmaxAlpha(3, dim=dim)
    assert list(module.state_dict()) == ["alpha_chooser.pre_alpha"]
    weights = module(scores)
    for head, alpha in enumerate(module.alpha_chooser.alpha.tolist()):
        torch.testing.assert_close(weights[:, head], entmax(scores[:, head], alpha, dim=dim if dim < 0 else dim - 1))


def test_entmax_alpha_takes_a_mask() -> None:
    mask = torch.tensor([True, True, False, True, False])
    weights = EntmaxAlpha(head_count=3)(torch.zeros(2, 3, 4, 5), mask)
    assert (weights[..., ~mask] == 0.0).all()
    torch.testing.assert_close(weights[..., mask], torch.full((2, 3, 4, 3), 1 / 3))


def test_entmax_alpha_loads_alphas_stored_as_such() -> None:
    stored = torch.tensor([1.2, 1.5, 1.9])
    model = torch.nn.Sequential(EntmaxAlpha(3))
    model.load_state_dict({"0.alpha_chooser": stored, "0.alpha": stored})
    torch.testing.assert_close(model[0].alpha_chooser(), stored)
    with pytest.raises(ArgumentError, match="strictly between 1 and 2"):
        model.load_state_dict({"0.alpha_chooser": torch.tensor([0.9, 1.5, 1.9])})


@pytest.mark.parametrize(("value", "alpha"), [(1.0, 1.0), (1.3, 1.3), (2.0, 2.0), (0.5, 1.0), (3.0, 2.0)])
def test_a_projected_alpha_is_the_parameter_itself_within_the_bounds(value: float, alpha: float) -> None:
    module = LearnedAlpha(3, init=alpha, parametrization="projected")
    assert list(module.state_dict()) == ["value"]
    torch.testing.assert_close(module(), torch.full((3,), alpha))
    torch.nn.init.constant_(module.parameter, value)
    torch.testing.assert_close(module(), torch.full((3,), alpha))
    module().sum().backward()
    assert torch.equal(module.parameter.grad, torch.ones(3))  # at the bounds and beyond them too


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, 0.2, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.2, weight_decay=0.0)]
)
def test_a_projected_alpha_reaches_a_bound_and_leaves_it_at_once(make: object) -> None:
    module = LearnedAlpha(2, init=1.5, parametrization="projected")
    optimizer = make([module.parameter])  # type: ignore[operator]
    optimizer.register_step_post_hook(lambda own, *_: project_alphas(module, own))  # makes it part of any training loop

    def step(slope: float) -> None:
        optimizer.zero_grad()
        (module() * torch.tensor([slope, -slope])).sum().backward()
        optimizer.step()

    for _ in range(20):
        step(1.0)
    assert module.alpha.tolist() == [1.0, 2.0]
    step(-1.0)
    assert module.alpha[0] > 1.0
    assert module.alpha[1] < 2.0


def test_alphas_stored_as_logits_load_into_the_projected_form() -> None:
    old = LearnedAlpha(4, parametrization="sigmoid")
    new = LearnedAlpha(4)
    state = old.state_dict()
    new.load_state_dict(state)
    torch.testing.assert_close(new(), old())
    assert list(state) == ["pre_alpha"]
    with pytest.raises(RuntimeError, match="pre_alpha"):
        old.load_state_dict(new.state_dict())
