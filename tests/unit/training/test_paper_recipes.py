"""Recipes of the papers: the published figures of ReLA's set-up, its ablations and the baselines, each trained a few steps."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from entformer.checkpoint.folder import RunFolder
from entformer.cli.config import list_recipes
from entformer.data.batch import Batch
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.normalizers import NORMALIZERS
from entformer.training.recipe_file import builtin_recipes, load_recipe
from entformer.training.resume import as_begun, changes

TINY = [f"model.{key}={value}" for key, value in {"encoder_layers": 1, "decoder_layers": 2, "width": 16, "hidden": 16}.items()]
TINY += ["model.heads=4"]
ATTENTION = "model.attention."


def batch_of(rows: int = 6, length: int = 9, vocabulary: int = 20) -> Batch:
    """Copying: BOS 2, EOS 3, words from 4 on."""
    words = torch.randint(4, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    end = torch.full((rows, 1), 3)
    source = torch.cat([words, end], 1)
    target = torch.cat([torch.full((rows, 1), 2), words, end], 1)
    lengths = torch.full((rows,), length + 1)
    return Batch(source, target, lengths, lengths, tuple(range(rows)))


def losses_of(recipe: str, *settings: str, steps: int = 6) -> tuple[Seq2Seq, list[float]]:
    """Train the recipe's model, made tiny, on one batch."""
    loaded = load_recipe(recipe, [*TINY, *settings])
    torch.manual_seed(0)
    model = Seq2Seq(loaded.model_for(20)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=loaded.training.betas, eps=loaded.training.eps)
    batch, losses = batch_of(), []
    for _ in range(steps):
        sums = model.loss(batch)
        optimizer.zero_grad()
        (sums.loss / sums.tokens).backward()
        optimizer.step()
        losses.append(float(sums.loss.detach()) / sums.tokens)
    return model, losses


# ---- ReLA ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "norm"),
    [
        ("rela", "none"),
        ("rela", "rms"),
        ("rela", "gated"),
        ("relu2", "init"),
        ("gelu", "rms"),
        ("leaky_relu", "none"),
        ("softmax", "gated"),
    ],
)
def test_ablations_of_rela_train(activation: str, norm: str) -> None:
    settings = (f"{ATTENTION}normalizer={activation}", f"{ATTENTION}output_norm={norm}")
    model, losses = losses_of("wmt14-en-de-rela", *settings)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    norms = [attention.norm for _, _, attention in model.attention_layers()]
    assert all((part is None) == (norm == "none") for part in norms)
    assert all(part is None or part.variant == norm for part in norms)
    assert isinstance(model.encoder_norm, torch.nn.Identity)  # post-norm


# ---- baselines -------------------------------------------------------------------------------------------------------------

BASELINES: dict[str, list[str]] = {
    "softmax1": [f"{ATTENTION}normalizer=softmax1"],
    "temperature": [f"{ATTENTION}normalizer=softmax_temperature"],
    "fixed temperature": [f"{ATTENTION}normalizer=softmax_temperature", f"{ATTENTION}temperature=0.5"],
    "adaptive temperature": [f"{ATTENTION}normalizer=adaptive_temperature"],
    "top-k": [f"{ATTENTION}normalizer=topk", f"{ATTENTION}options.k=3"],
    "stick-breaking": ["model.decoder.normalizer=stickbreaking"],
    "adaptive span": [
        f"model.{kind}={{normalizer: adaptive_span, options: {{max_span: 64}}}}" for kind in ("encoder", "decoder")
    ],
    "SSMax": [f"{ATTENTION}normalizer=ssmax", f"{ATTENTION}scaling_init=0.43"],
    "ASEntmax": [f"{ATTENTION}normalizer=asentmax", f"{ATTENTION}scaling_init=paper", "model.positions=nape"],
    "ASEntmax, gamma 1": [f"{ATTENTION}normalizer=asentmax", f"{ATTENTION}scaling_gamma=1"],
    "entmax with SSMax": [f"{ATTENTION}normalizer=entmax15", f"{ATTENTION}scaling=ssmax"],
    "alpha of the model": [f"{ATTENTION}normalizer=entmax", f"{ATTENTION}alpha_tied=model"],
    "alphas across kinds": [f"{ATTENTION}normalizer=entmax", f"{ATTENTION}alpha_tied=across_kinds"],
}


@pytest.mark.parametrize("settings", BASELINES.values(), ids=BASELINES.keys())
def test_baselines_train_from_a_recipe(settings: list[str]) -> None:
    _, losses = losses_of("multi30k-softmax", *settings)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


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
        del resolved["model"][key]
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
