"""The density target: raises alphas until attention has the requested density.

    density    of a row: keys with nonzero weight / keys it may attend to; of a head: the mean over rows; then over heads
    objective  loss + price * sum over heads of density_h          the price acts on the alphas only

The price and the slope of the density are those of `nn/density_price.py`, measured on a sample of the training data.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entformer.checkpoint.folder import RunFolder
from entformer.decoding.attention_record import attention_hooks
from entformer.errors import DataError
from entformer.kernels.attention.api import attention
from entformer.models.attention_settings import AttentionModel
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.density_price import Multiplier, add_to_gradient, chord_end
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.training.metrics import metrics_of
from entformer.training.task import Batch

MEASURE_EVERY = 10  # steps

Densities = dict[tuple[str, int], Tensor]  # (kind, layer) -> (heads,)


@dataclass(frozen=True)
class HeadDensities:
    """The density of every head on a batch, and the slope of its chord."""

    density: Densities
    slope: Densities


@torch.no_grad()
def measure(model: AttentionModel, batch: Batch, *, slopes: bool = False) -> HeadDensities:
    """Measures the density of all heads on a batch, without dropout; with `slopes`, also the slopes of learned alphas."""
    found = HeadDensities({}, {})

    def look(kind: str, layer: int, module: MultiheadAttention, seen: AttentionTrace) -> None:
        queries, keys = batch.lengths(kind)
        size = seen.stats.support_size  # (B, H, Lq)
        positions = torch.arange(size.shape[2], device=size.device)
        visible = keys.to(size.device)[:, None].expand(-1, size.shape[2])
        if seen.causal:
            visible = visible.minimum(positions + 1)
        share = (positions < queries.to(size.device)[:, None]) / visible.clamp_min(1).double()  # (B, Lq), 0 for padding
        rows = float(queries.sum())

        def mean(sizes: Tensor) -> Tensor:
            return (sizes * share[:, None]).sum((0, 2)) / rows

        found.density[kind, layer] = own = mean(size)
        if slopes and isinstance(module.alpha, LearnedAlpha):
            alpha = module.alpha().detach()
            other = chord_end(alpha, module.alpha.high)
            value = seen.key.new_zeros(*seen.key.shape[:3], 1)
            again: Any = attention(
                seen.query,
                seen.key,
                value,
                seen.masks.one_mask(),
                alpha=other,
                is_causal=seen.causal,
                causal_offset=seen.offset,
                key_mask=seen.masks.keys,
                alibi_slopes=module.slopes,
                return_stats=True,
            )
            found.slope[kind, layer] = (mean(again.stats.support_size) - own) / (other - alpha).double()

    was_training = model.training
    model.eval()
    try:
        with attention_hooks(model, look):
            model.run_attention(batch)
    finally:
        model.train(was_training)
    return found


@dataclass
class DensityTarget:
    """The constraint of a run: one multiplier for all heads, or one for each attention type that has a target."""

    model: AttentionModel
    sample: Batch
    """The batch on which densities are measured."""
    target: float | Mapping[Any, float]
    start_step: int = 0
    """First steps, without a price."""
    multipliers: dict[str, Multiplier] = field(init=False)
    slope: Densities = field(init=False, default_factory=dict)
    least_loss: float = math.inf
    """The lowest validation loss so far."""

    def __post_init__(self) -> None:
        targets = self.target if isinstance(self.target, Mapping) else {"all": self.target}
        self.multipliers = {kind: Multiplier(target) for kind, target in targets.items()}
        self._layers = [
            (kind, layer, module.alpha)
            for kind, layer, module in self.model.attention_layers()
            if isinstance(module.alpha, LearnedAlpha) and (kind in targets or "all" in targets)
        ]

    def _multiplier(self, kind: str) -> Multiplier:
        return self.multipliers["all" if "all" in self.multipliers else kind]

    def update(self, step: int) -> None:
        """Adds the price to the gradients of the alphas in `step`, from 1 on; measures every `MEASURE_EVERY` steps."""
        if step <= self.start_step:
            return
        if (step - self.start_step - 1) % MEASURE_EVERY == 0 or not self.slope:
            self._measure()
        for kind, layer, alpha in self._layers:
            add_to_gradient(alpha, self._multiplier(kind).price * self.slope[kind, layer])

    def _measure(self) -> None:
        found = measure(self.model, self.sample, slopes=True)
        self.slope = found.slope
        for group, multiplier in self.multipliers.items():
            own = [found.density[kind, layer] for kind, layer, _ in self._layers if group in ("all", kind)]
            multiplier.ascend(float(torch.cat(own).mean()))

    def validated(self, loss: float, increase: float | None, reference: float | None) -> None:
        """Compares a validation loss with the bound: `increase` above `reference`, or else above the lowest loss of the run."""
        self.least_loss = min(self.least_loss, loss)
        if increase is not None:
            bound = (1.0 + increase) * (self.least_loss if reference is None else reference)
            for multiplier in self.multipliers.values():
                multiplier.bound_loss(loss > bound)

    def numbers(self) -> dict[str, Any]:
        """Returns the numbers for the log."""
        return {
            f"{name}_{group}" if group != "all" else name: value
            for group, one in self.multipliers.items()
            for name, value in (
                ("density", one.density),
                ("target", one.target),
                ("multiplier", one.value),
                ("price", one.price),
            )
        }

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {
            "multipliers": {name: [one.value, one.density, float(one.held)] for name, one in self.multipliers.items()},
            "slope": [[kind, layer, values.tolist()] for (kind, layer), values in self.slope.items()],
            "least_loss": None if math.isinf(self.least_loss) else self.least_loss,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores a result of `state`."""
        for name, (value, density, held) in state.get("multipliers", {}).items():
            if name in self.multipliers:
                one = self.multipliers[name]
                one.value, one.density, one.held = value, density, bool(held)
        rows: Iterable[Any] = state.get("slope", ())
        self.slope = {(kind, layer): torch.tensor(values, dtype=torch.float64) for kind, layer, values in rows}
        least = state.get("least_loss")
        self.least_loss = math.inf if least is None else least


def reference_loss(run: Path, step: int) -> float:
    """Returns the validation loss of another run at this step, or at its last validation before.

    Raises:
        DataError: The run was not validated by then.
    """
    entries = metrics_of(RunFolder(run).metrics)
    losses = [entry["loss"] for entry in entries if entry["kind"] == "valid" and entry["step"] <= step]
    if not losses:
        raise DataError(f"training.reference_run: {run} has no validation up to step {step} to compare the loss with.")
    return float(losses[-1])
