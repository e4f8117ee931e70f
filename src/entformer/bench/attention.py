"""Attention raced: ours, torch's fused softmax and the `entmax` package. In: a plan. Out: a report with every ratio.

Contestants take turns in every round. A ratio is a contestant's median time over the baseline's median time in the same
rounds; below 1 is faster than softmax. Beside it stands the density, the share of weights that are not zero: the
reason for the ratio.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from entformer.bench import attention_racers as racers
from entformer.bench.attention_plan import Plan, Setting, Shape, quick_plan
from entformer.bench.long import LongResult, measure_long
from entformer.bench.memory import MemoryResult, measure_memory
from entformer.bench.peer import peer_functions
from entformer.bench.scaling import ScalingResult, measure_scaling
from entformer.bench.signature import Signature, signature
from entformer.bench.timing import compare, take_turns
from entformer.kernels.impl import resolve


@dataclass(frozen=True, kw_only=True)
class Pace:
    """One direction of one contestant against SDPA."""

    ratio: float
    """Median time over SDPA's median time in the same rounds."""
    ratio_low: float
    """Lower quartile of the ratio, round by round."""
    ratio_high: float
    """Upper quartile of the ratio, round by round."""
    to_fixed: float | None
    """The same ratio to fixed alpha = 1.5, for the contestants that learn alpha."""
    ms: float
    sdpa_ms: float
    rounds: int


@dataclass(frozen=True, kw_only=True)
class AttentionResult:
    """One contestant in one setting."""

    setting: Setting
    contestant: str
    density: float
    """The share of allowed weights that are not zero."""
    forward: Pace
    forward_backward: Pace | None
    """None for decoding."""


@dataclass(frozen=True, kw_only=True)
class AttentionReport:
    """A run of the benchmark: what it was measured with, what was measured, and what came out."""

    signature: Signature
    plan: Plan
    results: tuple[AttentionResult, ...]
    memory: tuple[MemoryResult, ...]
    scaling: tuple[ScalingResult, ...]
    long: tuple[LongResult, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        return {"benchmark": "attention", **asdict(self)}


def race_attention(plan: Plan, *, progress: Callable[[str], None] = lambda _: None) -> AttentionReport:
    """Run the plan. `progress` hears one short line before each part."""
    if resolve("auto", "cpu") != "cpu":  # the dense reference in float64 is some hundred times slower
        plan = quick_plan((Shape(1, 8, 32, 64),), (plan.threads,), rounds=1)
    before = torch.get_num_threads()
    try:
        results: list[AttentionResult] = []
        for number, setting in enumerate(plan.settings):
            progress(f"{number + 1} of {len(plan.settings)}: ({setting.shape}) {setting.case(plan.threads)}".rstrip())
            torch.set_num_threads(setting.threads)
            results.extend(_race(setting))
        torch.set_num_threads(plan.threads)
        memory_too = bool(plan.memory_lengths)
        scaling = measure_scaling(plan.scaling_lengths, threads=plan.threads, memory=memory_too, progress=progress)
        memory = measure_memory(plan.memory_lengths, threads=plan.threads, progress=progress)
        long = measure_long(plan.long_lengths, threads=plan.threads, progress=progress)
        return AttentionReport(
            signature=signature(),
            plan=plan,
            results=tuple(results),
            memory=tuple(memory),
            scaling=tuple(scaling),
            long=tuple(long),
        )
    finally:
        torch.set_num_threads(before)


def _race(setting: Setting) -> Iterator[AttentionResult]:
    inputs = racers.make_inputs(setting)
    limits = dict.fromkeys(racers.SLOW_ONES, setting.slow_rounds) if setting.slow_rounds < setting.rounds else {}
    names = [name for name in racers.OURS if limits.get(name) != 0]
    if setting.peer_rounds and peer_functions():
        names.append(racers.PEER)
        limits[racers.PEER] = setting.peer_rounds
    functions = {name: racers.contestant(name, setting.heads) for name in (racers.SDPA, *names)}
    once = {name: racers.forward(attend, inputs) for name, (attend, _) in functions.items()}
    both = {name: racers.forward_backward(attend, inputs, alphas) for name, (attend, alphas) in functions.items()}
    warm_up = 2 if setting.scores <= 2**20 else 1 if setting.scores <= 2**26 else 0  # laps of a second need none
    turns = {"rounds": setting.rounds, "warm_up": warm_up}
    forward = take_turns(once, limits=limits, **turns)
    backward = take_turns(both, limits=limits, **turns) if setting.backward else None
    for name in names:
        yield AttentionResult(
            setting=setting,
            contestant=name,
            density=racers.density(name, inputs),
            forward=_pace(name, forward),
            forward_backward=None if backward is None else _pace(name, backward),
        )


def _pace(name: str, laps: dict[str, list[float]]) -> Pace:
    own = laps[name]
    sdpa, fixed = laps[racers.SDPA][: len(own)], laps["1.5"][: len(own)]
    spread = compare(own, sdpa)
    return Pace(
        ratio=median(own) / median(sdpa),
        ratio_low=spread.ratio_low,
        ratio_high=spread.ratio_high,
        to_fixed=median(own) / median(fixed) if name.startswith("learned") else None,
        ms=median(own) * 1e3,
        sdpa_ms=median(sdpa) * 1e3,
        rounds=len(own),
    )
