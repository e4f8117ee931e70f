"""Checks whether a run can be resumed with the current recipe and data.

Settings in `ALLOWED_ON_RESUME` may change: more steps, logging, the location of the data. Other changes raise an error, because
no recipe would describe the run.
"""

import dataclasses
from typing import Any, TypeVar

import yaml

from entformer.checkpoint.folder import RunFolder
from entformer.errors import ArgumentError, DataError
from entformer.files import read_json
from entformer.training.recipe import Recipe, RunRecipe
from entformer.training.recipe_file import differences, saved_recipe
from entformer.training.task import Task

AnyRecipe = TypeVar("AnyRecipe", bound=RunRecipe)

ALLOWED_ON_RESUME = {
    "name",
    "data.from",  # the fingerprint of the data is compared instead
    "data.prepared",
    *(
        f"training.{key}"
        for key in (
            "steps",
            "epochs",
            "patience",
            "validate_every",
            "validate_beam",
            "save_minutes",
            "keep_last",
            "keep_best",
            "average",
            "average_count",
            "log_every",
            "tensorboard",
            "device",
            "parallel",
            "checkpoint_activations",
            "timeout_minutes",
            "log_batches",
        )
    ),
    "length.eval_lengths",
    "length.sequences",
    "decoding.beam",
    "decoding.length_penalty",
    "decoding.length_penalty_alpha",
}


def as_begun(folder: RunFolder, recipe: AnyRecipe) -> AnyRecipe:
    """Returns the recipe, with the sigmoid form of alpha if the run began when there was no other: a run keeps its form."""
    saved = saved_recipe(folder.recipe, type(recipe))
    if not isinstance(recipe, Recipe) or saved is None:
        return recipe
    if "alpha_parametrization" in folder.recipe.read_text(encoding="utf-8"):
        return recipe
    kinds = recipe.model.kinds.items()
    forms: dict[str, Any] = {kind: dataclasses.replace(own, alpha_parametrization="sigmoid") for kind, own in kinds}
    return recipe.model_copy(update={"model": dataclasses.replace(recipe.model, **forms)})


def changes(folder: RunFolder, recipe: RunRecipe) -> list[str]:
    """Returns the allowed changes since the run began, as text; raises ArgumentError for others."""
    if not folder.recipe.is_file():
        return []
    try:
        before: Any = yaml.safe_load(folder.recipe.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:
        raise DataError(
            f"{folder.recipe} is damaged ({' '.join(str(problem).split())}); put it back from a copy, or give another --out."
        ) from problem
    if not isinstance(before, dict):
        raise DataError(f"{folder.recipe} is damaged; give another --out.")
    saved = saved_recipe(folder.recipe, type(recipe))  # in today's form, whichever version wrote it
    changed = differences(before if saved is None else saved.resolved(), recipe.resolved())
    bad = [key for key in changed if key not in ALLOWED_ON_RESUME]
    if "training.steps" in changed and recipe.training.schedule in ("linear", "cosine"):
        bad.append("training.steps")  # these schedules end at the last step, so all rates so far would have been others
    if bad:
        raise ArgumentError(
            f"the run in {folder.path} began with another recipe: {_listed(bad, changed)}. "
            "Restore the old value to resume, or start a new run with another --out."
        )
    return [_listed([key], changed) for key in changed]


def _listed(keys: list[str], changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} {_shown(changed[key][0])} -> {_shown(changed[key][1])}" for key in keys)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def same_data(folder: RunFolder, task: Task[Any], *, allow_new: bool) -> bool:
    """Returns whether the data are those the run began with.

    Raises:
        DataError: The data differ and `allow_new` is False.
    """
    if not folder.model.is_file() or folder.latest() is None:
        return True
    before = read_json(folder.model).get("data_fingerprint")
    if task.fingerprint == before:
        return True
    if not allow_new:
        raise DataError(
            f"the data changed since the run in {folder.path} began (fingerprint {before} then, "
            f"{task.fingerprint} now); add --resume-with-new-data to resume with the new data from the start of an epoch."
        )
    return False
