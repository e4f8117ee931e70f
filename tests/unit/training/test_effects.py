"""A setting that cannot take effect is an error with its place; defaults and recipes of runs are none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from entformer.errors import ArgumentError
from entformer.training import train
from entformer.training.recipe import Recipe
from entformer.training.recipe_file import RecipeError, builtin_recipes, load_recipe, saved_recipe, to_yaml

CORPUS = {"corpus": "multi30k"}
PREPARED = {"prepared": "data"}
FILES = {"train": ["a.en", "a.de"], "valid": ["b.en", "b.de"], "source_language": "en", "target_language": "de"}


def written(tmp_path: Path, data: dict[str, Any], **sections: Any) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump({"data": data, **sections}, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("base", "own", "sentence"),
    [
        (CORPUS, {"target_language": "fr"}, "the corpus multi30k brings its own languages and files (en-de)"),
        (CORPUS, {"valid": ["v.en", "v.de"]}, "the corpus multi30k brings its own languages"),
        (CORPUS, {"size": 100}, "only the corpus builtin can be shortened"),
        (CORPUS | {"subwords": "s.model"}, {"vocab_size": 1000}, "the vocabulary is that of"),
        ({"corpus": "builtin", "subwords": "s.model"}, {"seed": 2}, "the vocabulary is that of"),
        ({"corpus": "builtin"}, {"layout": "raw"}, "the built-in corpus comes with entformer"),
        ({"corpus": "builtin"}, {"from": "x"}, "the built-in corpus comes with entformer"),
        (FILES, {"layout": "raw"}, "only a named corpus has layouts"),
        (FILES, {"size": 100}, "only the corpus builtin"),
        (FILES, {"columns": [2, 3]}, "no text is a .tsv file"),
        (PREPARED, {"target_language": "fr"}, "the prepared directory"),
        (PREPARED, {"vocab_size": 32000}, "the prepared directory"),
        (PREPARED, {"tokenized": False}, "the prepared directory"),
        (PREPARED, {"valid": "v"}, "the prepared directory"),
    ],
    ids=str,
)
def test_data_that_cannot_take_effect(tmp_path: Path, base: dict[str, Any], own: dict[str, Any], sentence: str) -> None:
    [key] = own
    path = written(tmp_path, base | own)
    with pytest.raises(ArgumentError) as caught:
        load_recipe(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if text.startswith(f"  {key}:"))
    assert str(caught.value).startswith(f"{path}:{line}: data.{key} has no effect: {sentence}")
    load_recipe(written(tmp_path, base))


@pytest.mark.parametrize(
    ("sections", "place", "sentence"),
    [
        (
            {"model": {"attention": {"alpha": 1.5, "alpha_tied": "layer"}}},
            "model.attention.alpha_tied",
            "entmax with alpha 1.5",
        ),
        (
            {"model": {"cross": {"normalizer": "softmax", "alpha_init": 1.3}}},
            "model.cross.alpha_init",
            "softmax learns no alpha",
        ),
        ({"model": {"output_alpha": 1.2}}, "model.output_alpha", "the output is softmax"),
        (
            {"model": {"attention": {"normalizer": "softmax"}}, "training": {"alpha_lr_factor": 2.0}},
            "training.alpha_lr_factor",
            "no",
        ),
        ({"training": {"average": "none", "average_count": 3}}, "training.average_count", "average is none"),
        (
            {"decoding": {"length_penalty": "none", "length_penalty_alpha": 0.6}},
            "decoding.length_penalty_alpha",
            "length_penalty is none",
        ),
    ],
    ids=str,
)
def test_settings_that_cannot_take_effect(tmp_path: Path, sections: dict[str, Any], place: str, sentence: str) -> None:
    path = written(tmp_path, PREPARED, **sections)
    with pytest.raises(ArgumentError) as caught:
        load_recipe(path)
    assert f": {place} has no effect: {sentence}" in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_attention_for_no_kind_is_refused(tmp_path: Path) -> None:
    own = {kind: {"normalizer": "softmax"} for kind in ("encoder", "decoder", "cross")}
    with pytest.raises(ArgumentError, match="attention has no effect: encoder, decoder and cross each name their own"):
        load_recipe(written(tmp_path, PREPARED, model={"attention": {"alpha": 1.5}, **own}))


def test_a_value_for_all_kinds_needs_to_take_effect_in_one(tmp_path: Path) -> None:
    attention = {"normalizer": "entmax", "alpha": "learned", "alpha_init": 1.3}
    recipe = load_recipe(written(tmp_path, PREPARED, model={"attention": attention, "decoder": {"alpha": 1.5}}))
    assert (recipe.model.encoder.alpha_init, recipe.model.decoder.alpha) == (1.3, 1.5)


def test_a_setting_may_make_values_of_the_file_idle() -> None:
    settings = ["training.average=none", "model.attention.normalizer=softmax", "model.attention.alpha=null"]
    assert load_recipe("multi30k-entmax", settings).training.average == "none"
    assert load_recipe("multi30k-entmax", [f"model.{kind}.alpha=1.5" for kind in ("encoder", "decoder", "cross")])
    with pytest.raises(ArgumentError, match=r"^--set training\.average_count=3: training\.average_count has no effect"):
        load_recipe("multi30k-entmax", [*settings, "training.average_count=3"])


def test_recipes_made_in_python_are_checked_too(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"data": {"prepared": tmp_path, "vocab_size": 500}})
    with pytest.raises(ArgumentError, match=r"data\.vocab_size has no effect"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [*builtin_recipes()])
def test_resolved_recipes_hold_what_takes_effect_and_load(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(to_yaml(load_recipe(name)), encoding="utf-8")
    assert load_recipe(path).resolved() == load_recipe(name).resolved()


def test_runs_of_earlier_versions_load(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "recipe.yaml"
    old = {
        "data": {"prepared": "/data", "vocab_size": 32000, "max_length": 256, "train": [], "target_language": None},
        "decoding": {"beam": 4, "length_penalty": "gnmt", "alpha": 0.6},
    }
    path.write_text(yaml.safe_dump(old), encoding="utf-8")
    assert load_recipe(path).decoding.length_penalty_alpha == 0.6
    saved = saved_recipe(path)
    assert saved is not None
    assert "vocab_size" not in saved.resolved()["data"]
    assert saved.resolved()["decoding"] == {"beam": 4, "length_penalty": "gnmt", "length_penalty_alpha": 0.6}
    with pytest.raises(ArgumentError, match=r"--set data\.vocab_size=500: data\.vocab_size has no effect"):
        load_recipe(path, ["data.vocab_size=500"])


@pytest.mark.parametrize("positions", ["rotary", "alibi", "nape", "none"])
def test_settings_of_positions_reach_the_model_and_are_refused_elsewhere(positions: str) -> None:
    own = {"rotary": ["model.rotary_base=500"], "nape": ["model.nape_share=0.25"]}
    loaded = load_recipe("demo", [f"model.positions={positions}", *own.get(positions, [])])
    assert loaded.model.positions == positions
    assert (loaded.model.rotary_base == 500.0) == (positions == "rotary")
    for other, settings in own.items():
        if other != positions:
            with pytest.raises(RecipeError, match=f"positions are {positions}; leave it out, or set positions: {other}"):
                load_recipe("demo", [f"model.positions={positions}", *settings])
