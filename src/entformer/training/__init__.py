"""Training: recipes, the loop, checkpoints and metrics of any `Task`. `train(recipe, out)` trains, or resumes, a run.

Names load on first use, so that reading and checking recipes does not import the trainer.
"""

import importlib
from typing import TYPE_CHECKING, Any

_HOME_OF = {
    "train": "entformer.tasks",
    "RunSummary": "entformer.training.summary",
    "Recipe": "entformer.training.recipe",
    "load_recipe": "entformer.training.recipe_file",
}
__all__ = ["Recipe", "RunSummary", "load_recipe", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'entformer.training' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


if TYPE_CHECKING:
    from entformer.training.recipe import Recipe as Recipe
    from entformer.training.recipe_file import load_recipe as load_recipe
    from entformer.training.summary import RunSummary as RunSummary
