"""One optimizer step on a list of batches.

The gradient is that of the mean loss per label over all batches of all processes. A batch that does not fit into memory
is split in two, repeatedly. A loss or gradient that is not finite stops the run before the weights change.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from entformer.errors import RunFailed
from entformer.models.attention_settings import AttentionModel
from entformer.models.fused_loss import LossSums
from entformer.nn.alpha import project_alphas
from entformer.training.alpha_gradients import AlphaGradients
from entformer.training.density_target import DensityTarget
from entformer.training.optim import clip, set_rate
from entformer.training.precision import precision_here
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.task import Batch

Loss = Callable[[AttentionModel, Any], LossSums]
_NO_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")


class Diverged(RunFailed):
    """The loss or the gradient of a step is not finite."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class Updated:
    """Results of one step."""

    sums: Tensor  # (4,) float64: loss, nll, correct, labels, over all processes
    grad_norm: float  # before clipping


class Updater:
    """Runs optimizer steps."""

    def __init__(
        self,
        model: AttentionModel,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        ranks: Ranks,
        say: Callable[[str], None],
        density: DensityTarget | None = None,
    ) -> None:
        self.loss = loss
        self.model, self.optimizer, self.config, self.ranks, self.say = model, optimizer, config, ranks, say
        self.narrow = precision_here(config.precision, ranks.device) == "bfloat16"
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.density = density
        self.alpha_gradients = AlphaGradients(model)
        self._told_split = False

    def update(self, batches: Sequence[Batch], *, tokens: float, step: int, rate: float) -> Updated:
        """Train on `batches`; `tokens` is the number of their labels over all processes."""
        sums = self._gradients(list(batches), tokens)
        self.ranks.sum_gradients(self.parameters, sums)
        self.alpha_gradients.add()
        norm = clip(self.parameters, self.config.clip)
        # The one place where the device is waited for.
        loss_sum, grad_norm = torch.stack([sums[0], norm.to(sums.dtype)]).tolist()
        if not (math.isfinite(loss_sum) and math.isfinite(grad_norm)):
            examples = [example for batch in batches for example in batch.examples]
            shown = ", ".join(map(str, examples[:8])) + (f" and {len(examples) - 8} more" if len(examples) > 8 else "")
            raise Diverged(
                f"training diverged at step {step}: the loss is {loss_sum / tokens:.4g} and the gradient norm {grad_norm:.4g} "
                f"(learning rate {rate:.3g}; training examples {shown}). The last checkpoint is intact; lower training.lr, "
                "lengthen training.warmup or set training.clip.",
                step,
            )
        if self.density is not None:  # after clipping, so that it does not shorten the step of the weights
            self.density.update(step)
        set_rate(self.optimizer, rate, alphas=step > self.config.alpha_start_step)
        self.optimizer.step()
        project_alphas(self.model, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        return Updated(sums, grad_norm)

    def _gradients(self, pieces: list[Batch], tokens: float) -> Tensor:
        """Gradients of the mean loss into .grad; the sums of this process."""
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
            too_large = None
            for i, piece in enumerate(pieces):
                try:
                    sums += self._backward(piece, tokens)
                except RuntimeError as problem:  # torch.OutOfMemoryError is one too
                    if not is_out_of_memory(problem):
                        raise
                    if len(piece.examples) == 1:
                        raise RunFailed(
                            f"training example {piece.examples[0]} alone ({piece.describe()}) does not fit into memory; leave "
                            "out longer ones, or use a smaller model."
                        ) from problem
                    too_large = i
                    break
            if too_large is None:
                return sums
            # Outside of the except block: the exception's frames hold the tensors that have to go.
            self._tell_split(pieces[too_large])
            pieces[too_large : too_large + 1] = pieces[too_large].split()
            if self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()

    def _backward(self, batch: Batch, tokens: float) -> Tensor:
        device = self.ranks.device
        if device.type != "cpu":
            batch = batch.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.narrow):
            found = self.loss(self.model, batch)
        (found.loss / tokens).backward()
        counts = (found.loss.detach(), found.nll, found.correct)
        return torch.stack([*(count.to(device, torch.float64) for count in counts), _scalar(found.tokens, device)])

    def _tell_split(self, batch: Batch) -> None:
        if not self._told_split:
            self._told_split = True
            self.say(
                f"a batch of {len(batch.examples)} examples did not fit into memory and is trained in two halves, as will "
                "others; lower training.tokens and raise training.accumulate to avoid this."
            )


def is_out_of_memory(problem: RuntimeError) -> bool:
    """Whether torch ran out of memory, on any device."""
    return isinstance(problem, torch.OutOfMemoryError) or any(words in str(problem) for words in _NO_MEMORY)


def _scalar(value: int | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device)
