"""Whole models raced in training: ours, torch's Transformer and Hugging Face's Marian. In: a plan. Out: a report.

Contestants take turns on the same batches. Speed is the baseline's time over a contestant's time on the same batch, in the
median round: above 1 is faster than our own model with torch's fused softmax attention.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch

from entformer.bench import training_racers as racers
from entformer.bench.signature import Signature, signature
from entformer.bench.timing import compare, take_turns
from entformer.models.config import PRESETS


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One race: what the batches look like, and the precision of products."""

    name: str
    mean: float
    """Mean length of source and target in tokens, EOS counted."""
    deviation: float
    tokens: int
    """Target tokens in a batch, about."""
    precision: str
    """"float32" or "bfloat16" (torch.autocast)."""


SHORT = {"name": "short", "mean": 15.0, "deviation": 5.0}  # Multi30k's captions
LONG = {"name": "long", "mean": 80.0, "deviation": 20.0}
CLOSE = ("entmax15", "learned")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything one run measures."""

    settings: tuple[Setting, ...]
    contestants: tuple[str, ...] = racers.CONTESTANTS
    preset: str = "tiny"
    vocab_size: int = 9712
    rounds: int = 9
    close_rounds: int = 24
    """More rounds for those whose bar is near the baseline: on a shared machine one round is off by several per cent."""
    threads: int = 1
    sizes: dict[str, Any] = field(default_factory=dict)
    """Fields that replace those of the preset."""

    def model_sizes(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size, **PRESETS[self.preset], **self.sizes}


def full_plan(threads: int = 1, preset: str = "tiny") -> Plan:
    """Some fifteen minutes on one thread with the preset "tiny"."""
    both: list[dict[str, Any]] = [SHORT, LONG]
    settings = [Setting(**lengths, tokens=4096, precision=p) for p in ("float32", "bfloat16") for lengths in both]
    return Plan(settings=tuple(settings), preset=preset, threads=threads)


def quick_plan(threads: int = 1, preset: str = "tiny") -> Plan:
    """Some seconds: small batches, few rounds. Enough to see that everything runs; the figures are rough."""
    lengths: dict[str, Any] = SHORT
    settings = [Setting(**lengths, tokens=512, precision=p) for p in ("float32", "bfloat16")]
    return Plan(settings=tuple(settings), preset=preset, rounds=3, close_rounds=0, threads=threads)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """One contestant in one setting."""

    setting: Setting
    contestant: str
    tokens_per_second: float
    """Target tokens, padding not counted, in the median round."""
    speed: float
    """Time of the baseline over the time of this contestant, in the median round: batches differ, rounds do not mix."""
    speed_low: float
    """Lower quartile of the same."""
    speed_high: float
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A promise and what was measured: the worst of the settings it covers. Larger is better."""

    what: str
    measured: float
    bar: float

    @property
    def met(self) -> bool:
        return self.measured >= self.bar


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """A run of the benchmark: what it was measured with, what was measured, and what came out."""

    signature: Signature
    transformers: str | None
    plan: Plan
    results: tuple[TrainingResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        return {"benchmark": "training", **asdict(self)}

    def bars(self) -> list[Bar]:
        """The promises of which this run has measurements."""
        return [Bar(what=what, measured=min(found), bar=bar) for what, found, bar in self._measured() if found]

    def _measured(self) -> Iterator[tuple[str, list[float], float]]:
        speeds = {(r.setting, r.contestant): r.speed for r in self.results}
        for name in CLOSE:
            yield f"{name} / softmax with SDPA", [s for (_, who), s in speeds.items() if who == name], 0.95
        for peer in (racers.MARIAN, racers.TORCH):
            for name in ("softmax", "entmax15", "learned"):
                found = [
                    speed / speeds[setting, peer]
                    for (setting, who), speed in speeds.items()
                    if who == name and (setting, peer) in speeds
                ]
                yield f"{name} / {peer}", found, 1.0


def race_training(plan: Plan, *, progress: Callable[[str], None] = lambda _: None) -> TrainingReport:
    """Run the plan. `progress` hears one short line before each part. Marian is left out where it is not installed."""
    peer = racers.marian_version()
    names = [name for name in plan.contestants if name != racers.MARIAN or peer is not None]
    before, state = torch.get_num_threads(), torch.get_rng_state()
    results: list[TrainingResult] = []
    try:
        torch.set_num_threads(plan.threads)
        for number, setting in enumerate(plan.settings):
            progress(f"{number + 1} of {len(plan.settings)}: {setting.name} sentences, {setting.precision}")
            results.extend(_race(plan, setting, names))
        return TrainingReport(signature=signature(), transformers=peer, plan=plan, results=tuple(results))
    finally:
        torch.set_num_threads(before)
        torch.set_rng_state(state)


def _race(plan: Plan, setting: Setting, names: list[str]) -> Iterator[TrainingResult]:
    batches = racers.make_batches(setting.tokens, setting.mean, setting.deviation, plan.vocab_size)
    narrow = setting.precision == "bfloat16"
    steps = {name: racers.training_step(name, plan.model_sizes(), batches, narrow) for name in names}
    laps = take_turns(steps, rounds=plan.rounds, warm_up=1)
    close = {name: step for name, step in steps.items() if name == racers.BASELINE or name in CLOSE}
    for name, more in take_turns(close, rounds=plan.close_rounds, warm_up=0).items():
        laps[name] += more
    # Every contestant has gone through the same batches in the same rounds; the first was the warm-up's.
    tokens = [batches[(turn + 1) % len(batches)].target_tokens for turn in range(plan.rounds + plan.close_rounds)]
    for name in names:
        own = laps[name]
        spread = compare(laps[racers.BASELINE][: len(own)], own)
        yield TrainingResult(
            setting=setting,
            contestant=name,
            tokens_per_second=median(count / lap for count, lap in zip(tokens, own, strict=False)),
            speed=spread.ratio,
            speed_low=spread.ratio_low,
            speed_high=spread.ratio_high,
            rounds=len(own),
        )
