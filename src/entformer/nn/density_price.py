"""The price of density: raises alphas until attention has the requested density, by dual ascent.

    objective  loss + price * sum over heads of density_h          the price acts on the alphas only
    surrogate  d density_h / d alpha_h = (density_h(high) - density_h(alpha)) / (high - alpha)          at the current scores
    ascent     multiplier *= exp(RATE * (ahead - target))         ahead = density + HORIZON * (density - density before)
               price = multiplier * exp(DAMPING * (density - target))

Density is a count: its derivative is zero almost everywhere, and near alpha = 1 even over an interval. The slope of the chord
to alpha = `high` (sparsemax) is taken instead; it is measured, by counting. The multiplier ascends by factors, which needs no
scale of the loss, and stays positive; where density is below the target the price fades.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from entformer.nn.alpha import LearnedAlpha

__all__ = ["Multiplier", "add_to_gradient", "chord_end"]

RATE = 3.0
DAMPING = 5.0
HORIZON = 10  # measurements; alphas react slowly; without extrapolation the multiplier would overshoot
FIRST, LEAST, MOST = 1e-4, 1e-7, 1e2  # of the multiplier
SHORTEST_CHORD = 0.1  # of alpha; closer to `high` the chord reaches down


@dataclass
class Multiplier:
    """Dual ascent on one density: computes its price from measured densities and validation losses."""

    target: float
    value: float = FIRST
    density: float | None = None
    """As last measured."""
    held: bool = False
    """The last validation loss was too high, so the multiplier does not rise."""

    def ascend(self, density: float) -> None:
        """Updates the multiplier with a new measurement."""
        trend = 0.0 if self.density is None else density - self.density
        ahead = min(max(density + HORIZON * trend, 0.0), 1.0)
        self.density = density
        if ahead < self.target or not self.held:
            self.value = min(max(self.value * math.exp(RATE * (ahead - self.target)), LEAST), MOST)

    def bound_loss(self, too_high: bool) -> None:
        """Halves the multiplier at a validation whose loss is too high, and holds it until one is not."""
        self.held = too_high
        if too_high:
            self.value = max(self.value / 2, LEAST)

    @property
    def price(self) -> float:
        return 0.0 if self.density is None else self.value * math.exp(DAMPING * (self.density - self.target))


def chord_end(alpha: Tensor, high: float) -> Tensor:
    """Returns the other end of the chord from each alpha: `high`, or a lower alpha where `high` is too close."""
    return torch.where(high - alpha > SHORTEST_CHORD, high, alpha - SHORTEST_CHORD)


@torch.no_grad()
def add_to_gradient(alpha: LearnedAlpha, slope: Tensor) -> None:
    """Adds d objective / d alpha, (heads,), to the gradient of the parameter of `alpha`."""
    parameter = alpha.parameter
    slope = slope.to(parameter.device).sum(0, keepdim=True) if alpha.tied else slope.to(parameter.device)
    if alpha.parametrization == "sigmoid":
        share = torch.sigmoid(parameter.double())
        slope = slope * (alpha.high - alpha.low) * share * (1.0 - share)
    added = slope.to(parameter.dtype)
    parameter.grad = added if parameter.grad is None else parameter.grad + added
