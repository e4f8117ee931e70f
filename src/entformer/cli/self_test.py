"""The self-test of `entformer doctor`. Takes about two seconds.

Compares the kernels of every instruction set, or the reference in float32 if there are none, with the reference in float64 on
partly masked rows: weights, gradient to the scores, gradient to alpha.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entformer.kernels import native
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl

# float32 rounding in sums of a few hundred terms stays below 2e-6; a wrong kernel is off by 1e-2 and more.
TOLERANCE = 1e-5
ALPHAS = (1.0, 1.0001, 1.25, 1.5, 1.9, 2.0)
LENGTHS = (1, 7, 64, 333)
ROWS = 17
QUANTITIES = ("weights", "gradient to scores", "gradient to alpha")


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """What was compared, and the largest errors, relative to the largest expected value where that exceeds 1."""

    compared: str
    instruction_sets: tuple[str, ...]
    cases: int
    largest_error: dict[str, float]
    tolerance: float
    passed: bool
    seconds: float


def self_test(instruction_sets: Sequence[str]) -> SelfTest:
    """Tests the kernels of the given instruction sets; without any, tests the reference."""
    start = time.perf_counter()
    errors: list[list[float]] = []
    selected = native.isa() if instruction_sets else ""
    try:
        for n in LENGTHS:
            scores, mask, grad = _rows(n)
            for alpha in ALPHAS:
                expected = _outcome(scores.double(), mask, grad.double(), alpha, "reference")
                for name in instruction_sets:
                    native.set_isa(name)
                    errors.append(_errors(_outcome(scores, mask, grad, alpha, "cpu"), expected))
                if not instruction_sets:
                    errors.append(_errors(_outcome(scores, mask, grad, alpha, "reference"), expected))
    finally:
        if instruction_sets:
            native.set_isa(selected)
    largest = dict(zip(QUANTITIES, torch.tensor(errors).amax(0).tolist(), strict=True))  # NaN if any error is
    return SelfTest(
        compared="cpu kernels against the reference" if instruction_sets else "reference in float32 against float64",
        instruction_sets=tuple(instruction_sets),
        cases=len(errors),
        largest_error=largest,
        tolerance=TOLERANCE,
        passed=all(error <= TOLERANCE for error in largest.values()),  # false for NaN
        seconds=time.perf_counter() - start,
    )


def _rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns scores (ROWS, n), a mask with one fully masked row, and a gradient of the weights."""
    generator = torch.Generator().manual_seed(n)
    scores = 2.0 * torch.randn(ROWS, n, generator=generator)
    mask = torch.rand(ROWS, n, generator=generator) > 0.2
    mask[0] = False
    return scores, mask, torch.randn(ROWS, n, generator=generator)


def _outcome(scores: Tensor, mask: Tensor, grad: Tensor, alpha: float, impl: Impl) -> tuple[Tensor, ...]:
    """Returns weights, gradient to the scores and gradient to alpha, with one alpha per row."""
    scores = scores.clone().requires_grad_()
    alphas = torch.full((ROWS, 1), alpha, dtype=torch.float64, requires_grad=True)
    weights = entmax(scores, alphas, mask=mask, impl=impl)
    return weights.detach(), *torch.autograd.grad(weights, (scores, alphas), grad)


def _errors(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> list[float]:
    return [float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in zip(found, expected, strict=True)]
