"""What commands share for output: the progress bar, tables, and checks of output paths before long work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from entformer.errors import ArgumentError

if TYPE_CHECKING:
    from entformer.text.lines import LineCounter


class ShowProgress(Protocol):
    def __call__(self, description: str, done: int = 0, total: int | None = None, text: str = "", /) -> None: ...


@contextmanager
def progress_bar(console: Console, indent: str = "") -> Iterator[ShowProgress]:
    """Yields a function that shows progress: a bar per description on a terminal, otherwise a line per description.

    A bar that is finished or has no total disappears when the next one begins. A quiet console shows nothing.
    """
    columns = (
        TextColumn(f"{indent}{{task.description}}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
    )
    disabled = console.quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disabled, redirect_stdout=False) as bar:
        tasks: dict[str, TaskID] = {}

        def show(description: str, done: int = 0, total: int | None = None, text: str = "", /) -> None:
            if description not in tasks:
                for task in bar.tasks:
                    task.visible = task.total is not None and not task.finished
                tasks[description] = bar.add_task(description, total=total, text="")
                if not console.is_terminal:
                    count = "" if total is None else f" ({total:,})"
                    console.print(f"{indent}{description}{count} ...", markup=False, highlight=False, soft_wrap=True)
            shown = text or (f"{done:,}/{total:,}" if total is not None else "")
            bar.update(tasks[description], completed=done, total=total, text=shown)

        yield show


def make_table(*headings: str, title: str | None = None) -> Table:
    """Returns a table whose first column is left-aligned and whose other columns are right-aligned."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=not i)
    return table


def describe_lines(counter: "LineCounter") -> str:
    """Returns "line 3" or "lines 3, 7, ..."."""
    numbers = ", ".join(map(str, counter.lines)) + (", ..." if counter.count > len(counter.lines) else "")
    return f"line{'' if counter.count == 1 else 's'} {numbers}"


def writable_directory(path: Path) -> Path:
    """Creates a directory if it is missing and checks that files can be created in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ArgumentError(f"cannot create the directory {path} ({err.strerror}); choose another one.") from err
    if not os.access(path, os.W_OK | os.X_OK):
        raise ArgumentError(f"the directory {path} is not writable; choose another one.")
    return path


def writable_file(path: Path) -> Path:
    """Checks that a file can be written, creating its directory if it is missing, so that long work is not lost."""
    writable_directory(path.parent)
    if path.is_dir():
        raise ArgumentError(f"{path} is a directory; give a file name.")
    if path.exists() and not os.access(path, os.W_OK):
        raise ArgumentError(f"the file {path} is not writable; choose another one.")
    return path
