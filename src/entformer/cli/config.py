"""`entformer config`: shows, checks and compares recipes without training."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from entformer.cli.options import Json, Settings

app = typer.Typer(help="Show, check and compare recipes.", no_args_is_help=True)

RecipeOrRun = Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe file, name of a built-in recipe, or run directory.")]


@app.command()
def show(
    recipe: RecipeOrRun,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Print every value of a recipe, including defaults and presets."""
    from entformer.training.recipe_file import load_recipe, to_yaml

    loaded = load_recipe(_resolve(recipe), settings or [])
    print(json.dumps(loaded.resolved(), indent=1) if as_json else to_yaml(loaded).rstrip("\n"))


@app.command()
def validate(recipe: RecipeOrRun, settings: Settings = None) -> None:
    """Check a recipe and the text files it names. Prints one line per error and exits with code 2 if there are any."""
    from entformer.training.recipe_file import RecipeError, load_recipe

    try:
        load_recipe(_resolve(recipe), settings or [], check_texts=True)
    except RecipeError as err:
        for problem in err.problems:
            print(f"entformer: {' '.join(problem.split())}", file=sys.stderr)
        raise typer.Exit(2) from err
    print(f"{recipe}: valid")


@app.command()
def diff(
    first: RecipeOrRun,
    second: Annotated[str, typer.Argument(metavar="OTHER", help="Recipe to compare it with.")],
    as_json: Json = False,
) -> None:
    """Print the differences between two recipes. Exits with code 1 if there are any."""
    import yaml

    from entformer.training.recipe_file import differences, load_recipe

    def shown(value: object) -> str:
        return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...").strip()

    changed = differences(load_recipe(_resolve(first)).resolved(), load_recipe(_resolve(second)).resolved())
    if as_json:
        print(json.dumps({key: list(values) for key, values in changed.items()}, indent=1))
    else:
        for key, (before, after) in changed.items():
            print(f"{key}: {shown(before)} -> {shown(after)}")
    if changed:
        raise typer.Exit(1)


@app.command("list")
def list_recipes(as_json: Json = False) -> None:
    """List the built-in recipes and the normalizers that a recipe can use."""
    from entformer.nn.normalizers import NORMALIZERS
    from entformer.training.recipe_file import builtin_titles

    titles = builtin_titles()
    if as_json:
        print(json.dumps(titles, indent=1))
        return
    for name, title in titles.items():
        print(f"{name:24} {title}")
    print("\nValues of model.attention.normalizer (s: scores of a query over n keys):")
    for entry in NORMALIZERS.values():
        options = f"; options: {', '.join(entry.options)}" if entry.options else ""
        print(f"{entry.name:24} {entry.about}{options}")


def _resolve(recipe: str) -> Path:
    """Returns the recipe.yaml of a run directory, anything else as it is."""
    path = Path(recipe)
    return path / "recipe.yaml" if (path / "recipe.yaml").is_file() else path
