"""Annealing changes alphas and scales alone: the divergence falls while the density stays."""

import pytest
import torch

from entformer import hf
from entformer.errors import ArgumentError

from .tiny_models import tiny


def test_the_divergence_falls_at_the_same_density() -> None:
    model = hf.sparsify(tiny("llama"))
    texts = torch.randint(3, 90, (3, 40), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ArgumentError, match="calibrate"):
        hf.anneal(model, texts)
    hf.calibrate(model, texts[:1], density=0.3, length=40, cost="js")
    weights = {key: value.clone() for key, value in model.state_dict().items() if "entmax_norm" not in key}
    dense = {name: values == 1.0 for name, values in hf.alphas(model).items()}
    path = hf.anneal(model, texts, density=0.3, steps=12, length=40)
    assert sum(path[-3:]) < sum(path[:3])
    assert hf.density(model, texts, length=40) == pytest.approx(0.3, abs=0.04)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights.items())
    assert all(torch.equal(hf.alphas(model)[name] == 1.0, own) for name, own in dense.items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_fixed_alphas_stay_fixed_afterwards() -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    hf.anneal(model, [list(range(3, 20))], steps=1, length=17)
    assert not any(heads.learned for _, heads in hf.heads.sparse_heads(model))


def test_the_loss_on_the_text_falls_if_it_counts() -> None:
    """A text of few tokens, which the random model does not expect: its loss falls further than by the divergence alone."""
    text = torch.randint(3, 8, (1, 48), generator=torch.Generator().manual_seed(0))
    losses = {}
    for text_loss in (0.0, 1.0):
        model = hf.sparsify(tiny("llama"))
        hf.calibrate(model, text, density=0.4, length=48, cost="js")
        path = hf.anneal(model, text, density=0.4, steps=16, length=48, text_loss=text_loss)
        assert len(path) == 16
        with torch.no_grad():
            losses[text_loss] = float(model(input_ids=text, labels=text).loss)
    assert losses[1.0] < losses[0.0] - 0.01


def test_the_loss_of_an_encoder_needs_labels() -> None:
    model = hf.sparsify(tiny("bert"), init=1.5)
    ids = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ArgumentError, match="labels"):
        hf.anneal(model, [ids], steps=1, length=12, text_loss=0.5)
    before = hf.alphas(model)
    hf.anneal(model, [{"input_ids": ids, "labels": ids}], steps=1, length=12, text_loss=0.5)
    assert any(not torch.equal(values, before[name]) for name, values in hf.alphas(model).items())


@pytest.mark.parametrize("arguments", [{"steps": 0}, {"lr": 0.0}, {"density": 1.0}, {"text_loss": 1.5}])
def test_arguments(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        hf.anneal(hf.sparsify(tiny("llama"), init=1.5), [[3, 4, 5]], **arguments)
