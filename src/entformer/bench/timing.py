"""Times several functions fairly. In: named functions. Out: their laps, and a `Timing` of one against another.

Machines drift: clocks change, neighbours wake up. So the functions take turns, and every lap is divided by the baseline's
lap of the same round before the median is taken. The first function of a round moves along from round to round, so that
none always runs on the caches of the same predecessor.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long one function took, alone and against the baseline."""

    seconds: float
    """Median of the rounds."""
    ratio: float
    """Median over the rounds of its time divided by the baseline's time in the same round."""
    ratio_low: float
    """Lower quartile of that ratio."""
    ratio_high: float
    """Upper quartile of that ratio."""
    rounds: int
    """How many rounds were timed."""


def take_turns(
    functions: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 2,
    limits: Mapping[str, int] | None = None,
) -> dict[str, list[float]]:
    """Run every function once a round; the seconds each took, round by round.

    `limits` holds slow functions back: they run in so many of the first rounds only, and are not warmed up.
    """
    limits = limits or {}
    names = list(functions)
    for _ in range(warm_up):
        for name, function in functions.items():
            if name not in limits:
                function()
    laps: dict[str, list[float]] = {name: [] for name in names}
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                if turn >= limits.get(name, rounds):
                    continue
                start = time.perf_counter()
                functions[name]()
                laps[name].append(time.perf_counter() - start)
    finally:
        if was_collecting:
            gc.enable()
    return laps


def compare(laps: list[float], baseline: list[float]) -> Timing:
    """A function's laps against the baseline's laps of the same rounds."""
    ratios = [own / other for own, other in zip(laps, baseline, strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [ratios[0]] * 3
    return Timing(seconds=median(laps), ratio=median(ratios), ratio_low=low, ratio_high=high, rounds=len(laps))
