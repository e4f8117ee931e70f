"""Attention over long contexts. In: how long a causal prefill and a decode are. Out: a `LongResult` per contestant of each.

    prefill    all queries of a prompt at once, causal, (1, 8, L, 64)
    decode     one query over the keys of everything before it, (1, 8, 1 / L, 64)

Forward alone, contestants taking turns. SDPA is plain softmax: with ALiBi it would need a stored bias for every pair.
Beside the time stands the peak memory of one call, in a process of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from entformer.bench import attention_racers as racers
from entformer.bench.attention_plan import Setting
from entformer.bench.memory import HEADS, SIZE, Peak, peak_memory
from entformer.bench.timing import compare, take_turns

__all__ = ["LongResult", "measure_long"]

ROUNDS = {"prefill": 3, "decode": 31}


@dataclass(frozen=True, kw_only=True)
class LongResult:
    """One contestant, SDPA among them, in one of the two."""

    kind: str
    """"prefill" or "decode"."""
    keys: int
    contestant: str
    density: float
    ms: float
    """Median of the rounds."""
    ratio: float
    """Median time over SDPA's median time in the same rounds."""
    ratio_low: float
    """Lower quartile of the ratio, round by round."""
    ratio_high: float
    """Upper quartile."""
    rounds: int
    megabytes: float | None
    """Peak beside the inputs; None where the system does not tell."""
    process_megabytes: float | None
    """Peak of the whole process, inputs included."""


def measure_long(
    lengths: tuple[int, int] | None, *, threads: int, progress: Callable[[str], None] = lambda _: None
) -> list[LongResult]:
    """Prefill at the first length, decode at the second; nothing if `lengths` is None."""
    if lengths is None:
        return []
    return [result for kind, keys in zip(ROUNDS, lengths, strict=True) for result in _race(kind, keys, threads, progress)]


def _race(kind: str, keys: int, threads: int, progress: Callable[[str], None]) -> Iterator[LongResult]:
    names = (racers.SDPA, *racers.LONG_ONES)
    peaks: dict[str, Peak | None] = {}
    for name in names:  # before this process holds inputs of its own
        progress(f"{kind} at {keys}: peak memory of {name}")
        peaks[name] = peak_memory(name, keys, threads=threads, kind=kind)
    progress(f"{kind} at {keys}: time")
    setting = _setting(kind, keys, threads)
    inputs = racers.make_inputs(setting)
    work = {name: racers.forward(racers.contestant(name, HEADS)[0], inputs) for name in names}
    laps = take_turns(work, rounds=setting.rounds, warm_up=1)
    for name in names:
        spread, peak = compare(laps[name], laps[racers.SDPA]), peaks[name]
        yield LongResult(
            kind=kind,
            keys=keys,
            contestant=name,
            density=racers.density(name, inputs),
            ms=spread.seconds * 1e3,
            ratio=median(laps[name]) / median(laps[racers.SDPA]),
            ratio_low=spread.ratio_low,
            ratio_high=spread.ratio_high,
            rounds=spread.rounds,
            megabytes=None if peak is None else peak.beside,
            process_megabytes=None if peak is None else peak.whole,
        )


def _setting(kind: str, keys: int, threads: int) -> Setting:
    queries = 1 if kind == "decode" else keys
    repeats = {"rounds": ROUNDS[kind], "slow_rounds": 0}
    return Setting(batch=1, heads=HEADS, queries=queries, keys=keys, size=SIZE, kind=kind, threads=threads, **repeats)
