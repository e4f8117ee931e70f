"""The bars fused attention is held to. In: a report. Out: one `Bar` per promise that this run measured.

Only the machine of the run speaks: a bar is a ratio taken in it. What was not measured is not listed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from entformer.bench.attention import AttentionReport, AttentionResult

SHAPES = {"16,8,64,64": 0.8, "4,8,512,64": 0.45, "1,8,2048,64": 0.35}
"""Forward+backward at alpha = 1.5 against SDPA."""
LONG = "1,8,8192,64"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A promise and what was measured: the worst of the settings it covers."""

    what: str
    measured: float
    bar: float

    @property
    def met(self) -> bool:
        return self.measured <= self.bar


def bars(report: AttentionReport) -> list[Bar]:
    """All promises of which this run has measurements."""
    return [Bar(what=what, measured=max(found), bar=bar) for what, found, bar in _measured(report) if found]


def _measured(report: AttentionReport) -> Iterator[tuple[str, list[float], float]]:
    base = [r for r in report.results if r.setting.kind == "plain" and r.setting.threads == report.plan.threads]
    known = [r for r in base if r.setting.shape in SHAPES]
    long = [r for r in base if r.setting.shape == LONG]
    for shape, bar in SHAPES.items():
        yield f"alpha 1.5 forward+backward / SDPA at ({shape})", _both(known, "1.5", shape), bar
    learned = [r.forward_backward.to_fixed for r in known if r.contestant == "learned" and r.forward_backward]
    yield "learned alpha / fixed 1.5, forward+backward", [ratio for ratio in learned if ratio is not None], 1.25
    yield "alpha 1.01 forward+backward / SDPA", _both(known, "1.01"), 2.0
    yield "alpha 1.5 forward / SDPA, every shape", [r.forward.ratio for r in known + long if r.contestant == "1.5"], 1.3
    yield (
        "peak memory at length 8192 / SDPA, alpha 1.5",
        [m.ratio for m in report.memory if m.length == 8192 and m.contestant == "1.5"],
        1.5,
    )
    for series in dict.fromkeys(s.series for s in report.scaling):
        mine = [s for s in report.scaling if s.series == series]
        yield f"time when the length doubles, {series}", _known(s.time_ratio for s in mine), 4.4
        yield f"memory when the length doubles, {series}", _known(s.memory_ratio for s in mine), 2.2


def _both(results: list[AttentionResult], contestant: str, shape: str | None = None) -> list[float]:
    """Forward+backward ratios of a contestant at every logit scale measured."""
    return [
        r.forward_backward.ratio
        for r in results
        if r.contestant == contestant and r.forward_backward is not None and shape in (None, r.setting.shape)
    ]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
