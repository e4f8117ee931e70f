"""Handles Ctrl-C and SIGTERM, so that the training loop can finish its step and save.

A second Ctrl-C interrupts at once. Python allows handlers in the main thread only; elsewhere nothing is caught.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """A context manager that records signals."""

    def __init__(self) -> None:
        self.received = 0
        """Number of the first signal received, 0 for none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in CAUGHT}
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number
