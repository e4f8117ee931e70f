"""Compares learned alphas with their initial values.

Alphas are initialized at random and move slowly: after a short training the final alpha of a head depends mostly on its initial
one, not on what the head does. The correlation of the two measures how much.
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from entformer.text.numbers import format_number

FEWEST = 3  # heads; two points always lie on a line

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


def correlation_text(correlation: float, steps: int) -> str:
    """Explains the correlation."""
    shown = format_number(correlation, exact=(0.0, 1.0))
    return (
        f"After {steps:,} steps final alphas correlate {shown} with their random initial values; "
        "near 1, alpha shows where a head started rather than what it learned."
    )


def _correlation(initial: list[float], final: list[float]) -> float | None:
    if len(initial) < FEWEST or len(set(initial)) < 2 or len(set(final)) < 2:
        return None
    return statistics.correlation(initial, final)
