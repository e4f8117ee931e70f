"""`entformer config`: look at recipes without training. In: a file, a built-in name or a run folder. Out: text or JSON."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from entformer.nn.normalizers import NORMALIZERS
from entformer.training.recipe_file import RecipeError, builtin_titles, differences, load_recipe, to_yaml


def show(recipe: str, settings: Sequence[str], *, as_json: bool) -> None:
    """Every value of the recipe, defaults and presets written out."""
    loaded = load_recipe(_file(recipe), settings)
    print(json.dumps(loaded.resolved(), indent=1) if as_json else to_yaml(loaded), end="\n" if as_json else "")


def validate(recipe: str, settings: Sequence[str]) -> int:
    """Print a word if the recipe is right, else every mistake with its place on a line of its own; return the exit code."""
    try:
        load_recipe(_file(recipe), settings, check_texts=True)
    except RecipeError as err:
        for problem in err.problems:
            print(f"entformer: {' '.join(problem.split())}", file=sys.stderr)
        return 2
    print(f"{recipe}: no mistakes.")
    return 0


def diff(first: str, second: str, *, as_json: bool) -> int:
    """Where two recipes differ, and exit code 1 if they do, as diff does."""
    changed = differences(load_recipe(_file(first)).resolved(), load_recipe(_file(second)).resolved())
    if as_json:
        print(json.dumps({key: list(values) for key, values in changed.items()}, indent=1))
    else:
        for key, (before, after) in changed.items():
            print(f"{key}: {_shown(before)} -> {_shown(after)}")
    return 1 if changed else 0


def list_builtin(*, as_json: bool) -> None:
    """The recipes that come with entformer, with the first line of each; without --json, the normalizers a recipe can name."""
    titles = builtin_titles()
    if as_json:
        print(json.dumps(titles, indent=1))
    else:
        for name, title in titles.items():
            print(f"{name:24} {title}")
        print("\nmodel.attention.normalizer, s the scores of a query over n keys:")
        for entry in NORMALIZERS.values():
            chosen = f"; options: {', '.join(entry.options)}" if entry.options else ""
            print(f"{entry.name:24} {entry.about}{chosen}")


def _file(recipe: str) -> Path:
    """A run folder stands for its recipe.yaml."""
    path = Path(recipe)
    return path / "recipe.yaml" if (path / "recipe.yaml").is_file() else Path(recipe)


def _shown(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...").strip()
