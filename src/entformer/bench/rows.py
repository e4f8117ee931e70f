"""Row operators raced: ours, torch.softmax and the `entmax` package. In: a plan. Out: one `RowResult` per setting.

Scores are (1, 8 heads, rows, n), normally distributed times a scale; the larger the scale, the sparser the rows.
"forward" runs without autograd, "forward+backward" takes the gradient to the scores and, where alpha is learned, to alpha.
Learned alphas are no special values of any solver: 1.37, or 1.1 to 1.9 over the heads.
Memory that is freed stays with the process (allocator.py), so that no contestant pays for pages.
The peer is far slower, so it runs fewer rounds, in a race of its own with its own softmax and our own kernels.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from entformer.bench.allocator import keep_freed_memory
from entformer.bench.peer import Normalizer, peer_functions
from entformer.bench.signature import Signature, signature
from entformer.bench.timing import compare, take_turns
from entformer.errors import ArgumentError
from entformer.kernels.impl import resolve
from entformer.kernels.rows.api import entmax

HEADS = 8
DIRECTIONS = ("forward", "forward+backward")
ALPHAS = ("1", "1.5", "2", "learned", "per head")
SEED = 20190904


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure."""

    lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    scales: tuple[float, ...] = (1.0, 2.0)
    elements: int = 4 * 2**20
    """Scores per call, about: rows are chosen so that rows * n comes to this."""
    rounds: int = 31
    peer_elements: int = 4 * 2**20
    peer_rounds: int = 3

    def fitted(self) -> "Plan":
        """The plan, cut down where the reference serves instead of the kernels: it is some hundred times slower."""
        if resolve("auto", "cpu") == "cpu":
            return self
        few = min(self.elements, 2**15)
        return replace(self, elements=few, rounds=min(self.rounds, 3), peer_elements=few, peer_rounds=1)


QUICK = Plan(lengths=(64, 512), scales=(1.0,), elements=2**17, rounds=3, peer_elements=2**14, peer_rounds=1)


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """One setting: times relative to torch.softmax in the same rounds. Below 1 is faster than softmax."""

    n: int
    rows: int
    scale: float
    direction: str
    alpha: str
    ours: float
    ours_low: float
    ours_high: float
    ours_ms: float
    softmax_ms: float
    peer: float | None
    """The entmax package relative to softmax, in its own race; None when not installed or not available for this alpha."""
    peer_rows: int | None
    faster_than_peer: float | None
    """How many times faster we are than the entmax package, in its race."""


@dataclass(frozen=True, kw_only=True)
class RowReport:
    """A run of the benchmark: what it was measured with, what was measured, and what came out."""

    signature: Signature
    plan: Plan
    memory_kept: bool
    """Freed memory stayed with the process; else times hold page faults, which differ from run to run."""
    results: tuple[RowResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        return {"benchmark": "rows", **asdict(self)}


def race_rows(plan: Plan, *, threads: int | None = None, progress: Callable[[str], None] = lambda _: None) -> RowReport:
    """Run the plan. `progress` hears one short line before each race. From here on the process keeps the memory it frees."""
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads={threads} makes no sense; give 1 or more.")
    plan = plan.fitted()
    kept = keep_freed_memory()
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        results: list[RowResult] = []
        for scale in plan.scales:
            for n in plan.lengths:
                for direction in DIRECTIONS:
                    progress(f"n = {n}, scores x {scale:g}, {direction}")
                    results.extend(_race(plan, n, scale, direction))
        return RowReport(signature=signature(), plan=plan, memory_kept=kept, results=tuple(results))
    finally:
        torch.set_num_threads(before)


def _race(plan: Plan, n: int, scale: float, direction: str) -> Iterator[RowResult]:
    scores = _scores(plan.elements, n, scale)
    few = _scores(plan.peer_elements, n, scale)
    ours = {name: _ours(name) for name in ALPHAS}
    racers = {name: _call(function, alpha, scores, direction) for name, (function, alpha) in ours.items()}
    laps = take_turns({"softmax": _call(_softmax, None, scores, direction)} | racers, rounds=plan.rounds)
    peers = peer_functions()
    for name in ALPHAS:
        own = compare(laps[name], laps["softmax"])
        peer, faster = _race_peer(few, ours[name], peers[name], direction, plan.peer_rounds) if name in peers else (None, None)
        yield RowResult(
            n=n,
            rows=scores.shape[1] * scores.shape[2],
            scale=scale,
            direction=direction,
            alpha=name,
            ours=own.ratio,
            ours_low=own.ratio_low,
            ours_high=own.ratio_high,
            ours_ms=own.seconds * 1e3,
            softmax_ms=median(laps["softmax"]) * 1e3,
            peer=peer,
            peer_rows=None if peer is None else few.shape[1] * few.shape[2],
            faster_than_peer=faster,
        )


def _race_peer(
    scores: Tensor, ours: tuple[Normalizer, Any], peer: Normalizer, direction: str, rounds: int
) -> tuple[float, float]:
    """The peer's time relative to softmax's, and relative to ours."""
    own, alpha = ours
    racers = {
        "softmax": _call(_softmax, None, scores, direction),
        "ours": _call(own, alpha, scores, direction),
        "peer": _call(peer, alpha, scores, direction),
    }
    laps = take_turns(racers, rounds=rounds, warm_up=1)
    return compare(laps["peer"], laps["softmax"]).ratio, compare(laps["peer"], laps["ours"]).ratio


def _scores(elements: int, n: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(SEED + n)
    rows = max(1, elements // (n * HEADS))
    return torch.randn(1, HEADS, rows, n, generator=generator) * scale


def _softmax(scores: Tensor, _: Any) -> Tensor:
    return torch.softmax(scores, -1)


def _ours(name: str) -> tuple[Normalizer, Any]:
    """Our function for a kind of alpha, and the alpha to give it."""
    if name == "learned":
        return lambda scores, alpha: entmax(scores, alpha), torch.nn.Parameter(torch.tensor(1.37))
    if name == "per head":
        return lambda scores, alpha: entmax(scores, alpha, alpha_dim=1), torch.nn.Parameter(torch.linspace(1.1, 1.9, HEADS))
    return lambda scores, alpha: entmax(scores, alpha), float(name)


def _call(function: Normalizer, alpha: Any, scores: Tensor, direction: str) -> Callable[[], object]:
    """The piece of work that is timed."""
    if direction == "forward":

        def forward() -> object:
            with torch.no_grad():
                return function(scores, alpha)

        return forward

    leaf = scores.clone().requires_grad_()
    inputs = [leaf, alpha] if isinstance(alpha, Tensor) else [leaf]
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(SEED))

    def forward_backward() -> object:
        return torch.autograd.grad(function(leaf, alpha), inputs, grad)

    return forward_backward
