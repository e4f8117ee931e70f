"""Communication between the processes of a distributed run, from the environment variables that torchrun sets.

    torchrun --nproc-per-node 2 -m entformer.cli.main train RECIPE

Every process gets the same number of batches per epoch. Gradients are summed once per step in one flat buffer, after
accumulation, so that a process may split a batch for lack of memory. Without torchrun there is one process.
"""

import importlib
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from entformer.errors import ArgumentError

TIMEOUT = timedelta(hours=2)  # process 0 validates alone while the others wait


class Ranks:
    """The rank of this process, the number of processes, and collective operations."""

    def __init__(self, device: str = "auto") -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.size > 1 else 0
        use_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        if use_cuda and not torch.cuda.is_available():
            raise ArgumentError(f"training.device is {device}, but torch finds no GPU; use cpu or auto.")
        _, _, number = device.partition(":")
        local = int(number or os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", local) if use_cuda else torch.device("cpu")
        if use_cuda:
            torch.cuda.set_device(self.device)
        self._started_here = self.size > 1 and not dist.is_initialized()
        if self._started_here:
            # Functions of this module have the group that exists when they are defined as a default argument, and optimizers
            # import it at their first step. It would keep our group alive, and gloo's threads, which then outlive `close`, can
            # abort a finished process. Imported before there is a group, it keeps none.
            importlib.import_module("torch.distributed.nn")
            dist.init_process_group("nccl" if use_cuda else "gloo", timeout=TIMEOUT)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def close(self) -> None:
        if self._started_here and dist.is_initialized():
            dist.destroy_process_group()

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums each value over the processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        out: list[float] = total.tolist()
        return out

    def share(self, value: Any) -> Any:
        """Returns the value of process 0 in every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def collect(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors of all processes, which must have one shape."""
        if self.size == 1:
            return [tensor]
        mine = tensor.to(self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine)
        return [other.cpu() for other in everyone]

    def sum_gradients(self, parameters: Iterable[nn.Parameter], sums: Tensor) -> None:
        """Sums gradients and the vector `sums` over the processes, in place."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:  # a process whose batches did not touch it
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        flat = torch.cat([gradient.flatten().float() for gradient in gradients])
        dist.all_reduce(flat)
        dist.all_reduce(sums)
        offset = 0
        for gradient in gradients:
            gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()

    def same_weights(self, module: nn.Module) -> None:
        """Copies the weights of process 0 to every process."""
        if self.size > 1:
            with torch.no_grad():
                for tensor in module.state_dict().values():
                    dist.broadcast(tensor, src=0)
