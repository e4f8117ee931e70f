"""Positions, length scaling and tied alphas: set in a recipe, they reach the layers of decoders and of encoder-decoders."""

from typing import Any

import pytest
import torch

from entformer.models.lm import CausalLM
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.scaling import ASEntmaxScaling, SSMaxScaling
from entformer.training.lm_recipe import LMRecipe
from entformer.training.recipe_file import RecipeError, load_recipe

SIZES = {"lm-demo": ("layers=2",), "demo": ("encoder_layers=2", "decoder_layers=2")}
KINDS = {"lm-demo": ["decoder"], "demo": ["encoder", "decoder", "cross"]}


def layers_of(name: str, *settings: str) -> list[tuple[str, int, MultiheadAttention]]:
    """The attention layers of the model of a recipe, with other settings of its model."""
    sizes = (*SIZES[name], "heads=4", "width=16", "hidden=16")
    recipe = load_recipe(name, [f"model.{setting}" for setting in (*sizes, *settings)])
    torch.manual_seed(0)
    config: Any = recipe.model_for(50)
    model = CausalLM(config) if isinstance(recipe, LMRecipe) else Seq2Seq(config)
    return list(model.attention_layers())


@pytest.fixture(params=["lm-demo", "demo"])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize(
    ("settings", "slopes"),
    [
        (["positions=nape"], [1.0, 0.5, 0.0, 0.0]),
        (["positions=nape", "nape_share=0.25", "nape_slopes=exponential"], [1.0, 0.0, 0.0, 0.0]),
        (["positions=alibi"], [0.25, 0.0625, 0.015625, 0.00390625]),
        (["positions=none"], None),
        (["positions=sinusoidal"], None),
    ],
)
def test_positions(name: str, settings: list[str], slopes: list[float] | None) -> None:
    for kind, _, attention in layers_of(name, *settings):
        found = attention.slopes
        expected = None if kind == "cross" else slopes  # cross attention has no positions
        assert (None if found is None else found.tolist()) == expected
        assert attention.rotary is None


def test_rotary_positions_and_their_base(name: str) -> None:
    for kind, _, attention in layers_of(name, "positions=rotary", "rotary_base=500"):
        assert (attention.rotary is None) == (kind == "cross")
        assert attention.rotary is None or attention.rotary.base == 500.0


@pytest.mark.parametrize(("start", "mean"), [("paper", 1.0), ("0.43", 0.43)])
def test_the_start_of_ssmax(name: str, start: str, mean: float) -> None:
    for _, _, attention in layers_of(
        name, "attention.normalizer=ssmax", "attention.alpha=null", f"attention.scaling_init={start}"
    ):
        assert isinstance(attention.scaling, SSMaxScaling)
        assert attention.scaling.s.mean().item() == pytest.approx(mean, abs=0.03)  # drawn with a spread of 0.01


@pytest.mark.parametrize("start", ["paper", "identity"])
@pytest.mark.parametrize("gamma", [None, 2.0])
def test_the_start_and_gamma_of_asentmax(name: str, start: str, gamma: float | None) -> None:
    settings = ["attention.normalizer=asentmax", "attention.alpha=null", f"attention.scaling_init={start}"]
    settings += [] if gamma is None else [f"attention.scaling_gamma={gamma}"]
    for _, _, attention in layers_of(name, *settings):
        scaling = attention.scaling
        assert isinstance(scaling, ASEntmaxScaling)
        assert (scaling.init, scaling.fixed_gamma) == (start, gamma)
        assert (scaling.gamma is None) == (gamma is not None)
        assert (scaling.beta.weight.std() > 0.0) == (start == "paper")


@pytest.mark.parametrize("tied", ["head", "layer", "kind", "across_kinds", "model"])
def test_tied_alphas(name: str, tied: str) -> None:
    if name == "lm-demo" and tied == "across_kinds":
        with pytest.raises(RecipeError, match="a decoder has one attention type"):
            layers_of(name, f"attention.alpha_tied={tied}")
        return
    found = layers_of(name, f"attention.alpha_tied={tied}")
    alphas = torch.stack([attention.alphas for _, _, attention in found])  # type: ignore[misc]  # all have some
    kinds = len(KINDS[name])
    different = {"head": 8 * kinds, "layer": 2 * kinds, "kind": kinds, "across_kinds": 8, "model": 1}[tied]
    assert len(alphas.unique()) == different
    assert [kind for kind, layer, _ in found if layer == 0] == KINDS[name]
