"""The `entformer` command: the table of subcommands, error messages and exit codes.

Exit codes: 0 success, 1 failure, 2 user error. Each subcommand is one function in its own file; it imports torch when it runs,
so that `--help` is fast.
"""

import sys
import warnings
from typing import Annotated, Any

import typer

from entformer import __version__
from entformer.cli import bench, config, longctx
from entformer.cli.average import average
from entformer.cli.convert import convert
from entformer.cli.demo import demo
from entformer.cli.doctor import doctor
from entformer.cli.explore import explore
from entformer.cli.generate import generate
from entformer.cli.prep import prep
from entformer.cli.report import report
from entformer.cli.score import score
from entformer.cli.train import train
from entformer.cli.translate import translate
from entformer.errors import EntformerError, RunFailed

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (demo, prep, train, translate, generate, score, average, convert, report, explore):
    app.command()(_command)
app.add_typer(longctx.app, name="longctx")
app.add_typer(bench.app, name="bench")
app.command()(doctor)
app.add_typer(config.app, name="config")


def _print_version(requested: bool) -> None:
    if requested:
        print(f"entformer {__version__}")
        raise typer.Exit()


@app.callback()
def _entformer(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error; valid after any subcommand.")
    ] = False,
) -> None:
    """Adaptively sparse attention for PyTorch: alpha-entmax with a learned alpha per head."""


def _hide_flag_types(command: Any, parent: Any = None) -> None:
    """Makes `--help` list flags without a type, which would look as if they took a value."""
    context = command.context_class(command, parent=parent, **command.context_settings)
    for param in command.get_params(context):
        if getattr(param, "is_flag", False):
            param.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _hide_flag_types(subcommand, context)


def main() -> None:
    """Runs the command line. Errors are one line on stderr; --debug prints the traceback."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    debug = "--debug" in sys.argv
    # --debug may come after the subcommand, where users add it when a command has just failed.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        command = typer.main.get_command(app)
        _hide_flag_types(command)
        command(args=arguments, prog_name="entformer")
    except Exception as err:
        if debug:
            raise
        expected = isinstance(err, EntformerError)
        message = str(err) if expected else f"{type(err).__name__}: {err} (run again with --debug for the traceback)"
        print(f"entformer: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2 if expected and not isinstance(err, RunFailed) else 1)


if __name__ == "__main__":
    main()
