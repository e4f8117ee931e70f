"""Reads the training history of a run directory: settings, scores with signatures, the path of every alpha."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from entformer.analysis.alphas import (
    HeadId,
    alpha_marks,
    alpha_sentence,
    initial_alphas,
    initial_correlation,
    recent_gradients,
)
from entformer.checkpoint import RunFolder
from entformer.checkpoint.average import AVERAGED
from entformer.files import read_json
from entformer.models.config import Seq2SeqConfig
from entformer.models.lm_config import LMConfig
from entformer.text.numbers import format_number
from entformer.training.metrics import metrics_of as metrics_of

MOST_STEPS = 240  # of an alpha's path; more than a figure can show
VALIDATED = (("BLEU", "bleu", 1), ("chrF", "chrf", 1), ("perplexity", "perplexity", 2), ("bits per byte", "bits_per_byte", 3))
"""Scores of a validation: their names, their keys in metrics.jsonl, and the decimals to show."""

SPLITS = {"train": "the training text", "valid": "the validation text", "test": "the test text"}


def settings_of(folder: RunFolder) -> dict[str, Any]:
    """Returns the recipe, or model.json without one, flat: {"model.heads": 4, ...}."""
    recipe = folder.recipe
    content = yaml.safe_load(recipe.read_text(encoding="utf-8")) if recipe.is_file() else read_json(folder.model)
    return dict(_flat(content, "")) if isinstance(content, dict) else {}


def _flat(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{name}.{key}" if name else str(key))]
    return [(name, ", ".join(map(str, map(_shared, value))) if isinstance(value, list) else _shared(value))]


def _shared(value: Any) -> Any:
    """Returns a setting as it may be shared: of an absolute path the name only."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def learned_alphas_of(
    folder: RunFolder,
    config: Seq2SeqConfig | LMConfig,
    final: Mapping[HeadId, float],
    step: int,
    *,
    densities: Mapping[HeadId, float] | None = None,
    data_name: str = "",
) -> dict[str, Any]:
    """Returns how the alphas of a run were learned, for `report` and `explore`.

    Args:
        folder: The run.
        config: The configuration of its model.
        final: The alpha of every head.
        step: The step of these weights.
        densities: The density of every head on a text; by default the last one that training recorded.
        data_name: Of that text, or of a split of the data of the run.

    Returns:
        The keys of `report_data` that begin with "alpha_".
    """
    metrics = metrics_of(folder.metrics)
    steps, paths = alpha_paths(metrics, step)
    initial = initial_alphas(metrics)
    forms = {attn_type: own.alpha_parametrization for attn_type, own in config.kinds.items() if own.learned}
    asked = "training.density_target"  # or one for each attention type, training.density_target.encoder
    targets = [(name.removeprefix(asked), value) for name, value in settings_of(folder).items() if name.startswith(asked)]
    targets = [(attn_type, value) for attn_type, value in targets if value]
    target = " and ".join(f"{value}{attn_type.replace('.', ' in ')}" for attn_type, value in targets)
    if densities is None:
        densities, data_name = recorded_densities(metrics, step), "a sample of the training data"
    reached = []
    for attn_type, _ in targets:
        own = [value for (name, *_), value in densities.items() if name in forms and attn_type in ("", f".{name}")]
        reached += [f"{format_number(sum(own) / len(own))}{attn_type.replace('.', ' in ')}"] if own else []
    return {
        "alpha_steps": steps,
        "alpha_paths": paths,
        "alpha_correlation": initial_correlation(initial, final),
        "alpha_marks": alpha_marks(final, forms),
        "alpha_gradients": recent_gradients(metrics, step),
        "alpha_sentence": alpha_sentence(
            initial,
            final,
            forms,
            step=step,
            target=target or None,
            reached=f"{' and '.join(reached)} on {SPLITS.get(data_name, data_name)}" if reached else None,
        ),
    }


def recorded_densities(metrics: list[dict[str, Any]], upto: int) -> dict[HeadId, float]:
    """Returns the density of every head that training last recorded up to a step; -1: the last one."""
    entries = [entry for entry in metrics if entry["kind"] == "densities" and (upto < 0 or entry["step"] <= upto)]
    return {
        (attn_type, layer, head): float(value)
        for attn_type, layers in (entries[-1] if entries else {}).items()
        if isinstance(layers, list)
        for layer, heads in enumerate(layers)
        for head, value in enumerate(heads)
    }


def validation_scores(folder: RunFolder, metrics: list[dict[str, Any]], step: int, which: str = "best") -> list[dict[str, Any]]:
    """Returns the validation scores of the weights `which`, with their signatures.

    Args:
        folder: The run.
        metrics: The lines of its metrics.jsonl.
        step: The step of the weights.
        which: "best", "last", "averaged" or a checkpoint; "best" may be the averaged weights, as recorded in best.json.

    Returns:
        {"name", "value", "digits", "signature", "about"} of BLEU, chrF, perplexity and bits per byte, of those that there
        are; empty if these weights were never validated.
    """
    averaged = which == AVERAGED or (which == "best" and _read(folder.path / "best.json").get("checkpoint") == AVERAGED)
    event = "averaged" if averaged else "valid"
    known = (entry for entry in reversed(metrics) if entry["kind"] == event and entry["step"] == step)
    kept = _read(folder.averaged / "average.json").get("validation") if averaged else None
    entry = kept if isinstance(kept, dict) else next(known, {})
    about = "on the validation set, on which these weights were selected" if which == "best" else "on the validation set"
    return [
        {
            "name": f"validation {name}",
            "value": value,
            "digits": digits,
            "signature": entry.get("signature") if key == "bleu" else None,
            "about": about,
        }
        for name, key, digits in VALIDATED
        if isinstance(value := entry.get(key), int | float)
    ]


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def alpha_paths(metrics: list[dict[str, Any]], upto: int) -> tuple[list[int] | None, dict[str, Any] | None]:
    """Returns steps, and attention type -> layers -> heads -> alpha at every step (Fig. 2); None if no alpha has changed.

    `upto`: the step of the weights in the report.
    """
    entries = [entry for entry in metrics if entry["kind"] == "alphas" and (upto < 0 or entry["step"] <= upto)]
    attn_types = [key for key, value in (entries[0] if entries else {}).items() if isinstance(value, list)]
    if len(entries) < 2 or not any(entries[0][name] != entries[-1].get(name) for name in attn_types):
        return None, None
    thin = -(-len(entries) // MOST_STEPS)
    kept = [*entries[:-1:thin], entries[-1]]
    paths = {name: np.moveaxis(np.array([entry[name] for entry in kept]), 0, -1).tolist() for name in attn_types}
    return [entry["step"] for entry in kept], paths
