"""What doubling the length costs. In: lengths. Out: a `ScalingResult` per length, each against the one before.

Forward+backward at (1, 8, L, 64), alpha = 1.5, two series:

    same logits    scores keep their spread, so the support grows more slowly than the row and the density falls
    same density   the logits are softened until the share of non-zero weights is that of the shortest length
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from entformer.bench import attention_racers as racers
from entformer.bench.attention_plan import Setting
from entformer.bench.memory import HEADS, SIZE, peak_memory
from entformer.bench.timing import take_turns

CONTESTANT = "1.5"
SERIES = ("same logits", "same density")
ROUNDS = 5
SAMPLE = 128
"""Queries looked at to find the density of a length."""


@dataclass(frozen=True, kw_only=True)
class ScalingResult:
    """One length of one series."""

    series: str
    length: int
    scale: float
    """Of the logits."""
    density: float
    ms: float
    time_ratio: float | None
    """To the length before it in the series."""
    megabytes: float | None
    """Peak of forward+backward beside the inputs; None if not wanted or where the system does not tell."""
    memory_ratio: float | None


def measure_scaling(
    lengths: Sequence[int], *, threads: int, memory: bool, progress: Callable[[str], None] = lambda _: None
) -> list[ScalingResult]:
    """Both series; the lengths of a series take turns. Memory, if wanted, takes some seconds for each length."""
    results: list[ScalingResult] = []
    for series in SERIES if lengths else ():
        goal = density_at(lengths[0], 1.0)
        scales = [1.0 if series == "same logits" else scale_for(length, goal) for length in lengths]
        progress(f"doubling the length, {series}: time")
        settings = [_setting(length, length, scale, threads) for length, scale in zip(lengths, scales, strict=True)]
        inputs = [racers.make_inputs(setting) for setting in settings]
        attend, _ = racers.contestant(CONTESTANT, HEADS)
        work = {str(length): racers.forward_backward(attend, i, ()) for length, i in zip(lengths, inputs, strict=True)}
        laps = take_turns(work, rounds=ROUNDS, warm_up=1)
        before: ScalingResult | None = None
        for length, scale, tensors in zip(lengths, scales, inputs, strict=True):
            ms = median(laps[str(length)]) * 1e3
            megabytes = None
            if memory:
                progress(f"doubling the length, {series}: memory at {length}")
                peak = peak_memory(CONTESTANT, length, threads=threads, scale=scale)
                megabytes = None if peak is None else peak.beside
            before = ScalingResult(
                series=series,
                length=length,
                scale=scale,
                density=racers.density(CONTESTANT, tensors),
                ms=ms,
                time_ratio=None if before is None else ms / before.ms,
                megabytes=megabytes,
                memory_ratio=None if before is None or not before.megabytes or not megabytes else megabytes / before.megabytes,
            )
            results.append(before)
    return results


def density_at(length: int, scale: float) -> float:
    """From a sample of queries over all keys."""
    return racers.density(CONTESTANT, racers.make_inputs(_setting(SAMPLE, length, scale, torch.get_num_threads())))


def scale_for(length: int, goal: float) -> float:
    """The logit scale that gives this density, by halving: density falls as the scale grows."""
    sample = racers.make_inputs(_setting(SAMPLE, length, 1.0, torch.get_num_threads()))
    low, high = 0.0, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        found = racers.density(CONTESTANT, replace(sample, q=sample.q.detach() * middle))
        low, high = (middle, high) if found > goal else (low, middle)
    return (low + high) / 2


def _setting(queries: int, keys: int, scale: float, threads: int) -> Setting:
    return Setting(
        batch=1, heads=HEADS, queries=queries, keys=keys, size=SIZE, scale=scale, threads=threads, rounds=ROUNDS, slow_rounds=0
    )
