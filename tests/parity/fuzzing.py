"""What the fuzzers of rows and of attention share: lengths, alphas, comparison, instruction sets."""

import math
import random
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from entformer.kernels import native

INF = math.inf
Answer = TypeVar("Answer")
GARBAGE = [math.nan, INF, -INF, 3e38]
LENGTHS = [1, 1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 33, 49, 65]
SIZES = [1, 2, 3, 5, 8, 8, 16, 16, 24, 32, 33, 64]
# fmt: off
ALPHAS = [
    1.0, 1.0, 1.0 + 1e-9, 1.0001, 1.01, 1.05, 1.1, 1.25, 1.4999, 1.5, 1.5, 1.6,
    1.75, 1.99, 2.0, 2.0, 2.001, 2.5, 3.0, 4.0,
]
# fmt: on


def draw_alpha(draw: random.Random) -> float:
    return draw.choice(ALPHAS) if draw.random() < 0.7 else draw.uniform(1.0, 4.0)


def fail_unless(within: Tensor, what: str, actual: Tensor, right: Tensor, bound: Tensor) -> None:
    if within.all():
        return
    first = tuple((~within).nonzero()[0].tolist())
    wide = bound.expand(actual.shape)
    raise AssertionError(
        f"{what}: {int((~within).sum())} of {within.numel()} elements are off; the first, at {first}, is "
        f"{actual[first].item()} where {right[first].item()} +- {wide[first].item()} is right"
    )


def compare(what: str, actual: Tensor, right: Tensor, bound: Tensor) -> None:
    """NaN exactly where the reference has it, and the rest within the bound (a bound of NaN allows nothing)."""
    largest = torch.finfo(actual.dtype).max
    ours, theirs = actual.detach().double().clamp(-largest, largest), right.detach().double().clamp(-largest, largest)
    both_nan = ours.isnan() & theirs.isnan()
    error = torch.where(both_nan, 0.0, (ours - theirs).abs())
    fail_unless(both_nan | (error <= bound.nan_to_num(0.0, posinf=INF)), what, ours, theirs, bound)


def on_each(isas: list[str], run: Callable[[], Answer]) -> dict[str, Answer]:
    """What `run` gives on each instruction set."""
    answers = {}
    for isa in isas:
        assert native.set_isa(isa), f"this CPU cannot run {isa}"
        answers[isa] = run()
    return answers
