"""One optimizer step on a list of batches.

The gradient is that of the mean loss per label over all batches of all processes. A batch that does not fit into memory
is split in two, repeatedly. A loss or gradient that is not finite stops the run before the weights change.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entformer.errors import RunFailed
from entformer.nn.alpha import project_alphas
from entformer.training.alpha_gradients import AlphaGradients
from entformer.training.density_target import DensityTarget
from entformer.training.engine import Engine
from entformer.training.optim import set_rate
from entformer.training.precision import precision_here
from entformer.training.recipe import TrainingConfig
from entformer.training.task import Batch

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
        engine: Engine,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        say: Callable[[str], None],
        density: DensityTarget | None = None,
    ) -> None:
        self.engine, self.optimizer, self.config, self.say = engine, optimizer, config, say
        self.device = engine.ranks.device
        self.narrow = precision_here(config.precision, self.device) == "bfloat16"
        self.density = density
        self.alpha_gradients = AlphaGradients(engine.model)
        self._told_split = False

    def update(self, batches: Sequence[Batch], *, tokens: float, step: int, rate: float) -> Updated:
        """Train on `batches`; `tokens` is the number of their labels over all processes."""
        pieces, again = list(batches), 1.0
        while again:  # some process ran out of memory in the midst of a reduction
            sums = self._gradients(pieces, tokens)
            self.engine.reduce(sums)
            norm = self.engine.grad_norm()
            # The one place where the device is waited for.
            loss_sum, again, grad_norm = torch.stack([sums[0], sums[4], norm.to(sums.dtype)]).tolist()
        if not (math.isfinite(loss_sum) and math.isfinite(grad_norm)):
            examples = [example for batch in batches for example in batch.examples]
            shown = ", ".join(map(str, examples[:8])) + (f" and {len(examples) - 8} more" if len(examples) > 8 else "")
            raise Diverged(
                f"training diverged at step {step}: the loss is {loss_sum / tokens:.4g} and the gradient norm {grad_norm:.4g} "
                f"(learning rate {rate:.3g}; training examples {shown}). The last checkpoint is intact; lower training.lr, "
                "lengthen training.warmup or set training.clip.",
                step,
            )
        self.alpha_gradients.add()
        if self.config.clip is not None:
            self.engine.clip(self.config.clip, norm)
        if self.density is not None:  # after clipping, so that it does not shorten the step of the weights
            self.density.update(step)
        set_rate(self.optimizer, rate, alphas=step > self.config.alpha_start_step)
        self.optimizer.step()
        project_alphas(self.engine.model, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        return Updated(sums[:4], grad_norm)

    def _gradients(self, pieces: list[Batch], tokens: float) -> Tensor:
        """Gradients of the mean loss into .grad; the sums of this process, and 1 if its part of a reduction is wrong."""
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            sums = torch.zeros(5, dtype=torch.float64, device=self.device)
            too_large = None
            for i, piece in enumerate(pieces):
                try:
                    with self.engine.accumulate(last=i == len(pieces) - 1):
                        sums[:4] += self._backward(piece, tokens)
                except RuntimeError as problem:  # torch.OutOfMemoryError is one too
                    if not is_out_of_memory(problem):
                        raise
                    if len(piece.examples) == 1 or not self.engine.splits:
                        raise RunFailed(self._does_not_fit(piece)) from problem
                    too_large = i
                    break
            if too_large is None:
                return sums
            # Outside of the except block: the exception's frames hold the tensors that have to go.
            self._tell_split(pieces[too_large])
            pieces[too_large : too_large + 1] = pieces[too_large].split()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if self.engine.interrupted():
                sums[4] = 1.0
                return sums

    def _backward(self, batch: Batch, tokens: float) -> Tensor:
        if self.device.type != "cpu":
            batch = batch.to(self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.narrow):
            found = self.engine.forward(batch)
        (found.loss / (tokens / self.engine.loss_scale)).backward()
        counts = (found.loss.detach(), found.nll, found.correct)
        return torch.stack([*(count.to(self.device, torch.float64) for count in counts), _scalar(found.tokens, self.device)])

    def _does_not_fit(self, batch: Batch) -> str:
        if len(batch.examples) == 1:
            return (
                f"training example {batch.examples[0]} alone ({batch.describe()}) does not fit into memory; leave out longer "
                "ones, or use a smaller model."
            )
        return (
            f"a batch of {len(batch.examples)} examples did not fit into memory, and with training.parallel fsdp it cannot be "
            "split; lower training.tokens and raise training.accumulate, or set training.checkpoint_activations."
        )

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
