"""One file over HTTP. In: a URL and where the file shall be. Out: the whole file there, checked, or a `DataError`.

pooch (and requests below it) does the transfer. What arrives goes to FILE.part, so that a cut connection or a killed process
goes on where it stopped (HTTP Range, with If-Range so that a file that changed on the server starts afresh). Only a complete
file of the right checksum, or one that `check` accepts, gets the name.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from entformer.errors import DataError

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if the server says

_CHUNK = 1 << 16  # bytes; less than one chunk is lost when a connection is cut
_TIMEOUT = 30.0  # seconds without a byte
_FAILURES = 3  # in a row without a byte of progress, then we give up


def download(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    check: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
) -> str:
    """Bring the file at `url` to `path`.

    Args:
        url: an http or https address.
        path: where the file shall be.
        sha256: what the file must have; None if nobody knows.
        check: raises `DataError` if the file at a path is not what it has to be; asked before the file gets its name.
        progress: called with the name, the bytes so far and the bytes in all.

    Returns:
        The sha256 of the file.

    Raises:
        DataError: it cannot be reached, stored, or is not the file that is wanted. What came of a wrong file is removed.
    """
    import requests  # pooch's own dependency; both take a while to import

    part = path.with_name(path.name + ".part")
    advice = f"give a local copy with --from DIR or a mirror with --from URL, or fetch the file yourself and put it at {path}"
    failures, before = 0, -1
    while True:
        try:
            _continue(url, part, checked=sha256 is not None, progress=progress)
            break
        except requests.HTTPError as problem:
            raise DataError(f"{url} answered {_status(problem)}; {advice}.") from problem
        except requests.RequestException as problem:
            size = part.stat().st_size if part.exists() else 0
            failures = 0 if size > before else failures + 1
            before = max(size, before)
            begun = size > 0 or isinstance(problem, requests.exceptions.ChunkedEncodingError)
            if not begun or failures >= _FAILURES:
                kept = f" ({size:,} bytes are kept and the next try goes on from there)" if size else ""
                raise DataError(f"{url} cannot be reached: {_reason(problem)}{kept}; {advice}.") from problem
        except OSError as problem:
            why = "the disk is full" if problem.errno == errno.ENOSPC else problem.strerror or str(problem)
            raise DataError(f"{path.name} cannot be stored in {path.parent}: {why}.") from problem
    try:
        found = file_sha256(part)
        if sha256 is not None and found != sha256:
            raise DataError(
                f"{path.name} from {url} is damaged or not the file we know: its sha256 is {found}, not {sha256}; "
                "try again, or give a local copy with --from DIR."
            )
        if check is not None:
            try:
                check(part)
            except DataError as problem:
                raise DataError(f"{url} did not send the file: {str(problem).rstrip('.')}; {advice}.") from problem
    except DataError:
        _forget(part)
        raise
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    _forget(part)
    return found


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Sink:
    """What pooch writes to: the part file, from where the server's answer begins."""

    def __init__(self, file: BinaryIO, part: Path, url: str, progress: Progress | None) -> None:
        self.file, self.part, self.url, self.progress = file, part, url, progress
        self.have = file.seek(0, os.SEEK_END)
        self.total: int | None = None

    def answered(self, answer: Any, **_: Any) -> None:
        """Called by requests once the head of an answer is there, before its body."""
        if answer.is_redirect or not answer.ok:
            return
        if answer.status_code == 206:
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {self.have}-"):
                raise DataError(f"{self.url} sent another range than was asked for; delete {self.part} and try again.")
        else:
            self.have = self.file.seek(0)
            self.file.truncate()
            _note(self.part, self.url, answer.headers.get("ETag") or answer.headers.get("Last-Modified"))
        length = answer.headers.get("Content-Length", "")
        self.total = self.have + int(length) if length.isdecimal() else None

    def write(self, chunk: bytes) -> None:
        self.file.write(chunk)
        self.have += len(chunk)
        if self.progress:
            self.progress(self.part.name.removesuffix(".part"), self.have, self.total)

    def flush(self) -> None:
        self.file.flush()


def _continue(url: str, part: Path, *, checked: bool, progress: Progress | None) -> None:
    """Fetch what is still missing of a part file. `checked`: a checksum at the end will show a wrong join."""
    import pooch
    import requests

    headers = {"User-Agent": "entformer", "Accept-Encoding": "identity"}
    with part.open("r+b" if part.exists() else "w+b") as file:
        sink = _Sink(file, part, url, progress)
        have = sink.have
        validator = _validator(part, url)
        if have and (validator or checked):
            headers["Range"] = f"bytes={have}-"
            if validator:
                headers["If-Range"] = validator
        fetch = pooch.HTTPDownloader(chunk_size=_CHUNK, headers=headers, hooks={"response": sink.answered}, timeout=_TIMEOUT)
        try:
            fetch(url, sink, None)
        except requests.HTTPError as problem:
            answer = problem.response
            if answer is None or answer.status_code != 416 or not have:
                raise
            # Nothing is left to send: the part is complete, or it is not of this file.
            if answer.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return
        else:
            return
    _forget(part)
    _continue(url, part, checked=checked, progress=progress)


def _status(problem: Any) -> str:
    return f"{problem.response.status_code} {problem.response.reason}"


def _reason(problem: BaseException) -> str:
    """The innermost cause in words: requests wraps what the system said several times."""
    while (inner := problem.__cause__ or problem.__context__) is not None:
        problem = inner
    said = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return " ".join(str(said).split()).rstrip(".")


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _note(part: Path, url: str, validator: str | None) -> None:
    """Remember which version of which file the part belongs to."""
    if validator and not validator.startswith("W/"):  # a weak tag does not promise the same bytes
        _notes(part).write_text(json.dumps({"url": url, "validator": validator}))
    else:
        _notes(part).unlink(missing_ok=True)


def _validator(part: Path, url: str) -> str | None:
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, RecursionError):
        note = json.loads(_notes(part).read_text())
        if note.get("url") == url:
            return str(note["validator"])
    return None


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _notes(part).unlink(missing_ok=True)
