"""Places the command line writes to. In: a path the user gave. Out: the same path, known to be writable, or one clear error.

Also the lines that tell how far a long measurement has come.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from entformer.errors import ArgumentError


@contextmanager
def progress_lines() -> Iterator[Callable[[str], None]]:
    """A function that shows what is going on, on stderr: in one moving line at a terminal, else a line each."""
    notes = Console(stderr=True)
    with notes.status("getting ready") as status:

        def progress(what: str) -> None:
            if notes.is_terminal:
                status.update(what)
            else:
                notes.print(what, highlight=False)

        yield progress


def writable_folder(folder: Path) -> Path:
    """Make `folder` if it is missing and check that files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ArgumentError(f"the folder {folder} cannot be made ({problem.strerror}); give another one.") from problem
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentError(f"the folder {folder} cannot be written to; give another one.")
    return folder


def writable_file(path: Path) -> Path:
    """Check that `path` can be written, making its folder if it is missing, so that a long run does not end in vain."""
    writable_folder(path.parent)
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not os.access(path, os.W_OK):
        raise ArgumentError(f"the file {path} cannot be written to; give another one.")
    return path
