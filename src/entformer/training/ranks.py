"""Communication between the processes of a distributed run, from the environment variables that torchrun sets.

    torchrun --nproc-per-node 2 -m entformer train RECIPE

Every process gets the same number of batches per epoch. What is done with gradients is in `training/engine.py`. Without
torchrun there is one process.
"""

import contextlib
import gc
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore

from entformer.errors import ArgumentError, RunFailed

Item = TypeVar("Item")
Result = TypeVar("Result")

PATIENCE = timedelta(hours=12)  # while process 0 prepares data or averages checkpoints


class Ranks:
    """The rank of this process, the number of processes, and collective operations.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N".
        timeout: Minutes that a process waits for the others in a step.
    """

    def __init__(self, device: str = "auto", timeout: float = 10.0) -> None:
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
            self._connect("nccl" if use_cuda else "gloo", timedelta(minutes=timeout))
        self._objects = self._patient = None
        if self.size > 1:
            self._objects = dist.new_group(backend="gloo", timeout=timedelta(minutes=timeout))
            self._patient = dist.new_group(backend="gloo", timeout=PATIENCE)

    def _connect(self, backend: str, timeout: timedelta) -> None:
        # Functions of this module have the group that exists when they are defined as a default argument, and optimizers
        # import it at their first step. It would keep our group alive, and gloo's threads, which then outlive `close`, can
        # abort a finished process. Imported before there is a group, it keeps none.
        importlib.import_module("torch.distributed.nn")
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            dist.init_process_group(backend, timeout=timeout)
            return
        # The launcher's store outlives the workers. Without a prefix per attempt, gloo finds addresses of dead ones after a
        # restart, and waits for them.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt{attempt}", TCPStore(address, port, is_master=False, timeout=timeout))
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def close(self) -> None:
        """Ends the process groups. Engines hold them in reference cycles, and a group that is held keeps its threads."""
        self._objects = self._patient = None
        if self._started_here and dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums each value over the processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        out: list[float] = total.tolist()
        return out

    def share(self, value: Any, *, patient: bool = False) -> Any:
        """Returns the value of process 0 in every process; if `patient`, however long process 0 takes."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._patient if patient else self._objects)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def sum_tensors(self, tensors: Sequence[Tensor], scale: float = 1.0) -> None:
        """Sums tensors over the processes, times `scale`, in place: in one buffer, so that the order of sums is fixed."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten().float() for tensor in tensors])
        dist.all_reduce(flat)
        if scale != 1.0:
            flat *= scale
        for tensor, summed in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))

    def same_weights(self, module: nn.Module) -> None:
        """Copies the weights of process 0 to every process."""
        if self.size > 1:
            with torch.no_grad():
                for tensor in module.state_dict().values():
                    moved = tensor.to(self.device)
                    dist.broadcast(moved, src=0)
                    tensor.copy_(moved)


def spread(
    ranks: Ranks | None, items: Iterable[Item], work: Callable[[Item], Result], should_stop: Callable[[], bool]
) -> list[Result] | None:
    """Applies `work` to every item, each in one of the processes.

    Returns:
        All results in the order of the items, in every process; None if `should_stop` returned True in one of them.
    """
    size, rank = (1, 0) if ranks is None else (ranks.size, ranks.rank)
    own: dict[int, Result] = {}
    stopped = False
    for index, item in enumerate(items):
        if index % size == rank:
            if stopped := should_stop():
                break
            own[index] = work(item)
    parts = [(own, stopped)] if ranks is None else ranks.gather((own, stopped))
    if any(stopped for _, stopped in parts):
        return None
    found = {index: result for part, _ in parts for index, result in part.items()}
    return [found[index] for index in range(len(found))]


@contextlib.contextmanager
def lost_processes(ranks: Ranks) -> Iterator[None]:
    """Raises `RunFailed` if another process of the run is gone or does not answer."""
    try:
        yield
    except RuntimeError as err:
        if ranks.size == 1 or not (isinstance(err, dist.DistError) or "gloo" in str(err)):
            raise
        done, allowed = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
        raise RunFailed(
            f"process {ranks.rank} lost another process of the run ({_cause(str(err))}). The last checkpoint is intact; "
            + (
                f"all processes are started again and resume from it (restart {done + 1} of {allowed})."
                if done < allowed
                else "run the same command again to resume, or add --max-restarts."
            )
        ) from err


def _cause(message: str) -> str:
    """Returns the cause that a message of gloo or NCCL names, without its places in their sources."""
    known = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "Timed out", "Timeout", "timed out")
    return next((words for words in known if words in message), " ".join(message.split())[:200]).lower()
