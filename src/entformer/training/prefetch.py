"""Batches made ready in a thread while the model computes. In: an endless stream of epochs. Out: batches with their place.

The place travels with the batch, so what was made ready and never used is forgotten: resuming starts from what was trained.
"""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from entformer.data.batch import Batch
from entformer.data.batching import TokenBatches


@dataclass(frozen=True)
class Placed:
    """A batch, and where the stream stands once it is done."""

    batch: Batch
    epoch: int
    position: int  # batches of the epoch that are done then


class Stream:
    """Endless batches from (epoch, position) on. Use as a context manager: leaving it ends the thread."""

    def __init__(self, batches: TokenBatches, *, epoch: int, position: int, depth: int = 4) -> None:
        self._batches, self._epoch, self._position = batches, epoch, position
        self._ready: queue.Queue[Placed | BaseException] = queue.Queue(maxsize=depth)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

    def __enter__(self) -> "Stream":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._leaving.set()
        self._thread.join(timeout=5)

    def take(self) -> Placed:
        """The next batch; an error met while making it is raised here."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self) -> None:
        try:
            for placed in self._all():
                self._put(placed)
                if self._leaving.is_set():
                    return
        except BaseException as problem:
            self._put(problem)

    def _put(self, item: Placed | BaseException) -> None:
        while not self._leaving.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def _all(self) -> Iterator[Placed]:
        epoch, position = self._epoch, self._position
        while True:
            total = self._batches.batches_in(epoch)
            for batch in self._batches.epoch(epoch, position):
                position += 1
                # The last batch of an epoch leaves the stream at the start of the next.
                yield Placed(batch, epoch + 1, 0) if position >= total else Placed(batch, epoch, position)
            epoch, position = epoch + 1, 0
