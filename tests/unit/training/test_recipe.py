"""Recipes: every error names its location, a resolved recipe reads back the same, and all built-in recipes are valid."""

from pathlib import Path

import pytest
import yaml

from entformer.errors import ArgumentError
from entformer.training.recipe import Recipe
from entformer.training.recipe_file import (
    RecipeError,
    build,
    builtin_recipes,
    differences,
    load_recipe,
    saved_recipe,
)

GOOD = """\
name: trial
data:
  prepared: data
model:
  preset: tiny
  attention: {normalizer: entmax, alpha: learned}
  cross: {normalizer: softmax}
training:
  steps: 10
"""


def recipe_error(tmp_path: Path, text: str, *settings: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError) as caught:
        load_recipe(path, settings)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_presets_and_attention_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD, encoding="utf-8")
    recipe = load_recipe(path)
    assert (recipe.model.encoder_layers, recipe.model.width, recipe.model.dropout) == (4, 128, 0.3)
    assert recipe.model.encoder.alpha == "learned"
    assert recipe.model.cross.normalizer == "softmax"
    assert recipe.model_for(1234).vocab_size == 1234


def test_relative_paths_start_from_the_recipe_and_those_of_set_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = tmp_path / "a" / "recipe.yaml"
    path.write_text("data: {prepared: data}", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "b")
    assert load_recipe(path).data.prepared == tmp_path / "a" / "data"
    assert load_recipe(path, ["data.prepared=data"]).data.prepared == tmp_path / "b" / "data"
    named = load_recipe(path, ["data.corpus=multi30k", "data.from=https://example.org/x"])
    assert named.data.from_ == "https://example.org/x"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("  preset: tiny", "  preset: tiny\n  drop_out: 0.1"),
            "recipe.yaml:6: unknown key 'drop_out' in model; did you mean 'dropout'?",
        ),
        (("steps: 10", "stepz: 10"), "recipe.yaml:9: unknown key 'stepz' in training; did you mean 'steps'?"),
        (("steps: 10", "dropout: 0.1"), "recipe.yaml:9: unknown key 'dropout' in training; 'dropout' belongs in model."),
        (("training:", "trainings:"), "recipe.yaml:8: unknown key 'trainings' in the recipe; did you mean 'training'?"),
        (
            ("alpha: learned}", "alpha: learned, normalizr: rela}"),
            "recipe.yaml:6: unknown key 'normalizr' in model.attention; did you mean 'normalizer'?",
        ),
        (("steps: 10", "steps: 0"), "recipe.yaml:9: training.steps must be greater than or equal to 1, not 0."),
        (("steps: 10", "steps: ten"), "recipe.yaml:9: training.steps must be an integer, not 'ten'."),
        (("preset: tiny", "preset: huge"), "recipe.yaml:4: model: there is no preset 'huge'; choose base, small, tiny, micro."),
        (("preset: tiny", "vocab_size: 5"), "recipe.yaml:4: model: vocab_size belongs in data: the subwords decide it."),
        (("preset: tiny", "width: 130\n  heads: 4"), "recipe.yaml:4: model: width 130 must be a multiple of heads 4."),
        (("prepared: data", "max_length: 3"), "recipe.yaml:2: data: no training text"),
        (("prepared: data", "train: [a, b]"), "recipe.yaml:2: data: train needs valid"),
        (("steps: 10", "steps: 10\n  steps: 11"), "recipe.yaml:10: duplicate key 'steps'."),
        (("steps: 10", "steps: [10"), "recipe.yaml:10: invalid YAML"),
        ((GOOD, "- 1"), "recipe.yaml:1: a recipe must be a mapping"),
        (("steps: 10", "validate_beam: 0"), "recipe.yaml:8: training: metric is bleu but validate_beam is 0"),
    ],
    ids=lambda value: value[1].split("\n")[-1].strip() if isinstance(value, tuple) else "",
)
def test_an_error_names_its_line(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    assert recipe_error(tmp_path, GOOD.replace(*change)).startswith(sentence)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("training.stepz=3", "--set training.stepz=3: unknown key 'stepz' in training; did you mean 'steps'?"),
        ("training.steps=abc", "--set training.steps=abc: training.steps must be an integer, not 'abc'."),
        ("training.steps=1.5", "--set training.steps=1.5: training.steps must be an integer, not 1.5."),
        ("training.lr=fast", "--set training.lr=fast: training.lr must be a number, not 'fast'."),
        ("training.device=gpu", "--set training.device=gpu: training.device must be auto, cpu, cuda or cuda:N, not 'gpu'."),
        (
            "model.attention.alpha=x",
            "--set model.attention.alpha=x: model.attention.alpha must be a number or 'learned', not 'x'.",
        ),
        (
            "training.density_target=1.5",
            "--set training.density_target=1.5: training.density_target must be less than 1, not 1.5.",
        ),
        (
            "training.density_target={cross: x}",
            "--set training.density_target={cross: x}: training.density_target.cross must be a number, not 'x'.",
        ),
        ("training.lr", "--set training.lr: write it as section.key=value"),
        ("name.x=1", "--set name.x=1: 'name' is a value without keys."),
        ("training.steps=[", "--set training.steps=[: the value is not valid YAML"),
    ],
)
def test_an_error_in_set_names_the_option(tmp_path: Path, setting: str, sentence: str) -> None:
    assert recipe_error(tmp_path, GOOD, setting).startswith(sentence)


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(ArgumentError, match=r"there is no recipe 'multi30k-entmaxx'; did you mean 'multi30k-entmax'\?"):
        load_recipe("multi30k-entmaxx")
    with pytest.raises(ArgumentError, match=r"^nowhere/x\.yaml: there is no such file\.$"):
        load_recipe("nowhere/x.yaml")
    with pytest.raises(ArgumentError, match=r"^nofile\.toml: there is no such file; a recipe is a YAML file or a name of"):
        load_recipe("nofile.toml")


