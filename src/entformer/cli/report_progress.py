"""How far a report has come. In: a console. Out: the function that `report_data` calls with (what, done, of how many)."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from entformer.analysis.data import Progress as ProgressCall


@contextmanager
def report_progress(console: Console, indent: str = "") -> Iterator[ProgressCall]:
    """A bar per task at a terminal, which goes when all is done; elsewhere one line when a task begins."""
    columns = (
        TextColumn(f"{indent}{{task.description}}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
                if not console.is_terminal:
                    console.print(f"{indent}{what}: {total:,} sentences ...", markup=False, highlight=False, soft_wrap=True)
            bar.update(tasks[what], completed=done)

        yield progress
