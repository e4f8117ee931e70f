"""The gradient of the loss to every alpha, over the steps of a log interval. In: gradients of updates. Out: mean and spread.

The gradient of one batch, or of many batches at one checkpoint, misleads: along the trajectory of the weights its sign changes
from step to step. Only its mean over many steps, beside its standard deviation over *steps*, tells where an alpha is pushed.
"""

from typing import Any

import torch
from torch import Tensor

from entformer.models.seq2seq import Seq2Seq
from entformer.nn.alpha import LearnedAlpha, learned_alphas


class AlphaGradients:
    """Sums of dL/dalpha and of its square over the updates since the last `reset`, for every head that learns its alpha."""

    def __init__(self, model: Seq2Seq) -> None:
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
        """Count the gradients that are in place now: of the mean loss over all processes, before clipping."""
        if self.alphas:
            found = torch.cat([_to_alpha(module) for module in self.alphas])
            self.sums += torch.stack([found, found.square()])
            self.steps += 1

    def state(self) -> list[float]:
        """The numbers, for a checkpoint; empty if there is nothing yet."""
        return [float(self.steps), *self.sums.flatten().tolist()] if self.steps else []

    def load(self, state: list[float]) -> None:
        """Put back what `state` gave; numbers of another model are left out."""
        if len(state) == 1 + self.sums.numel():
            self.steps = int(state[0])
            self.sums.copy_(torch.tensor(state[1:], dtype=torch.float64).view_as(self.sums))

    def reset(self) -> dict[str, Any]:
        """Start a new interval. Out: {"steps", kind: [[mean per head] per layer], kind + "_std": the spread over steps}."""
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
    """dL/dalpha in float64, from the gradient of the parameter; 0 where the sigmoid's slope has underflowed."""
    parameter = module.parameter
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=torch.float64, device=parameter.device)
    gradient = parameter.grad.double()
    if module.parametrization == "projected":
        return gradient
    share = torch.sigmoid(parameter.double())
    slope = (module.high - module.low) * share * (1.0 - share)
    return torch.where(slope > 0.0, gradient / slope, 0.0)
