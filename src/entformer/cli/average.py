"""`entformer average`: the mean of a run's checkpoints, written to RUN/averaged/model.safetensors."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from entformer.checkpoint.average import (
    average_checkpoints,
    best_checkpoints,
    last_checkpoints,
    points_to_average,
    worth_averaging,
)
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.errors import ArgumentError, DataError
from entformer.training.recipe_file import saved_recipe

USUAL = 5


def run(path: Path, *, last: int | None, best: int | None, names: Sequence[str], as_json: bool) -> None:
    """Average the named checkpoints; if none are named, those of the last five that are worth averaging."""
    if sum(option is not None for option in (last, best)) + bool(names) > 1:
        raise ArgumentError("give one of --last, --best and --checkpoint.")
    folder = RunFolder(path)
    if not folder.model.is_file():
        raise DataError(f"{path} is not a run of entformer: it has no model.json.")
    chosen = [folder.checkpoint(name) for name in names] or _choose(folder, last, best)
    if not chosen:
        raise DataError(f"{path} has no {'validated' if best is not None else 'complete'} checkpoint to average.")
    warmup = _warmup(folder)
    early = [checkpoint.name for checkpoint in chosen if checkpoint.step <= warmup]
    if early:
        warnings.warn(
            f"{', '.join(early)} was saved during warm-up ({warmup} updates); such weights spoil an average.", stacklevel=2
        )
    was_best = points_to_average(folder)
    written = average_checkpoints(folder, [checkpoint.name for checkpoint in chosen])
    averaged = [checkpoint.name for checkpoint in chosen]
    if as_json:
        print(json.dumps({"averaged": str(written), "checkpoints": averaged}))
        return
    print(f"{written}: the mean of {', '.join(averaged)}")
    if was_best:
        print("it replaces the average that training had chosen as best; best is the best checkpoint again.")
    print(f"it has not been validated; compare: entformer score --run {path} --test-set valid --which averaged")


def _choose(folder: RunFolder, last: int | None, best: int | None) -> list[Checkpoint]:
    """The checkpoints by number. A number that the user gave is taken as it is."""
    if best is not None:
        return best_checkpoints(folder, best)
    chosen = last_checkpoints(folder, last or USUAL)
    if last is not None or not chosen:
        return chosen
    step = chosen[-1].step
    return worth_averaging(chosen, center=step, step=step, warmup=_warmup(folder)) or chosen[-1:]


def _warmup(folder: RunFolder) -> int:
    """Updates of warm-up of the run; 0 if its recipe cannot be read."""
    recipe = saved_recipe(folder.recipe)
    return 0 if recipe is None else recipe.training.warmup
