"""Ctrl-C and SIGTERM. In: signals. Out: a number the loop looks at between steps, so that it can finish the step and save.

A second Ctrl-C does not wait. Outside of the main thread Python allows no handlers; nothing is caught there.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Catches signals while it is entered."""

    def __init__(self) -> None:
        self.received = 0
        """The signal that came, 0 for none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in CAUGHT}
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number
