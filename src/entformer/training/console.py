"""Training messages and progress: train.log, and a progress bar or plain lines on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from entformer.errors import RunFailed
from entformer.files import wrap_os_errors


class Reporter:
    """Writes messages to the log and the terminal.

    Args:
        log: The log file; None writes no log (all processes of a distributed run but the first).
        quiet: Write to the log only.
        on_interval: Called at every log interval with the step, the number of steps and the loss.
    """

    def __init__(
        self, log: Path | None, *, quiet: bool = False, on_interval: Callable[[int, int, float], None] | None = None
    ) -> None:
        self.on_interval = on_interval
        self._log: IO[str] | None = None if log is None else open(log, "a", encoding="utf-8")  # noqa: SIM115
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.end_bar()
        with contextlib.suppress(OSError, RunFailed):  # on a full disk the error to report is the first one
            if exc is not None:
                self._write(f"stopped: {' '.join(str(exc).split()) or type(exc).__name__}")
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()

    def say(self, text: str) -> None:
        """Writes one line."""
        self._write(text)
        self._console.print(text, markup=False)

    def begin_bar(self, total: int, done: int) -> None:
        """Shows a progress bar if standard error is a terminal."""
        if not self._console.is_terminal or self._console.quiet:
            return
        columns = (TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(None), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=self._console, transient=True, redirect_stdout=False)
        self._task = self._progress.add_task("", total=total, completed=done)
        self._progress.start()

    def end_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def move_bar(self, step: int, text: str | None = None) -> None:
        """Moves the bar to `step`. Without a text, the one before stays."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, description=text)

    def interval(self, text: str) -> None:
        """Writes the line of a log interval: always to the log, and to the terminal unless a progress bar shows it."""
        if self._progress is None:
            self.say(text)
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        if self._log is not None:
            with wrap_os_errors(Path(self._log.name)):
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
                self._log.flush()


def time_text(seconds: float) -> str:
    """Formats a duration: 3 s, 4 min, 2 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def is_terminal() -> bool:
    return sys.stderr.isatty()
