"""What the explorer shows of a training, while it runs too: losses, validations, alphas and density from metrics.jsonl."""

import time
from typing import Any

import yaml
from pydantic import BaseModel, Field

from entformer.analysis.history import alpha_paths, metrics_of
from entformer.checkpoint import RunFolder

MOST_POINTS = 400  # of a curve

Curve = list[tuple[int, float]]


class TrainingAnswer(BaseModel):
    """A training as far as it is written."""

    step: int = Field(default=0, description="The last step with a log entry.")
    steps: int | None = Field(default=None, description="The number of steps in the recipe; null if it is not known.")
    seconds_ago: float | None = Field(default=None, description="When metrics.jsonl was last written; null if there is none.")
    loss: Curve = Field(default=[], description="(step, training loss)")
    validation_loss: Curve = Field(default=[], description="(step, validation loss)")
    bleu: Curve = Field(default=[], description="(step, validation BLEU); empty for language models.")
    density: Curve = Field(default=[], description="(step, mean density of all heads); empty without learned alphas.")
    alpha_steps: list[int] | None = Field(default=None, description="The steps of `alpha_paths`.")
    alpha_paths: dict[str, list[list[list[float]]]] | None = Field(
        default=None, description="Attention type -> layers, heads, steps."
    )


def read_training(folder: RunFolder) -> TrainingAnswer:
    """Reads metrics.jsonl and recipe.yaml of a run."""
    metrics = metrics_of(folder.metrics)
    steps, paths = alpha_paths(metrics, -1)
    return TrainingAnswer(
        step=max((entry["step"] for entry in metrics), default=0),
        steps=_planned_steps(folder),
        seconds_ago=round(time.time() - folder.metrics.stat().st_mtime, 1) if folder.metrics.is_file() else None,
        loss=_curve(metrics, "train", "loss"),
        validation_loss=_curve(metrics, "valid", "loss"),
        bleu=_curve(metrics, "valid", "bleu"),
        density=_thin([(entry["step"], _mean(entry)) for entry in metrics if entry["kind"] == "densities"]),
        alpha_steps=steps,
        alpha_paths=paths,
    )


def _curve(metrics: list[dict[str, Any]], kind: str, name: str) -> Curve:
    return _thin([(entry["step"], entry[name]) for entry in metrics if entry["kind"] == kind and entry.get(name) is not None])


def _thin(points: Curve) -> Curve:
    """Returns at most `MOST_POINTS` and the last point."""
    return [*points[: -1 : -(-len(points) // MOST_POINTS)], *points[-1:]] if points else []


def _mean(entry: dict[str, Any]) -> float:
    values = [head for heads in entry.values() if isinstance(heads, list) for layer in heads for head in layer]
    return float(sum(values)) / max(len(values), 1)


def _planned_steps(folder: RunFolder) -> int | None:
    try:
        return int(yaml.safe_load(folder.recipe.read_text(encoding="utf-8"))["training"]["steps"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return None
