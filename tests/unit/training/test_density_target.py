"""Sparsity as a goal: densities as the report counts them, slopes by counting, a multiplier that finds its value."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entformer.analysis.collect import collect
from entformer.data.batch import Batch
from entformer.data.store import TokenStore
from entformer.errors import DataError
from entformer.models.config import Seq2SeqConfig
from entformer.models.override import overridden_alphas
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.density_price import LEAST, MOST, Multiplier, add_to_gradient
from entformer.tasks.translation import sample_of
from entformer.training.density_target import MEASURE_EVERY, DensityTarget, measure, reference_loss
from entformer.training.recipe import Recipe

HEADS = 2


def model_of(parametrization: str = "projected", **other: Any) -> Seq2Seq:
    torch.manual_seed(3)
    attention = {"alpha_parametrization": parametrization}
    kinds = {"encoder": attention, "decoder": attention, "cross": attention, **other}
    sizes = {"vocab_size": 12, "encoder_layers": 2, "decoder_layers": 1, "heads": HEADS, "width": 8, "hidden": 16}
    model = Seq2Seq(Seq2SeqConfig.from_dict({**sizes, "dropout": 0.3, **kinds})).train()
    with torch.no_grad():  # scores far enough apart for zeros
        for _, _, attention_layer in model.attention_layers():
            attention_layer.in_proj_weight.mul_(4.0)
    return model


@pytest.fixture
def sample() -> Batch:
    rng = np.random.default_rng(1)
    sides = [[rng.integers(4, 12, rng.integers(1, 9)).tolist() for _ in range(30)] for _ in range(2)]
    return sample_of(TokenStore.from_examples(list(zip(*sides, strict=True))))


def test_densities_are_those_of_the_report(sample: Batch) -> None:
    model = model_of()
    found = measure(model, sample)
    assert model.training
    assert len(sample.examples) == 30  # never more than there are
    assert found.slope == {}
    for row in collect(model.eval(), [sample]):
        assert found.density[row.attn_type, row.layer][row.head].item() == pytest.approx(row.density, abs=1e-9)
    assert min(values.min() for values in found.density.values()) < 0.9


def test_slopes_are_counted_at_the_same_scores(sample: Batch) -> None:
    model = model_of()
    with torch.no_grad():
        next(module for kind, _, module in model.attention_layers() if kind == "encoder").alpha.value.copy_(
            torch.tensor([1.0, 1.95])  # the second is too close to 2 for a chord that reaches up
        )
    found = measure(model, sample, slopes=True)
    with overridden_alphas(model, {("encoder", 0, 0): 2.0, ("encoder", 0, 1): 1.85}):
        other = measure(model, sample).density["encoder", 0]
    expected = (other - found.density["encoder", 0]) / torch.tensor([1.0, -0.1])
    torch.testing.assert_close(found.slope["encoder", 0], expected.double(), rtol=1e-4, atol=1e-6)
    assert found.density["encoder", 0][0] == 1.0  # softmax
    assert all((slope <= 0.0).all() for slope in found.slope.values())
    assert found.slope["encoder", 0][0] < 0.0  # although no small change of alpha changes its density


def test_the_multiplier_rises_above_the_target_and_fades_below() -> None:
    one = Multiplier(0.5)
    start = one.value
    one.ascend(0.8)
    assert one.value > start
    assert one.price > one.value
    risen = one.value
    one.ascend(0.4)
    assert one.value < risen
    assert one.price < one.value
    for _ in range(1000):
        one.ascend(0.1)
    assert one.value == LEAST
    for _ in range(1000):
        one.ascend(1.0)
    assert one.value == MOST


def test_a_loss_above_the_bound_halves_the_multiplier_and_holds_it(sample: Batch) -> None:
    target = DensityTarget(model_of(), sample, 0.5)
    one = target.multipliers["all"]
    target.validated(2.0, 0.01, None)
    assert not one.held
    before = one.value
    target.validated(2.03, 0.01, None)  # 2.0 was the lowest
    assert one.value == before / 2
    one.ascend(0.9)
    assert one.value == before / 2
    one.ascend(0.1)  # it may fall
    assert one.value < before / 2
    target.validated(2.03, 0.01, 2.02)  # a reference of another run counts instead
    assert not one.held
    before = one.value
    one.ascend(0.9)
    assert one.value > before


@pytest.mark.parametrize("parametrization", ["sigmoid", "projected"])
@pytest.mark.parametrize("tied", ["head", "layer"])
def test_the_price_reaches_the_parameter_as_if_it_were_part_of_the_loss(parametrization: str, tied: str) -> None:
    model = model_of(encoder={"alpha_parametrization": parametrization, "alpha_tied": tied})
    alpha = next(model.attention_layers())[2].alpha
    slope = torch.tensor([-0.5, -0.25], dtype=torch.float64)
    (alpha().double() * slope).sum().backward()
    expected = 2.0 * alpha.parameter.grad
    add_to_gradient(alpha, slope)
    torch.testing.assert_close(alpha.parameter.grad, expected)


@pytest.mark.parametrize("goal", [0.4, {"encoder": 0.3, "cross": 0.5}])
def test_alphas_rise_until_density_is_low_enough(goal: Any, sample: Batch) -> None:
    model = model_of()
    target = DensityTarget(model, sample, goal, start_step=5)
    alphas = [module.alpha.parameter for _, _, module in model.attention_layers()]
    before = [alpha.detach().clone() for alpha in alphas]
    optimizer = torch.optim.Adam(alphas, lr=0.02)
    for step in range(1, 200):
        optimizer.zero_grad(set_to_none=True)
        target.update(step)
        assert (alphas[0].grad is None) == (step <= 5)
        optimizer.step()
    wanted = goal if isinstance(goal, dict) else {"all": goal}
    for name, one in target.multipliers.items():
        assert one.density <= 1.1 * wanted[name]
    assert torch.equal(alphas[2], before[2]) == isinstance(goal, dict)  # decoder: no goal, no price
    numbers = target.numbers()
    assert numbers["density" if goal == 0.4 else "density_cross"] <= 0.55


def test_state_goes_through_json_exactly(sample: Batch) -> None:
    first, second = (DensityTarget(model_of(), sample, 0.3) for _ in range(2))
    for step in range(1, MEASURE_EVERY + 3):
        first.update(step)
    first.validated(3.0, 0.01, None)
    second.load(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert second.multipliers == first.multipliers
    assert all(torch.equal(second.slope[name], first.slope[name]) for name in first.slope)
    fresh = DensityTarget(model_of(), sample, 0.3)
    fresh.load({})
    assert math.isinf(fresh.least_loss)


def test_the_loss_of_a_reference_run_is_that_of_the_same_step(tmp_path: Path) -> None:
    lines = [{"kind": "valid", "step": step, "loss": 5.0 - step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert reference_loss(tmp_path, 2) == 3.0
    assert reference_loss(tmp_path, 99) == 2.0
    with pytest.raises(DataError, match=r"has no validation up to step 0"):
        reference_loss(tmp_path, 0)
    with pytest.raises(DataError, match=r"training\.reference_run"):
        reference_loss(tmp_path / "nothing", 5)


def test_mistakes_in_recipes_are_named() -> None:
    data = {"data": {"corpus": "builtin"}}
    for goal in (0.0, 1.0, {}, {"both": 0.5}):
        with pytest.raises(ValueError, match="density_target"):
            Recipe.model_validate({**data, "training": {"density_target": goal}})
    fixed = {"encoder": {"normalizer": "softmax"}}
    with pytest.raises(ValueError, match="density_target names encoder, which learns no alpha"):
        Recipe.model_validate({**data, "model": fixed, "training": {"density_target": {"encoder": 0.5}}})
