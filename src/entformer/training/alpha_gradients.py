"""Mean and standard deviation of dL/dalpha of every head, over the steps of a log interval.

The gradient of one batch, or of many batches at one checkpoint, misleads: along the trajectory of the weights its sign changes
from step to step. Only its mean over many steps, beside its standard deviation over *steps*, shows where an alpha is pushed.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.models.attention_settings import AttentionModel
from entformer.nn.alpha import LearnedAlpha, learned_alphas


class AlphaGradients:
    """Sums of dL/dalpha and of its square over the steps since the last `reset`, for every head that learns its alpha."""

    def __init__(self, model: AttentionModel) -> None:
        self.alphas = list(learned_alphas(model))
        self._start = {}  # of each module's values among all
        size = 0
        for module in self.alphas:
            self._start[module] = size
            size += module.parameter.numel()
        self._layers = [
            (kind, layer.alpha) for kind, _, layer in model.attention_layers() if isinstance(layer.alpha, LearnedAlpha)
        ]
        device = next(model.parameters()).device
        self.sums = torch.zeros(2, size, dtype=torch.float64, device=device)
        self.steps = 0

    @torch.no_grad()
    def add(self) -> None:
        """Adds the current gradients: of the mean loss over all processes, before clipping."""
        if self.alphas:
            found = torch.cat([_to_alpha(module) for module in self.alphas])
            self.sums += torch.stack([found, found.square()])
            self.steps += 1

    def state(self) -> list[float]:
        """Returns the sums for a checkpoint; empty before the first step."""
        return [float(self.steps), *self.sums.flatten().tolist()] if self.steps else []

    def load(self, state: list[float]) -> None:
        """Restores a result of `state`; that of another model is ignored."""
        if len(state) == 1 + self.sums.numel():
            self.steps = int(state[0])
            self.sums.copy_(torch.tensor(state[1:], dtype=torch.float64).view_as(self.sums))

    def reset(self) -> dict[str, Any]:
        """Starts a new interval and returns the numbers of the last one, as in `metrics.py`."""
        if not self.steps:
            return {}
        mean, square = self.sums / self.steps
        spread = (square - mean.square()).clamp_min(0.0).sqrt()
        numbers: dict[str, Any] = {"steps": self.steps}
        for kind, alpha in self._layers:
            for name, values in ((kind, mean), (f"{kind}_std", spread)):
                own = values[self._start[alpha] :][: alpha.parameter.numel()].expand(alpha.num_heads)
                numbers.setdefault(name, []).append([float(f"{value:.4g}") for value in own.tolist()])
        self.sums.zero_()
        self.steps = 0
        return numbers


def _to_alpha(module: LearnedAlpha) -> Tensor:
    """Returns dL/dalpha in float64, from the gradient of the parameter; 0 where the sigmoid's slope has underflowed."""
    parameter = module.parameter
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=torch.float64, device=parameter.device)
    gradient = parameter.grad.double()
    if module.parametrization == "projected":
        return gradient
    share = torch.sigmoid(parameter.double())
    slope = (module.high - module.low) * share * (1.0 - share)
    return torch.where(slope > 0.0, gradient / slope, 0.0)
