"""Recipes of the papers: ReLA's published figures, its ablations and the baselines train; runs of earlier versions resume."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from entformer.checkpoint.folder import RunFolder
from entformer.cli.config import list_recipes
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.normalizers import NORMALIZERS
from entformer.training.recipe_file import builtin_recipes, load_recipe
from entformer.training.resume import as_begun, changes

TINY = [f"model.{key}={value}" for key, value in {"encoder_layers": 1, "decoder_layers": 2, "width": 16, "hidden": 16}.items()]
TINY += ["model.heads=4"]
SPAN = "{normalizer: adaptive_span, options: {max_span: 64}}"


def test_the_published_rela_recipe() -> None:
    recipe = load_recipe("wmt14-en-de-rela")
    model, training, decoding = recipe.model, recipe.training, recipe.decoding
    assert (model.encoder_layers, model.decoder_layers, model.heads, model.width, model.hidden) == (6, 6, 8, 512, 2048)
    assert (model.norm, model.label_smoothing) == ("post", 0.1)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.1, 0.1)
    for attention in model.kinds.values():
        assert (attention.normalizer, attention.output_norm, attention.output_norm_per_head) == ("rela", "gated", False)
    assert training.tokens * training.accumulate == 25_000
    assert (training.warmup, training.steps, training.schedule, training.clip) == (4000, 300_000, "inverse_sqrt", None)
    assert training.lr == pytest.approx(1.0 / math.sqrt(512 * 4000))  # noam with a factor of 1
    assert (training.betas, training.eps) == ((0.9, 0.98), 1e-8)
    assert (training.average, training.average_count) == ("last", 5)
    assert (decoding.beam, decoding.length_penalty, decoding.length_penalty_alpha) == (4, "gnmt", 0.6)
    assert (recipe.data.vocab_size, recipe.data.max_length) == (32_000, 256)


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("wmt14-en-de-rela", []),
        ("wmt14-en-de-rela", ["model.attention.output_norm=none"]),
        ("wmt14-en-de-rela", ["model.attention={normalizer: relu2, output_norm: init}"]),
        ("wmt14-en-de-rela", ["model.attention={normalizer: softmax, output_norm: gated}"]),
        ("multi30k-softmax", ["model.attention={normalizer: softmax_temperature, temperature: 0.5}"]),
        ("multi30k-softmax", ["model.attention={normalizer: topk, options: {k: 3}}"]),
        ("multi30k-softmax", ["model.decoder.normalizer=stickbreaking"]),
        ("multi30k-softmax", [f"model.encoder={SPAN}", f"model.decoder={SPAN}"]),
        ("multi30k-softmax", ["model.attention={normalizer: ssmax, scaling_init: 0.43}"]),
        ("multi30k-softmax", ["model.attention={normalizer: asentmax, scaling_init: paper}", "model.positions=nape"]),
        ("multi30k-softmax", ["model.attention={normalizer: entmax15, scaling: ssmax}"]),
        ("multi30k-softmax", ["model.attention={normalizer: entmax, alpha_tied: across_kinds}"]),
    ],
    ids=str,
)
def test_baselines_and_ablations_are_chosen_in_a_recipe(recipe: str, settings: list[str]) -> None:
    model = Seq2Seq(load_recipe(recipe, [*TINY, *settings]).model_for(20)).train()
    tokens = torch.randint(4, 20, (6, 9), generator=torch.Generator().manual_seed(0))
    model(tokens, tokens).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_all_recipes_and_normalizers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    list_recipes(as_json=False)
    said = capsys.readouterr().out
    for name in (*builtin_recipes(), *NORMALIZERS):
        assert f"\n{name} " in f"\n{said}", name


# ---- runs of before --------------------------------------------------------------------------------------------------------


def without_new_keys(resolved: dict[str, Any]) -> dict[str, Any]:
    """A recipe.yaml as it was written when only ReLA had a norm: `rela_norm` in every kind, and none of the later keys."""
    for kind in ("encoder", "decoder", "cross"):
        attention = resolved["model"][kind]
        norm = "gated"  # the default then, whatever the normalizer
        kept = {
            key: attention[key] for key in ("normalizer", "alpha", "alpha_tied", "alpha_init", "backend") if key in attention
        }
        resolved["model"][kind] = kept | {"rela_norm": norm, "rela_per_head": False}
    for key in ("nape_slopes", "nape_share"):
        resolved["model"].pop(key, None)
    return resolved


@pytest.mark.parametrize("name", ["multi30k-entmax", "multi30k-rela"])
def test_a_run_of_before_goes_on(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(without_new_keys(recipe.resolved())), encoding="utf-8")
    assert changes(RunFolder(tmp_path), as_begun(RunFolder(tmp_path), recipe)) == []
    unsaid = load_recipe(name, ["model.attention.output_norm=null"])  # it is gated for ReLA and none for entmax, said or not
    assert changes(RunFolder(tmp_path), as_begun(RunFolder(tmp_path), unsaid)) == []
    with pytest.raises(ArgumentError, match=r"model\.cross\.output_norm"):
        changes(RunFolder(tmp_path), load_recipe(name, ["model.cross.output_norm=init"]))
