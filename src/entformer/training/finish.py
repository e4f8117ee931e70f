"""Averages checkpoints at the end of training and points `best` to the better of the average and the best checkpoint.

Both are validated with the same settings: translations with the beam of `decoding`. The result is stored in
RUN/averaged/average.json, so that a finished run that is started again does not repeat it.
"""

from collections.abc import Callable, Mapping
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
from entformer.models.attention_settings import AttentionModel
from entformer.training.metrics import Metrics
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.state import Progress
from entformer.training.summary import Choice
from entformer.training.task import Results, Task, metric_value, rank_value

Evaluate = Callable[[AttentionModel, str, Mapping[str, Any]], Results | None]  # model, name of the file of outputs, settings


def finish(
    folder: RunFolder,
    config: TrainingConfig,
    task: Task[Any],
    progress: Progress,
    model: AttentionModel,
    *,
    ranks: Ranks,
    evaluate: Evaluate,
    say: Callable[[str], None],
    metrics: Metrics | None,
) -> tuple[Results | None, Choice | None]:
    """Averages checkpoints and points `best` to the better of the average and the best checkpoint.

    Args:
        folder: The run.
        config: Its settings; `average` is "last" or "best".
        task: What is trained.
        progress: Where training stands, with the ranking of its validations.
        model: Takes the weights that are validated.
        ranks: The processes, of which each must call this: they share the validations. Process 0 writes the files.
        evaluate: Validates the model with its current weights; returns None if training was interrupted.
        say: Called with one line of progress at a time.
        metrics: Where the validation of the average is written.

    Returns:
        The validation of the average and the comparison; None for what does not exist.
    """
    if not progress.best:  # every validated checkpoint was damaged and set aside
        return None, None
    chosen = ranks.share(_chosen(folder, config, progress) if ranks.first else None)
    if len(chosen) < 2:
        say(
            f"nothing to average: {len(chosen)} of the kept checkpoints lie after warm-up and within 1/{REACH} of the run; "
            "a smaller training.validate_every makes more of them."
        )
        return None, None
    names = [checkpoint.name for checkpoint in chosen]
    step, ranked = progress.best[0]
    best, settings, metric = folder.checkpoint(str(step)), task.eval_settings(ranked), task.metric
    record = folder.averaged / "average.json"
    compared = {"checkpoint": best.name, "metric": metric, **settings}
    known = ranks.share(_recorded(record, names, compared) if ranks.first else None)
    if known is not None:
        found, checkpoint_value = known
    else:
        evaluated = _evaluate_best(best, ranked, settings, task, model, evaluate, say)
        if evaluated is None:
            return None, None
        checkpoint_value = evaluated
        load_weights(ranks.share(average_checkpoints(folder, names) if ranks.first else None, patient=True), model)
        averaged = evaluate(model, "averaged", settings)
        if averaged is None:
            return None, None
        found = averaged
        say(f"average of {len(names)} checkpoints ({names[0]} to {names[-1]}){_shown(settings)}: {task.summarize(found)}")
        if ranks.first:
            write_json(record, {**read_json(record), "validation": found, "compared": {**compared, "value": checkpoint_value}})
        if metrics is not None:
            metrics.write("averaged", progress.step, **found)
    value = rank_value(task, found)
    choice = Choice(
        metric=metric,
        settings=settings,
        checkpoint=best.name,
        checkpoint_value=metric_value(task, checkpoint_value),
        averaged_value=metric_value(task, value),
        averaged_from=tuple(names),
        better="averaged" if value > checkpoint_value else "checkpoint",
    )
    if not ranks.first:
        return found, choice
    if choice.better == "averaged":
        pointer = {"checkpoint": AVERAGED, "step": chosen[-1].step, "metric": metric, "value": choice.averaged_value}
        write_json(folder.path / "best.json", pointer)
    else:
        folder.set_pointer("best", best, metric=metric, value=metric_value(task, ranked))
    return found, choice


def _recorded(record: Path, names: list[str], compared: dict[str, Any]) -> tuple[Results, float] | None:
    """Reads the validation of this average and the checkpoint's value; None if average.json lacks them or is damaged."""
    try:
        facts = read_json(record)
        if facts["checkpoints"] != names or not facts["compared"].items() >= compared.items():
            return None
        return dict(facts["validation"]), float(facts["compared"]["value"])
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return None


def compared_with(folder: RunFolder) -> str | None:
    """Returns the name of the checkpoint that the average was compared with, if any."""
    record = folder.averaged / "average.json"
    compared = (read_json(record) if record.is_file() else {}).get("compared")
    return compared.get("checkpoint") if isinstance(compared, dict) else None


def _chosen(folder: RunFolder, config: TrainingConfig, progress: Progress) -> list[Checkpoint]:
    if config.average == "best":
        candidates, center = best_checkpoints(folder, config.average_count), progress.best[0][0]
    else:
        candidates = last_checkpoints(folder, config.average_count)
        center = candidates[-1].step if candidates else progress.step
    return worth_averaging(candidates, center=center, step=progress.step, warmup=config.warmup)


def _evaluate_best(
    best: Checkpoint,
    ranked: float,
    settings: Mapping[str, Any],
    task: Task[Any],
    model: AttentionModel,
    evaluate: Evaluate,
    say: Callable[[str], None],
) -> float | None:
    """Returns the best checkpoint's value with these settings; None if training was interrupted."""
    if task.metric in ("loss", "accuracy") or settings == task.eval_settings():  # the first two depend on no setting
        return ranked
    load_weights(best.weights, model)
    found = evaluate(model, "best", settings)
    if found is None:
        return None
    say(f"best checkpoint ({best.name}){_shown(settings)}: {task.summarize(found)}")
    return rank_value(task, found)


def _shown(settings: Mapping[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in settings.items())
