"""The options of `entformer config`; its work is in `cli/config.py`, imported when it runs."""

from typing import Annotated

import typer

config_app = typer.Typer(help="Look at recipes: show, validate, diff, list.", no_args_is_help=True)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe: --set training.lr=1e-3. May be repeated."),
]


@config_app.callback()
def config() -> None:
    """Look at recipes: show, validate, diff, list."""


@config_app.command("show")
def config_show(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, a built-in name or a run folder.")],
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Print every value of a recipe, defaults and presets written out."""
    from entformer.cli.config import show

    show(recipe, settings or [], as_json=as_json)


@config_app.command("validate")
def config_validate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, a built-in name or a run folder.")],
    settings: Settings = None,
) -> None:
    """Check a recipe and the text it names. Exit code 2 and a line for every mistake if there are any."""
    from entformer.cli.config import validate

    raise typer.Exit(validate(recipe, settings or []))


@config_app.command("diff")
def config_diff(
    first: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, a built-in name or a run folder.")],
    second: Annotated[str, typer.Argument(metavar="RECIPE", help="What to compare it with.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Print where two recipes differ. Exit code 1 if they do."""
    from entformer.cli.config import diff

    raise typer.Exit(diff(first, second, as_json=as_json))


@config_app.command("list")
def config_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """List the recipes that come with entformer."""
    from entformer.cli.config import list_builtin

    list_builtin(as_json=as_json)
