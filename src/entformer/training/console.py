"""What a person sees of a training. In: sentences and progress. Out: train.log, and the terminal: a moving bar, or plain lines.

On standard error, so that what a program reads from standard output stays clean.
"""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn


class Reporter:
    """Says things. `quiet` writes to the log only; with no log either, nothing is written (other processes than the first)."""

    def __init__(self, log: Path | None, *, quiet: bool = False) -> None:
        self._log: IO[str] | None = None if log is None else open(log, "a", encoding="utf-8")  # noqa: SIM115
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if problem is not None and self._log is not None:
            self._write(f"stopped: {' '.join(str(problem).split()) or type(problem).__name__}")
        self.end_bar()
        if self._log is not None:
            self._log.close()

    def say(self, text: str) -> None:
        """One line."""
        self._write(text)
        self._console.print(text, markup=False)

    def begin_bar(self, total: int, done: int) -> None:
        """Show a moving bar if this is a terminal."""
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

    def move_bar(self, step: int, text: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, description=text)

    def interval(self, text: str) -> None:
        """The line of a log interval: in the log always, on the screen where no bar shows it."""
        if self._progress is None:
            self.say(text)
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()


def time_text(seconds: float) -> str:
    """3 s, 4 min, 2 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def is_terminal() -> bool:
    return sys.stderr.isatty()
