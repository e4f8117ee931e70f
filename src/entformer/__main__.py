"""The `entformer` command, also as `python -m entformer`. The command line needs the application extras."""

import sys

_APP_MODULES = {
    *("typer", "rich", "matplotlib", "sentencepiece", "sacrebleu", "sacremoses", "safetensors"),
    *("pydantic", "yaml", "fastapi", "uvicorn", "pooch"),
}


def main() -> None:
    """Runs the command line, or names the extras to install if they are missing."""
    try:
        from entformer.cli.main import main as run

        run()
    except ModuleNotFoundError as err:
        if err.name is None or err.name.split(".")[0] not in _APP_MODULES:
            raise
        command = " ".join(["entformer", *sys.argv[1:2]])
        print(f"{command} needs the application extras ({err.name} is missing): pip install 'entformer[app]'", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
