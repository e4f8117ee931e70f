"""Averages checkpoints at the end of training and points `best` to the better of the average and the best checkpoint.

Both are validated with the beam of `decoding`. The result is stored in RUN/averaged/average.json, so that a finished run that
is started again does not repeat it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from entformer.checkpoint.average import (
    AVERAGED,
    REACH,
    average_checkpoints,
    best_checkpoints,
    last_checkpoints,
    worth_averaging,
)
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.checkpoint.weights import load_weights
from entformer.errors import DataError
from entformer.files import read_json, write_json
from entformer.models.seq2seq import Seq2Seq
from entformer.training.metrics import Metrics
from entformer.training.recipe import Recipe
from entformer.training.state import Progress
from entformer.training.summary import Choice, Validation, as_read, describe

MIN_SCORE = 1.0  # BLEU and chrF below which a wide beam is not worth its time

Evaluate = Callable[[int, str], Validation | None]  # beam, name of the file of translations


def finish(
    folder: RunFolder,
    recipe: Recipe,
    progress: Progress,
    model: Seq2Seq,
    *,
    evaluate: Evaluate,
    say: Callable[[str], None],
    metrics: Metrics | None,
) -> tuple[Validation | None, Choice | None]:
    """Averages checkpoints and points `best` to the better of the average and the best checkpoint.

    Args:
        folder: The run.
        recipe: Its recipe; `training.average` is "last" or "best".
        progress: Where training stands, with the ranking of its validations.
        model: Takes the weights that are validated.
        evaluate: Validates the model with its current weights; returns None if training was interrupted.
        say: Called with one line of progress at a time.
        metrics: Where the validation of the average is written.

    Returns:
        The validation of the average and the comparison; None for what does not exist.
    """
    if not progress.best:  # every validated checkpoint was damaged and set aside
        return None, None
    chosen = _chosen(folder, recipe, progress)
    if len(chosen) < 2:
        say(
            f"nothing to average: {len(chosen)} of the kept checkpoints lie after warm-up and within 1/{REACH} of the run; "
            "a smaller training.validate_every makes more of them."
        )
        return None, None
    names = [checkpoint.name for checkpoint in chosen]
    step, ranked = progress.best[0]
    best, beam, metric = folder.checkpoint(str(step)), _beam(recipe, ranked), recipe.training.metric
    record = folder.averaged / "average.json"
    settings = {"checkpoint": best.name, "metric": metric, "beam": beam}
    known = _recorded(record, names, settings)
    if known is not None:
        found, checkpoint_value = known
    else:
        evaluated = _evaluate_best(best, ranked, beam, recipe, model, evaluate, say)
        if evaluated is None:
            return None, None
        checkpoint_value = evaluated
        load_weights(average_checkpoints(folder, names), model)
        averaged = evaluate(beam, "averaged.txt")
        if averaged is None:
            return None, None
        found = averaged
        say(f"average of {len(names)} checkpoints ({names[0]} to {names[-1]}), beam {beam}: {describe(found)}")
        write_json(
            record, {**read_json(record), "validation": vars(found), "compared": {**settings, "value": checkpoint_value}}
        )
        if metrics is not None:
            metrics.write("averaged", progress.step, **vars(found))
    value = found.value(metric)
    choice = Choice(
        metric=metric,
        beam=beam,
        checkpoint=best.name,
        checkpoint_value=as_read(metric, checkpoint_value),
        averaged_value=as_read(metric, value),
        averaged_from=tuple(names),
        better="averaged" if value > checkpoint_value else "checkpoint",
    )
    if choice.better == "averaged":
        pointer = {"checkpoint": AVERAGED, "step": chosen[-1].step, "metric": metric, "value": choice.averaged_value}
        write_json(folder.path / "best.json", pointer)
    else:
        folder.set_pointer("best", best, metric=metric, value=as_read(metric, ranked))
    return found, choice


def _recorded(record: Path, names: list[str], settings: dict[str, Any]) -> tuple[Validation, float] | None:
    """Reads the validation of this average and the checkpoint's value; None if average.json lacks them or is damaged."""
    try:
        facts = read_json(record)
        if facts["checkpoints"] != names or not facts["compared"].items() >= settings.items():
            return None
        return Validation(**facts["validation"]), float(facts["compared"]["value"])
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return None


def compared_with(folder: RunFolder) -> str | None:
    """Returns the name of the checkpoint that the average was compared with, if any."""
    record = folder.averaged / "average.json"
    compared = (read_json(record) if record.is_file() else {}).get("compared")
    return compared.get("checkpoint") if isinstance(compared, dict) else None


def _chosen(folder: RunFolder, recipe: Recipe, progress: Progress) -> list[Checkpoint]:
    config = recipe.training
    if config.average == "best":
        candidates, center = best_checkpoints(folder, config.average_count), progress.best[0][0]
    else:
        candidates = last_checkpoints(folder, config.average_count)
        center = candidates[-1].step if candidates else progress.step
    return worth_averaging(candidates, center=center, step=progress.step, warmup=config.warmup)


def _beam(recipe: Recipe, ranked: float) -> int:
    """Returns the beam of `decoding`, or the narrower one of the validations if the best score is below MIN_SCORE."""
    is_low = recipe.training.metric in ("bleu", "chrf") and ranked < MIN_SCORE
    return min(recipe.training.validate_beam, recipe.decoding.beam) if is_low else recipe.decoding.beam


def _evaluate_best(
    best: Checkpoint, ranked: float, beam: int, recipe: Recipe, model: Seq2Seq, evaluate: Evaluate, say: Callable[[str], None]
) -> float | None:
    """Returns the best checkpoint's value with this beam; None if training was interrupted."""
    metric = recipe.training.metric
    if metric in ("loss", "accuracy") or beam == recipe.training.validate_beam:
        return ranked
    load_weights(best.weights, model)
    found = evaluate(beam, "best.txt")
    if found is None:
        return None
    say(f"best checkpoint ({best.name}), beam {beam}: {describe(found)}")
    return found.value(metric)