def test_every_builtin_recipe_is_valid_and_named() -> None:
    names = builtin_recipes()
    assert {"demo", "wmt14-en-de-rela", *(f"multi30k-{name}" for name in ("softmax", "entmax15", "entmax", "rela"))} <= set(
        names
    )
    for name in names:
        assert load_recipe(name).name == name


def test_a_builtin_recipe_is_a_data_file_with_an_attention_file_merged_into_it() -> None:
    data, attention = builtin_recipes()["multi30k-entmax"]
    merged = yaml.safe_load(data.read_text(encoding="utf-8"))
    for section, own in yaml.safe_load(attention.read_text(encoding="utf-8")).items():
        merged[section] |= own
    assert build({**merged, "name": "multi30k-entmax"}, {}, "here") == load_recipe("multi30k-entmax")
    # The published ReLA model has settings of its own: a complete file takes precedence over a composed recipe.
    (complete,) = builtin_recipes()["wmt14-en-de-rela"]
    assert complete.name == "wmt14-en-de-rela.yaml"
    with pytest.raises(ArgumentError, match=r"^--set training\.lr=fast: training\.lr must be a number, not 'fast'"):
        load_recipe("multi30k-entmax", ["training.lr=fast"])


def test_all_errors_are_listed_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("prepared: data", "prepared: data\n  vocab_size: 500")
    text = text.replace("steps: 10", "stepz: 10\n  lr: fast\n  seed: -1")
    text += "decoding: {beam: 0}\n"
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, ["training.warmup=-3"])
    told = [problem.removeprefix(f"{path}:") for problem in caught.value.problems]
    assert sorted(problem.split(": ")[0] for problem in told) == ["--set training.warmup=-3", "10", "11", "12", "13", "4"]
    assert told[0].startswith("10: unknown key 'stepz' in training; did you mean 'steps'?")
    assert told[-1].startswith("4: data.vocab_size has no effect")
    assert str(caught.value).startswith("6 errors: ")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("text/train", ["text/train"]),
        ("[text/train]", ["text/train"]),
        ("pairs.tsv.gz", ["pairs.tsv.gz"]),
        ("a.en,b.de", ["a.en,{}/b.de"]),
        ("[a.en, b.de]", ["a.en", "b.de"]),
        ("[one, two, three]", ["one", "two", "three"]),
    ],
)
def test_a_recipe_names_text_as_prep_does(tmp_path: Path, given: str, names: list[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data:\n  train: {given}\n  valid: v\n  source_language: en\n  target_language: de\n",
        encoding="utf-8",
    )
    assert list(load_recipe(path).data.train) == [f"{tmp_path}/{name.format(tmp_path)}" for name in names]


def test_a_text_that_is_no_name_is_explained(tmp_path: Path) -> None:
    data = "data: {train: 5, valid: {a: b}, source_language: en, target_language: de}"
    told = recipe_error(tmp_path, data)
    assert "recipe.yaml:1: data.train: give a prefix (data/train for data/train.en and data/train.de)" in told
    assert "data.valid: give a prefix" in told
    assert "tuple" not in told


def test_an_unknown_corpus_is_an_error(tmp_path: Path) -> None:
    assert "there is no corpus 'multi30'; known are builtin, multi30k" in recipe_error(tmp_path, "data: {corpus: multi30}")
    told = recipe_error(tmp_path, "data: {corpus: multi30k, layout: bpe}")
    assert "the corpus multi30k has no layout 'bpe'; it has raw and tok" in told


def test_the_old_name_of_the_length_penalty_exponent_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD + "decoding: {alpha: 0.6}\n", encoding="utf-8")
    assert load_recipe(path).decoding.length_penalty_alpha == 0.6
    assert "alpha is the old name" in recipe_error(tmp_path, GOOD + "decoding: {alpha: 0.6, length_penalty_alpha: 0.7}\n")


def test_recipes_learn_projected_alphas_and_run_folders_keep_what_they_were_written_with(tmp_path: Path) -> None:
    assert load_recipe("demo").model.cross.alpha_parametrization == "projected"
    assert load_recipe("wmt14-en-de-entmax").model.cross.alpha_parametrization == "sigmoid"  # as published
    mixed = load_recipe("demo", ["model.cross.normalizer=softmax", "model.encoder.alpha_parametrization=sigmoid"]).model
    assert (mixed.encoder.alpha_parametrization, mixed.decoder.alpha_parametrization) == ("sigmoid", "projected")
    assert Recipe.model_validate({"data": {"corpus": "builtin"}}).model.encoder.alpha_parametrization == "projected"
    assert load_recipe("demo", ["model.attention.alpha_init=1"]).model.cross.alpha_init == 1.0  # which the sigmoid cannot reach

    written = load_recipe("demo").resolved()
    for kind in ("encoder", "decoder", "cross"):  # as versions wrote it that knew no other form
        del written["model"][kind]["alpha_parametrization"]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    (tmp_path / "checkpoints").mkdir()
    saved = saved_recipe(path)
    assert saved is not None
    assert saved.model.encoder.alpha_parametrization == "sigmoid"
    assert load_recipe(path).model.encoder.alpha_parametrization == "sigmoid"
    assert differences(saved.resolved(), load_recipe("demo").resolved()).keys() == {
        f"model.{kind}.alpha_parametrization" for kind in ("encoder", "decoder", "cross")
    }
