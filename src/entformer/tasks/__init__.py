"""Tasks: what `train` can train a model for. `train(recipe, out)` trains, or resumes, a run of any of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from entformer.errors import ArgumentError
from entformer.tasks.language_modeling import open_language_modeling
from entformer.tasks.translation import open_translation
from entformer.training.recipe import RunRecipe
from entformer.training.recipe_file import load_recipe, refuse_ineffective
from entformer.training.setup import run_training
from entformer.training.summary import RunSummary

__all__ = ["train"]

OPENERS: dict[str, Callable[..., Any]] = {
    "translation": open_translation,
    "language_modeling": open_language_modeling,
}
"""The `task` of a recipe -> a function that opens its data and returns a `Task`."""


def train(
    recipe: RunRecipe | Path | str,
    out: Path | str | None = None,
    *,
    settings: Sequence[str] = (),
    resume_with_new_data: bool = False,
    threads: int | None = None,
    stop_after_minutes: float | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Trains a model, or resumes training it.

    Args:
        recipe: A recipe, a file, or the name of a built-in recipe.
        out: The run directory. Default: runs/NAME.
        settings: Changes to the recipe such as "training.lr=1e-3"; not together with a recipe object.
        resume_with_new_data: Resume even if the training data has changed; starts a new epoch.
        threads: Number of threads for torch and the kernels. Default: torch's.
        stop_after_minutes: Save and stop after this time; the same call later resumes.
        quiet: Write to RUN/train.log only.

    Returns:
        What was trained, the best checkpoint and its scores.

    Raises:
        ArgumentError: An argument or a setting is invalid, or contradicts the run to resume.
        DataError: The data or the run directory is damaged, or the data has changed.
    """
    if isinstance(recipe, RunRecipe):
        if settings:
            raise ArgumentError("settings apply to recipe files only; create the Recipe with these values instead.")
        refuse_ineffective(recipe)
    else:
        recipe = load_recipe(recipe, settings)
    return run_training(
        recipe,
        OPENERS[recipe.task],
        Path("runs") / recipe.name if out is None else Path(out),
        resume_with_new_data=resume_with_new_data,
        threads=threads,
        stop_after_minutes=stop_after_minutes,
        quiet=quiet,
    )
