"""Compares learned alphas with their initial values, and describes the result in a sentence.

Alphas are initialized at random and move slowly: after a short training the final alpha of a head depends mostly on its initial
one, not on what the head does. The correlation of the two measures how much.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from entformer.text.numbers import format_alpha, format_number

FEWEST = 3  # heads; two points always lie on a line
AT_BOUND = 1e-3  # averaging and rounding leave an alpha that stands at a bound this close to it
TAIL = 0.02  # so close to 1 or 2 the sigmoid passes on less than a tenth of the gradient it passes on in the middle
MEANINGS = (
    (0.7, "they tell where heads started more than what heads learned"),
    (0.3, "part of them is still the start"),
    (-1.1, "little of the start is left"),
)
MARKS = {
    "at 1": "at the bound 1, softmax",
    "at 2": "at the bound 2, sparsemax",
    "sigmoid tail": "in the tail of the sigmoid, where alpha hardly moves",
}

HeadId = tuple[str, int, int]  # attention type, layer, head


def initial_alphas(metrics: Iterable[dict[str, Any]]) -> dict[HeadId, float]:
    """Returns the alpha of every head before the first step; empty if training did not record it or learns none."""
    first = next((entry for entry in metrics if entry["kind"] == "alphas" and entry["step"] == 0), {})
    return {
        (attn_type, layer, head): float(alpha)
        for attn_type, layers in first.items()
        if isinstance(layers, list)
        for layer, heads in enumerate(layers)
        for head, alpha in enumerate(heads)
    }


def initial_correlation(initial: Mapping[HeadId, float], final: Mapping[HeadId, float]) -> dict[str, float | None] | None:
    """Computes the Pearson correlation of final with initial alphas, over "all" heads and per attention type.

    None without initial alphas. A value is None where there are fewer than three heads or all of them have the same alpha.
    """
    known = [head for head in initial if head in final]
    if not known:
        return None
    groups = {"all": known} | {attn_type: [head for head in known if head[0] == attn_type] for attn_type, _, _ in known}
    return {
        name: _correlation([initial[head] for head in group], [final[head] for head in group]) for name, group in groups.items()
    }


def alpha_marks(final: Mapping[HeadId, float], forms: Mapping[str, str]) -> dict[str, str]:
    """Returns the heads whose alpha is at a bound, or where it hardly moves: {"encoder.0.1": "at 1", "at 2" or "sigmoid tail"}.

    Args:
        final: The alpha of every head.
        forms: The parametrization of each attention type that learns its alpha.
    """
    found = {}
    for (attn_type, layer, head), alpha in final.items():
        distance, bound = min((alpha - 1.0, 1), (2.0 - alpha, 2))
        if forms.get(attn_type) == "projected" and distance < AT_BOUND:
            found[f"{attn_type}.{layer}.{head}"] = f"at {bound}"
        elif forms.get(attn_type) == "sigmoid" and distance < TAIL:
            found[f"{attn_type}.{layer}.{head}"] = "sigmoid tail"
    return found


def alpha_sentence(
    initial: Mapping[HeadId, float],
    final: Mapping[HeadId, float],
    forms: Mapping[str, str],
    *,
    step: int,
    target: str | None = None,
    reached: str | None = None,
) -> str | None:
    """Describes how final alphas relate to their initial values, which are at a bound, and the density targeted and reached.

    Args:
        initial, final: The alpha of every head; only heads with both count.
        forms: As in `alpha_marks`.
        step: Training steps between the two.
        target: The density target of training, as text.
        reached: The density reached and the text it was measured on, as text.

    Returns:
        A sentence; None if no initial alpha is known.
    """
    known = {place: final[place] for place in initial if place in final}
    if not known:
        return None
    starts = {initial[place] for place in known}
    by_type = initial_correlation(initial, final) or {}
    correlation = by_type.pop("all")
    span = f"between {format_alpha(min(known.values()))} and {format_alpha(max(known.values()))}"
    if len(known) < FEWEST:
        text = f"After {step:,} steps alphas lie {span}"
    elif len(starts) == 1:
        text = f"All alphas started at {format_alpha(next(iter(starts)))}; after {step:,} steps they lie {span}"
    elif correlation is None:
        text = f"After {step:,} steps alphas show nothing of their random initialization"
    else:
        shown = format_number(correlation, exact=(0.0, 1.0))
        meaning, own = _meaning(correlation), {name: value for name, value in by_type.items() if value is not None}
        listed = ""
        if len(by_type) > 1 and own:  # types that moved apart change the correlation over all heads
            values = ", ".join(f"{name} {format_number(value, exact=(0.0, 1.0))}" for name, value in own.items())
            listed = f" (by attention type: {values})"
            meaning = meaning if {_meaning(value) for value in own.values()} == {meaning} else "attention types differ"
        text = f"After {step:,} steps alphas correlate {shown} with their random initialization{listed}: {meaning}"
    marks = Counter(alpha_marks(known, forms).values())
    told = [
        f"{marks[mark]} of {len(known)} heads {'is' if marks[mark] == 1 else 'are'} {words}"
        for mark, words in MARKS.items()
        if mark in marks
    ]
    asked = ["the loss alone decided about sparsity"]
    if target is not None:
        asked = [f"training asked for a density (share of keys with nonzero weight) of {target}"]
        asked += [] if reached is None else [f"it is {reached}"]
    return "; ".join([text, *told, *asked]) + "."


def recent_gradients(metrics: Iterable[dict[str, Any]], upto: int) -> dict[str, Any] | None:
    """Returns dL/dalpha of every head over the last quarter of training.

    Args:
        metrics: The lines of metrics.jsonl.
        upto: The step of the weights; -1: the last one.

    Returns:
        {"steps", attention type: layers x heads x [mean, standard deviation over steps]}; None if it was not recorded.
    """
    entries = [entry for entry in metrics if entry["kind"] == "alpha_gradients" and (upto < 0 or entry["step"] <= upto)]
    entries = [entry for entry in entries if entry["step"] > 0.75 * entries[-1]["step"]]
    if not entries:
        return None
    steps = [entry["steps"] for entry in entries]
    found: dict[str, Any] = {"steps": sum(steps)}
    for attn_type in [key for key, value in entries[0].items() if isinstance(value, list) and not key.endswith("_std")]:
        means, spreads = (np.array([entry[f"{attn_type}{end}"] for entry in entries]) for end in ("", "_std"))
        mean = np.average(means, 0, steps)
        square = np.average(means**2 + spreads**2, 0, steps)
        found[attn_type] = np.stack([mean, np.sqrt(np.maximum(square - mean**2, 0.0))], -1).tolist()
    return found


def _meaning(correlation: float) -> str:
    return next(words for least, words in MEANINGS if correlation >= least)


def _correlation(initial: list[float], final: list[float]) -> float | None:
    if len(initial) < FEWEST or len(set(initial)) < 2 or len(set(final)) < 2:
        return None
    return min(max(statistics.correlation(initial, final), -1.0), 1.0)  # rounding may leave the interval
