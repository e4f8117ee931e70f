"""Fine-tuning with transformers' Trainer: keeps alphas in their bounds, logs them, anneals them, and targets a density.

Trainer(model=model, ..., callbacks=[SparsityCallback(density=0.2, max_loss_increase=0.02)])
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from entformer.errors import ArgumentError
from entformer.hf.function import set_listener
from entformer.hf.heads import SparseHeads, sparse_heads
from entformer.hf.measure import DensityMeter
from entformer.nn.alpha import project_alphas
from entformer.nn.density_price import Multiplier, add_to_gradient

SHAPES = ("linear", "cosine")


@dataclass(frozen=True)
class AlphaSchedule:
    """How far alphas and scales have moved from softmax to their targets, from 0 to 1, at each step.

        alpha = 1 + share * (target alpha - 1)          log scale = share * log(target scale)

    Args:
        steps: Optimizer steps until the targets are reached. Until then alphas and scales are set, then they are learned.
        start: Steps before the schedule begins.
        shape: "linear" or "cosine".
    """

    steps: int
    start: int = 0
    shape: str = "linear"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.start < 0:
            raise ArgumentError(f"steps={self.steps} must be at least 1, and start={self.start} at least 0.")
        if self.shape not in SHAPES:
            raise ArgumentError(f"shape={self.shape!r} is not known; choose one of {', '.join(SHAPES)}.")

    def share(self, step: int) -> float:
        """Returns the share at a step, from 0 on."""
        done = min(max((step - self.start) / self.steps, 0.0), 1.0)
        return done if self.shape == "linear" else 0.5 - 0.5 * math.cos(math.pi * done)

    def finished(self, step: int) -> bool:
        """Returns whether alphas and scales are learned from this step on."""
        return step >= self.start + self.steps


class SparsityCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps, logs, anneals and constrains alphas during training by transformers' Trainer.

    Without arguments it clamps alphas to their bounds after every optimizer step and adds `alpha_mean`, `alpha_min`,
    `alpha_max` and `scale_mean` to the Trainer's log.

    Args:
        schedule: Start from softmax and reach the model's current alphas and scales, such as calibrated ones, gradually.
        density: The density to reach, by a price on alphas that rises until it is reached. It is measured on training batches,
            those of all processes together.
        max_loss_increase: Density yields to the loss: while an evaluation loss is more than this share above the lowest one
            (or above `reference_loss`), the price falls. 0.02 is 2%. Needs evaluation during training.
        reference_loss: An evaluation loss to compare with, such as the one before conversion.
        measure_every: Optimizer steps between measurements of the density.
        start: First steps, without a price.
    """

    def __init__(
        self,
        *,
        schedule: AlphaSchedule | None = None,
        density: float | None = None,
        max_loss_increase: float | None = None,
        reference_loss: float | None = None,
        measure_every: int = 10,
        start: int = 0,
    ) -> None:
        if density is not None and not 0.0 < density <= 1.0:
            raise ArgumentError(f"density={density} must be above 0 and at most 1.")
        if max_loss_increase is not None and (density is None or max_loss_increase <= 0.0):
            raise ArgumentError("max_loss_increase must be above 0, and needs a density.")
        if measure_every < 1:
            raise ArgumentError(f"measure_every={measure_every} must be at least 1.")
        self.schedule = schedule
        self.max_loss_increase, self.reference_loss = max_loss_increase, reference_loss
        self.measure_every, self.start = measure_every, start
        self.multiplier = None if density is None else Multiplier(density)
        self.least_loss = math.inf
        self._meter: DensityMeter | None = None
        self._slopes: list[tuple[SparseHeads, Tensor]] = []
        self._targets: dict[str, tuple[Tensor, Tensor]] = {}

    # ---- events ----------------------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Checks the model, and continues where a resumed run was."""
        if next(sparse_heads(model), None) is None:
            raise ArgumentError("the model has no alphas; call entformer.hf.sparsify(model) before training.")
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if saved is not None and state.global_step > 0:
            entry: Any = saved[0] if isinstance(saved, list) else saved
            self._restore(entry["attributes"])
        elif self.schedule is not None:
            self._targets = {name: _values(heads) for name, heads in sparse_heads(model)}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Sets scheduled alphas; counts the density of this step's batches if it is time to."""
        if self.schedule is not None and self._targets and not self.schedule.finished(state.global_step - 1):
            share = self.schedule.share(state.global_step)
            for name, heads in sparse_heads(model):
                alpha, scale = self._targets[name]
                heads.set(alpha=1.0 + share * (alpha - 1.0), scale=scale**share)
        step = state.global_step - self.start
        if self.multiplier is not None and step >= 0 and (step % self.measure_every == 0 or not self._slopes):
            self._meter = DensityMeter(slopes=True)
            set_listener(self._meter.listen)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Adds the price of density to the gradients of alphas."""
        if self.multiplier is None:
            return
        if self._meter is not None:
            set_listener(None)
            self._meter.sum_over_processes(heads for _, heads in sparse_heads(model))
            self.multiplier.ascend(self._meter.density())
            self._slopes, self._meter = list(self._meter.slopes()), None
        for heads, slope in self._slopes:
            if heads.learned:
                add_to_gradient(heads.alpha_minus_1, self.multiplier.price * slope)

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Clamps alphas to their bounds."""
        project_alphas(model, getattr(optimizer, "optimizer", optimizer))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """Compares the evaluation loss with its bound."""
        loss = (metrics or {}).get("eval_loss")
        if loss is None or self.multiplier is None or self.max_loss_increase is None:
            return
        self.least_loss = min(self.least_loss, float(loss))
        reference = self.least_loss if self.reference_loss is None else self.reference_loss
        self.multiplier.bound_loss(float(loss) > (1.0 + self.max_loss_increase) * reference)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **_: Any) -> None:
        """Adds the numbers to the log."""
        numbers = self.numbers(model)
        if isinstance(logs, dict):
            logs.update(numbers)
        if state.log_history:
            state.log_history[-1].update(numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops counting."""
        if self._meter is not None:
            set_listener(None)
            self._meter = None

    # ---- numbers and state -----------------------------------------------------------------------------------------------

    def numbers(self, model: nn.Module) -> dict[str, float]:
        """Returns the numbers for the log."""
        values = [_values(heads) for _, heads in sparse_heads(model)]
        alpha, scale = torch.cat([own[0] for own in values]), torch.cat([own[1] for own in values])
        found = {
            "alpha_mean": float(alpha.mean()),
            "alpha_min": float(alpha.min()),
            "alpha_max": float(alpha.max()),
            "scale_mean": float(scale.mean()),
        }
        if self.multiplier is not None and self.multiplier.density is not None:
            found |= {"density": self.multiplier.density, "density_price": self.multiplier.price}
        return found

    def state(self) -> dict[str, Any]:
        """Returns what the Trainer stores in a checkpoint."""
        multiplier = self.multiplier
        return {
            "args": {},
            "attributes": {
                "multiplier": None if multiplier is None else [multiplier.value, multiplier.density, multiplier.held],
                "least_loss": None if math.isinf(self.least_loss) else self.least_loss,
                "targets": {name: [value.tolist() for value in pair] for name, pair in self._targets.items()},
            },
        }

    def _restore(self, attributes: dict[str, Any]) -> None:
        stored, least = attributes.get("multiplier"), attributes.get("least_loss")
        if self.multiplier is not None and stored is not None:
            self.multiplier.value, self.multiplier.density, self.multiplier.held = stored[0], stored[1], bool(stored[2])
        self.least_loss = math.inf if least is None else float(least)
        for name, pair in attributes.get("targets", {}).items():
            alpha, scale = (torch.tensor(values, dtype=torch.float64) for values in pair)
            self._targets[name] = alpha, scale


def _values(heads: SparseHeads) -> tuple[Tensor, Tensor]:
    alpha, scale = heads()
    return alpha.detach().double().cpu(), scale.detach().double().cpu()
