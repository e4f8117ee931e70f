"""`entformer average`: averages checkpoints of a run into RUN/averaged/model.safetensors."""

import json
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from entformer.cli.options import Json, Run
from entformer.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from entformer.checkpoint.folder import Checkpoint, RunFolder

USUAL = 5


def average(
    run: Run,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Average the last N checkpoints.", show_default="5")
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Average the N checkpoints that validated best; training.keep_best keeps them."),
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Average this checkpoint, e.g. step-1000. Repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Average the weights of several checkpoints into RUN/averaged."""
    from entformer.checkpoint.average import average_checkpoints, points_to_average
    from entformer.checkpoint.folder import RunFolder
    from entformer.training.recipe_file import saved_recipe

    names = checkpoint or []
    if sum(option is not None for option in (last, best)) + bool(names) > 1:
        raise ArgumentError("give one of --last, --best and --checkpoint.")
    folder = RunFolder(run)
    folder.check()
    recipe = saved_recipe(folder.recipe)
    warmup = 0 if recipe is None else recipe.training.warmup
    chosen = [folder.checkpoint(name) for name in names] or _choose(folder, last, best, warmup)
    if not chosen:
        raise DataError(f"{run} has no {'validated' if best is not None else 'complete'} checkpoint to average.")
    early = [one.name for one in chosen if one.step <= warmup]
    if early:
        warnings.warn(
            f"{', '.join(early)} was saved during warmup ({warmup} steps); such weights degrade the average.", stacklevel=2
        )
    was_best = points_to_average(folder)
    averaged = [one.name for one in chosen]
    written = average_checkpoints(folder, averaged)
    if as_json:
        print(json.dumps({"averaged": str(written), "checkpoints": averaged}))
        return
    print(f"{written}: the mean of {', '.join(averaged)}")
    if was_best:
        print("It replaces the average that training selected as best; best is now the best checkpoint.")
    print(f"It has not been validated; to compare it: entformer score --run {run} --test-set valid --checkpoint averaged")


def _choose(folder: "RunFolder", last: int | None, best: int | None, warmup: int) -> "list[Checkpoint]":
    """Returns the checkpoints by number; without a number, those of the last five that are late enough to average."""
    from entformer.checkpoint.average import best_checkpoints, last_checkpoints, worth_averaging

    if best is not None:
        return best_checkpoints(folder, best)
    chosen = last_checkpoints(folder, last or USUAL)
    if last is not None or not chosen:
        return chosen
    step = chosen[-1].step
    return worth_averaging(chosen, center=step, step=step, warmup=warmup) or chosen[-1:]
