"""How far learned alphas have come from where they started. In: metrics.jsonl, final alphas. Out: initial alphas, correlations.

Alphas start at random and move slowly: after a short training the final alpha of a head tells much about its initial one, and
little about what the head does. The correlation of the two tells how much.
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from entformer.text.numbers import format_number

FEWEST = 3  # heads; two points always lie on a line

Place = tuple[str, int, int]  # kind, layer, head


def initial_alphas(metrics: Iterable[dict[str, Any]]) -> dict[Place, float]:
    """The alpha of every head before the first update; empty if training did not write it down or learns none."""
    first = next((entry for entry in metrics if entry["kind"] == "alphas" and entry["step"] == 0), {})
    return {
        (kind, layer, head): float(alpha)
        for kind, layers in first.items()
        if isinstance(layers, list)
        for layer, heads in enumerate(layers)
        for head, alpha in enumerate(heads)
    }


def initial_correlation(initial: Mapping[Place, float], final: Mapping[Place, float]) -> dict[str, float | None] | None:
    """Pearson correlation of final with initial alphas, over "all" heads and over each kind; None without initial alphas.

    A value is None where there are fewer than three heads or all of them have one alpha.
    """
    known = [place for place in initial if place in final]
    if not known:
        return None
    groups = {"all": known} | {kind: [place for place in known if place[0] == kind] for kind, _, _ in known}
    return {
        name: _correlation([initial[place] for place in group], [final[place] for place in group])
        for name, group in groups.items()
    }


def correlation_text(correlation: float, updates: int) -> str:
    """What the correlation means, for places where alphas are read."""
    shown = format_number(correlation, exact=(0.0, 1.0))
    return (
        f"After {updates:,} updates final alphas correlate {shown} with their random initial values; "
        "near 1, alpha tells where a head started more than what it learned."
    )


def _correlation(initial: list[float], final: list[float]) -> float | None:
    if len(initial) < FEWEST or len(set(initial)) < 2 or len(set(final)) < 2:
        return None
    return statistics.correlation(initial, final)
