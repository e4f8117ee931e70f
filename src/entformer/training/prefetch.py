"""Builds batches in a thread while the model computes.

Each batch carries its position in the data, so that resuming starts after the last batch trained on, not the last one built.
"""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Generic

from entformer.training.task import B, BatchSource


@dataclass(frozen=True)
class PrefetchedBatch(Generic[B]):
    """A batch and the position in the data after it."""

    batch: B
    epoch: int
    position: int  # number of batches of the epoch up to and including this one


class BatchPrefetcher(Generic[B]):
    """Endless batches from (epoch, position) on. A context manager: the thread ends on exit."""

    def __init__(self, batches: BatchSource[B], *, epoch: int, position: int, depth: int = 4) -> None:
        self._batches, self._epoch, self._position = batches, epoch, position
        self._ready: queue.Queue[PrefetchedBatch[B] | BaseException] = queue.Queue(maxsize=depth)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

    def __enter__(self) -> "BatchPrefetcher[B]":
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(timeout=5)

    def take(self) -> PrefetchedBatch[B]:
        """Returns the next batch; raises the error that building it raised."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self) -> None:
        try:
            for prefetched in self._all():
                self._put(prefetched)
                if self._closing.is_set():
                    return
        except BaseException as err:
            self._put(err)

    def _put(self, item: PrefetchedBatch[B] | BaseException) -> None:
        while not self._closing.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def _all(self) -> Iterator[PrefetchedBatch[B]]:
        epoch, position = self._epoch, self._position
        while True:
            total = self._batches.batches_in(epoch)
            for batch in self._batches.epoch(epoch, position):
                position += 1
                # After the last batch of an epoch the position is the start of the next.
                yield PrefetchedBatch(batch, epoch + 1, 0) if position >= total else PrefetchedBatch(batch, epoch, position)
            epoch, position = epoch + 1, 0
