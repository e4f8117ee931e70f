"""How several processes compute one gradient, by `training.parallel`.

    ddp     DistributedDataParallel: buckets are summed while backward goes on
    fsdp    FSDP2 (`fully_shard`): each process stores a part of every matrix, of its gradient and of its moments
    sum     one sum of all gradients after backward, in one buffer: resuming is bitwise identical with any number of processes

The gradient is that of the mean loss per label over all processes. DDP and FSDP divide by the number of processes, so the loss
is multiplied by it. FSDP is in `training/fsdp.py`; `training/parallel.py` chooses.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from entformer.models.attention_settings import AttentionModel
from entformer.models.fused_loss import LossSums
from entformer.training.ranks import Ranks
from entformer.training.task import Batch

Loss = Callable[[AttentionModel, Any], LossSums]


class Engine:
    """One process, or several whose gradients are summed after backward."""

    sharded = False
    """Whether parameters are DTensors; every process must then take part in every use of the model."""
    splits = True
    """Whether a process may split a batch that does not fit into its memory."""

    def __init__(self, model: AttentionModel, loss: Loss, ranks: Ranks) -> None:
        self.model, self.loss, self.ranks = model, loss, ranks
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    @property
    def loss_scale(self) -> float:
        """What the mean loss is multiplied by before backward."""
        return 1.0

    def forward(self, batch: Batch) -> LossSums:
        return self.loss(self.model, batch)

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Returns the context of forward and backward of one batch of a step."""
        return nullcontext()

    def interrupted(self) -> bool:
        """Completes a reduction that running out of memory interrupted. Returns whether there was one: its result is wrong."""
        return False

    def reduce(self, sums: Tensor) -> None:
        """Completes the gradients after the last backward of a step, and sums the vector `sums` over the processes."""
        if self.ranks.size == 1:
            return
        for parameter in self.parameters:
            if parameter.grad is None:  # a process whose batches did not touch it
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.sum_tensors([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        dist.all_reduce(sums)

    def grad_norm(self) -> Tensor:
        """Returns the norm of the whole gradient, a scalar."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def clip(self, limit: float, norm: Tensor) -> None:
        """Scales the gradients, whose norm is `norm`, to a norm of at most `limit`."""
        nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)

    @contextlib.contextmanager
    def whole_model(self) -> Iterator[AttentionModel]:
        """Yields a model with plain tensors, for validation. Every process must enter it."""
        yield self.model

    def close(self) -> None:
        """Releases the process groups."""


class DDPEngine(Engine):
    """DistributedDataParallel. Only `forward` of the wrapper synchronizes, so the loss is computed in it."""

    def __init__(self, model: AttentionModel, loss: Loss, ranks: Ranks, sample: Batch) -> None:
        super().__init__(model, loss, ranks)
        used = _used(model, loss, sample)
        devices = [ranks.device] if ranks.device.type == "cuda" else None
        with warnings.catch_warnings():  # the new name of broadcast_buffers is not known to torch 2.10
            warnings.simplefilter("ignore", FutureWarning)
            self.module = DistributedDataParallel(
                _LossModule(model, loss),
                device_ids=devices,
                broadcast_buffers=False,
                find_unused_parameters=len(used) < len(self.parameters),
                gradient_as_bucket_view=True,
            )
        self._used, self._reducing = used, False
        self._ready: set[int] = set()  # parameters whose gradient is complete, by number
        for number, parameter in enumerate(used):  # a hook that held the engine would hold the process group for good
            parameter.register_post_accumulate_grad_hook(functools.partial(_add, self._ready, number))

    @property
    def loss_scale(self) -> float:
        return float(self.ranks.size)

    def forward(self, batch: Batch) -> LossSums:
        found: LossSums = self.module(batch)
        self._ready.clear()
        self._reducing = self.module.require_backward_grad_sync
        return found

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        self._reducing = False
        with nullcontext() if last else self.module.no_sync():
            yield

    def interrupted(self) -> bool:
        if not self._reducing:  # in forward, or in a backward that reduces nothing
            return False
        missing = [parameter for number, parameter in enumerate(self._used) if number not in self._ready]
        if missing:  # the other processes wait for the rest of the sums, which must come whatever its values
            torch.stack([0.0 * parameter.sum() for parameter in missing]).sum().backward()
        return True

    def reduce(self, sums: Tensor) -> None:
        dist.all_reduce(sums)


class _LossModule(nn.Module):
    """Computes the loss in `forward`, where DDP sees it."""

    def __init__(self, model: AttentionModel, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> LossSums:
        return self.loss(self.model, batch)


def _add(ready: set[int], number: int, _: Tensor) -> None:
    ready.add(number)


def _used(model: AttentionModel, loss: Loss, sample: Batch) -> list[nn.Parameter]:
    """Returns the parameters that the loss depends on."""
    while len(sample.examples) > 1:  # one example is enough
        sample = sample.split()[0]
    with torch.random.fork_rng(devices=[]):
        loss(model, sample).loss.backward()
    found = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return found
