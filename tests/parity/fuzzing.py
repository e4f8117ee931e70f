"""What the tests of rows and of attention share: lengths, alphas, cases, gradients, comparison, instruction sets."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from entformer.kernels import native
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.entmax import reference
from entformer.kernels.registry import Impl

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


def paired(axes: dict[str, list[Any]], count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Rows of values: every value of an axis appears count / len(axis) times, in an order of its own."""
    draw, columns = random.Random(seed), []
    for values in axes.values():
        column = [values[i % len(values)] for i in range(count)]
        draw.shuffle(column)
        columns.append(column)
    return zip(*columns, strict=True)


def run_attention(
    leaves: dict[str, Tensor], how: dict[str, Any], grad: Tensor, impl: Impl
) -> tuple[dict[str, Tensor], Attention]:
    """Output and gradients by name, and all that `attention` returns; the support only with the reference.

    `leaves` are q, k, v and the arguments that get a gradient, as they lie in memory.
    """
    leaves = {name: t.detach().requires_grad_() for name, t in leaves.items()}
    named = {name: t for name, t in leaves.items() if name not in ("q", "k", "v")}
    torch.manual_seed(5)  # dropout draws its seed from torch's generator
    more = {"return_stats": True, "return_support": impl == "reference", "impl": impl}
    answer = attention(leaves["q"], leaves["k"], leaves["v"], **how | named, **more)
    grads = torch.autograd.grad(answer.output, list(leaves.values()), grad.to(answer.output.dtype), allow_unused=True)
    found = {"out": answer.output.detach()}
    found |= {name: torch.zeros_like(t) if g is None else g for (name, t), g in zip(leaves.items(), grads, strict=True)}
    return found, answer


def times(a: Tensor, b: Tensor) -> Tensor:
    """a b where infinity times nothing is nothing."""
    return torch.where((a == 0.0) | (b == 0.0), 0.0, a * b)


def exp_e(x: Tensor, e: Tensor) -> Tensor:
    """The deformed exponential: weights from s - c."""
    y = e * x
    power = torch.where(e == 0.0, x, torch.log1p(y.clamp(min=-1.0)) / torch.where(e == 0.0, 1.0, e))
    return torch.where((e < 0.0) | (y > -1.0), power.exp(), 0.0)


def alpha_slope(p: Tensor, e: Tensor) -> Tensor:
    """dp/dalpha at fixed s - c."""
    log_p = p.clamp(min=1e-320).log()
    return torch.where(p > 0.0, -p * log_p.square() * reference._psi(-e * log_p), 0.0)


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
