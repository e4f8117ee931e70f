"""The `entformer` command. In: arguments. Out: an exit code, 0 fine, 1 something failed, 2 the user can mend it.

This file holds the table of commands and their options; each command's work is in its own file, imported when it runs, so that
`entformer --help` is there at once and does not wait for torch.
"""

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from entformer import __version__
from entformer.cli import bench, commands_analysis, commands_longcontext, commands_translation
from entformer.errors import EntformerError, RunFailed

app = typer.Typer(
    help="Adaptively sparse attention for PyTorch: alpha-entmax with a learned alpha per head.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line. One sentence on stderr when something goes wrong; the traceback only with --debug."""
    warnings.formatwarning = _one_sentence
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    # --debug may stand anywhere, also after the command, where people add it when a command has just failed.
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        app(args=arguments, prog_name="entformer")
    except Exception as problem:
        if debug:
            raise
        expected = isinstance(problem, EntformerError)
        what = str(problem) if expected else f"{type(problem).__name__}: {problem}"
        advice = "" if expected else " (run again with --debug for the traceback)"
        print(f"entformer: {' '.join(what.split())}{advice}", file=sys.stderr)
        sys.exit(2 if expected and not isinstance(problem, RunFailed) else 1)


def _one_sentence(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"entformer {__version__}")
        raise typer.Exit()


@app.callback()
def top(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")] = False,
) -> None:
    """Adaptively sparse attention for PyTorch: alpha-entmax with a learned alpha per head."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for models and report; made if missing.")] = Path("entformer-demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train both models anew instead of using what is there.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Twenty updates only: shows that everything works; the models know nothing yet.")
    ] = False,
) -> None:
    """See what alpha-entmax does, train and compare two translation models, and report on their heads. Minutes, no network.

    Run it again to go on after Ctrl-C, or to see the results of finished models once more.
    """
    from entformer.cli.demo import run

    raise typer.Exit(run(out, fresh=fresh, quick=quick))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show what runs on this machine and why, and test it. Exit code 1 if the self-test fails."""
    from entformer.cli.doctor import run

    raise typer.Exit(run(as_json=as_json))


app.add_typer(commands_translation.app)
app.add_typer(commands_analysis.app)
app.add_typer(bench.app, name="bench")
app.add_typer(commands_longcontext.app, name="longctx")

if __name__ == "__main__":
    main()
