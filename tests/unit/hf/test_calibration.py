"""Calibration finds alpha and scale of each head without training; densities are what is counted."""

from pathlib import Path

import pytest
import torch

from entformer import entmax, hf
from entformer.errors import ArgumentError
from entformer.hf.attribution import divergence_shares
from entformer.hf.calibration import CANDIDATES, Grid, allocate, mean_density, measure_candidates
from entformer.hf.capture import capture
from entformer.hf.heads import sparse_heads

from .tiny_models import tiny


def ids(count: int = 120) -> list[int]:
    return torch.randint(3, 90, (count,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("name", ["llama", "bert", "gptoss", "gemma2"])
def test_density_is_reached_and_weights_are_unchanged(name: str) -> None:
    model = hf.sparsify(tiny(name))
    before = {key: value.clone() for key, value in model.state_dict().items() if "entmax_norm" not in key}
    found = hf.calibrate(model, [ids(40), ids(40)], density=0.4, length=40)
    assert found.density <= 0.4
    assert hf.density(model, [ids(40)], length=40) == pytest.approx(found.density, abs=0.06)
    assert found.heads == 8
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training
    assert model.config.entformer["calibration"]["length"] == 40


def test_the_grid_is_measured_on_the_weights_of_the_model() -> None:
    model = hf.sparsify(tiny("llama"))
    inputs = {"input_ids": torch.tensor([ids(12)])}
    name = "model.layers.1.self_attn"
    captured = capture(model, [inputs], [name], queries=12, gradients=False)[name]
    grid = measure_candidates(captured)
    with torch.no_grad():
        dense = model(**inputs, output_attentions=True).attentions[1][0]  # (H, 12, 12)
        index = CANDIDATES.index((1.5, 0.6))
        masked = torch.ones(12, 12, dtype=torch.bool).tril()
        sparse = entmax(dense.clamp_min(1e-30).log() * 0.6, 1.5, mask=masked)  # scores up to a constant per row
    assert grid.pairs == 78
    assert grid.density[index].tolist() == pytest.approx(((sparse > 0).sum((1, 2)) / 78).tolist(), abs=1e-6)
    middle = (sparse + dense) / 2
    js = 0.5 * (torch.xlogy(sparse, sparse / middle) + torch.xlogy(dense, dense / middle)).nan_to_num().sum((1, 2)) / 12
    assert grid.js[index].tolist() == pytest.approx(js.tolist(), abs=1e-5)
    assert grid.js[0].tolist() == [0.0] * 4


def test_sparsity_goes_where_it_is_cheap() -> None:
    density = torch.tensor([[1.0, 1.0], [0.1, 0.1]])
    cost = torch.tensor([[0.0, 0.0], [0.01, 1.0]])
    grids = {"a": Grid(density, cost, cost, 10.0)}
    chosen = allocate(grids, 0.56)
    assert chosen["a"].tolist() == [1, 0]
    assert mean_density(grids, chosen) == pytest.approx(0.55)
    assert allocate(grids, 0.1)["a"].tolist() == [1, 1]
    assert allocate(grids, 1.0)["a"].tolist() == [0, 0]
    assert allocate(grids, 0.1, max_divergence=0.5)["a"].tolist() == [1, 0]


def test_a_lower_density_costs_more() -> None:
    model = hf.sparsify(tiny("llama"))
    divergences = [hf.calibrate(model, [ids()], density=density, length=60).divergence for density in (1.0, 0.5, 0.2)]
    assert divergences[0] == 0.0 < divergences[1] < divergences[2]
    bounded = hf.calibrate(model, [ids()], max_divergence=divergences[1], length=60)
    assert bounded.divergence <= divergences[1]


def test_shares_of_heads_add_up_to_the_divergence() -> None:
    model = hf.sparsify(tiny("llama"))
    inputs = {"input_ids": torch.tensor([ids(40)])}
    assert divergence_shares(model, [inputs])[0] == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        dense = model(**inputs).logits.log_softmax(-1)
        for _, heads in sparse_heads(model):
            heads.set(alpha=1.05, scale=0.95)
        expected = (dense.exp() * (dense - model(**inputs).logits.log_softmax(-1))).sum(-1).mean()
    found, shares = divergence_shares(model, [inputs])
    assert found == pytest.approx(float(expected), rel=1e-3)
    assert sum(float(own.sum()) for own in shares.values()) == pytest.approx(found, rel=0.1)
    assert {name: len(own) for name, own in shares.items()} == dict.fromkeys(hf.alphas(model), 4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rounds_keep_the_choice_with_the_lowest_divergence() -> None:
    model, text = hf.sparsify(tiny("llama")), ids()
    inputs = [{"input_ids": torch.tensor([text[:60]])}, {"input_ids": torch.tensor([text[60:]])}]
    steps: list[str] = []
    measured = []
    for rounds in (0, 2):
        found = hf.calibrate(model, inputs, density=0.4, rounds=rounds, progress=lambda what, *_: steps.append(what))
        assert found.density <= 0.4
        measured.append(divergence_shares(model, inputs)[0])
    assert measured[1] < measured[0]
    assert steps.count("weighting heads") == 3
    assert found.weights.keys() == hf.alphas(model).keys()
    assert found.choose(model, density=0.2).weights is found.weights


def test_another_density_from_the_same_measurements() -> None:
    model = hf.sparsify(tiny("llama"))
    first = hf.calibrate(model, [ids()], density=0.5, length=60, cost="js")
    second = first.choose(model, density=0.2)
    right = hf.calibrate(model, [ids()], density=0.2, length=60, cost="js")
    assert second.density == right.density == pytest.approx(model.config.entformer["calibration"]["density"], abs=1e-4)
    for name, values in hf.alphas(model).items():
        assert torch.equal(second.alphas[name], right.alphas[name])
        assert values.tolist() == pytest.approx(second.alphas[name].tolist())
    with pytest.raises(ArgumentError, match="other heads than the one that was calibrated"):
        first.choose(hf.sparsify(tiny("bert")), density=0.2)


@pytest.mark.parametrize("cost", ["js", "output", "fisher"])
def test_costs(cost: str) -> None:
    model = hf.sparsify(tiny("llama"))
    assert hf.calibrate(model, [ids()], density=0.3, cost=cost, length=60).density <= 0.3


def test_sparsify_calibrates() -> None:
    model = hf.sparsify(tiny("llama"), alpha="calibrated", texts=[ids()], density=0.3)
    assert all(heads.learned for _, heads in sparse_heads(model))
    assert max(float(values.max()) for values in hf.alphas(model).values()) > 1.0


def test_pairs_for_encoder_decoders_and_saving(tmp_path: Path) -> None:
    model = hf.sparsify(tiny("bart"))
    pairs = [{"input_ids": torch.tensor([ids(9)]), "decoder_input_ids": torch.tensor([ids(6)])}]
    found = hf.calibrate(model, pairs, density=0.5)
    assert set(found.alphas) == set(hf.alphas(model))
    model.save_pretrained(tmp_path)
    again = hf.load(tmp_path)
    assert again.config.entformer["calibration"] == model.config.entformer["calibration"]
    with pytest.raises(ArgumentError, match="pairs"):
        hf.calibrate(model, [ids()])


def test_a_failed_calibration_changes_nothing() -> None:
    model = hf.sparsify(tiny("llama"), init=1.3)
    with pytest.raises(ArgumentError, match="tokenizer"):
        hf.calibrate(model, ["text"])
    base = hf.sparsify(tiny("vit"), init=1.3)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the model raises
        hf.calibrate(base, [{"pixel_values": torch.zeros(1)}])
    for one in (model, base):
        assert {round(float(v), 4) for values in hf.alphas(one).values() for v in values} == {1.3}
        assert all(parameter.requires_grad for parameter in one.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": 0.0}, "above 0"),
        ({"density": 0.1, "max_divergence": 0.1}, "one of them"),
        ({"cost": "mse"}, "choose one of"),
    ],
)
def test_arguments(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        hf.calibrate(tiny("llama"), [ids()], **arguments)


def test_densities_match_the_weights() -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.6)
    text = ids(20)
    found = hf.densities(model, [text])
    weights = model(torch.tensor([text]), output_attentions=True).attentions
    for own, layer in zip(found.values(), weights, strict=True):
        assert own.tolist() == pytest.approx(((layer[0] > 0).sum((1, 2)) / 210).tolist())


def test_texts_joined_into_longer_windows_are_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    model = hf.sparsify(tiny("llama"))
    texts = [ids(16) for _ in range(4)]
    hf.calibrate(model, texts, density=0.4, length=64, cost="js")  # a length that was chosen
    hf.calibrate(model, [ids(60)], density=0.4, cost="js")
    assert not recwarn
    with pytest.warns(
        UserWarning, match="4 texts with a mean length of 16 tokens are joined into windows of 64; .* length=16"
    ) as caught:
        hf.calibrate(model, texts, density=0.4, cost="js")
    assert caught[0].filename == __file__
