"""Options that several commands share. Imports no torch, so that `--help` is fast."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory written by `entformer train`.")]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe file or name of a built-in recipe.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe value, e.g. --set training.steps=200. Repeatable."),
]
Checkpoint = Annotated[
    str,
    typer.Option("--checkpoint", metavar="NAME", help="Checkpoint to load: best, last, averaged, step-N, or a path."),
]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; 1 is greedy search.", show_default="from the run's recipe")]
LengthPenalty = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="Length penalty: average, gnmt or none.", show_default="from the run's recipe"),
]
LengthPenaltyAlpha = Annotated[
    float | None, typer.Option(metavar="A", help="Exponent of the length penalty.", show_default="from the run's recipe")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="Device: cpu, cuda, cuda:1, ...")]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.", show_default="PyTorch's")]
