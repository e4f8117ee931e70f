"""One file over HTTP. In: a URL and where the file shall be. Out: the whole file there, checked, or a `DataError`.

What arrives goes to FILE.part, so that a cut connection or a killed process is taken up where it stopped (HTTP Range, guarded
by If-Range so that a file that changed on the server starts afresh). Only a complete file of the right checksum gets the name.
"""

import contextlib
import errno
import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from entformer.errors import DataError

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if the server says

_ADVICE = "give a local copy with --from DIR or a mirror with --from URL"
_CHUNK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_FAILURES = 3  # in a row without a byte of progress, then we give up


class _Cut(Exception):
    """The connection ended before the file did."""


def download(url: str, path: Path, *, sha256: str | None = None, progress: Progress | None = None) -> str:
    """Bring the file at `url` to `path`; its sha256. A checksum that is not the one given removes the part and raises."""
    part = path.with_name(path.name + ".part")
    failures, before = 0, -1
    while True:
        try:
            _continue(url, part, checked=sha256 is not None, progress=progress)
            break
        except urllib.error.HTTPError as problem:
            raise DataError(f"{url} answered {problem.code} {problem.reason}; {_ADVICE}.") from problem
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, _Cut) as problem:
            size = part.stat().st_size if part.exists() else 0
            failures = 0 if size > before else failures + 1
            before = max(size, before)
            if size == 0 or failures >= _FAILURES:
                reason = getattr(problem, "reason", problem)
                kept = f" ({size:,} bytes are kept and the next try goes on from there)" if size else ""
                raise DataError(f"{url} cannot be reached: {reason}{kept}; {_ADVICE}.") from problem
        except OSError as problem:
            why = "the disk is full" if problem.errno == errno.ENOSPC else problem.strerror or str(problem)
            raise DataError(f"{path.name} cannot be stored in {path.parent}: {why}.") from problem
    found = file_sha256(part)
    if sha256 is not None and found != sha256:
        _forget(part)
        raise DataError(
            f"{path.name} from {url} is damaged or not the file we know: its sha256 is {found}, not {sha256}; "
            "try again, or give a local copy with --from DIR."
        )
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    _forget(part)
    return found


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _continue(url: str, part: Path, *, checked: bool, progress: Progress | None) -> None:
    """Fetch what is still missing of a part file. `checked`: a checksum at the end will show a wrong join."""
    headers = {"User-Agent": "entformer", "Accept-Encoding": "identity"}
    have = part.stat().st_size if part.exists() else 0
    validator = _validator(part, url)
    if have and (validator or checked):
        headers["Range"] = f"bytes={have}-"
        if validator:
            headers["If-Range"] = validator
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as problem:
        if problem.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        # Nothing is left to send: the part is complete, or it is not of this file.
        if problem.headers.get("Content-Range", "").rpartition("/")[2] != str(have):
            _forget(part)
            _continue(url, part, checked=checked, progress=progress)
        return
    with answer:
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise DataError(f"{url} sent another range than was asked for; delete {part} and try again.")
        if not resumed:
            have = 0
            _note(part, url, answer.headers.get("ETag") or answer.headers.get("Last-Modified"))
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress:
                    progress(part.name.removesuffix(".part"), have, total)
    if total is not None and have < total:
        raise _Cut(f"the connection ended after {have:,} of {total:,} bytes")


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _note(part: Path, url: str, validator: str | None) -> None:
    """Remember which version of which file the part belongs to."""
    if validator and not validator.startswith("W/"):  # a weak tag does not promise the same bytes
        _notes(part).write_text(json.dumps({"url": url, "validator": validator}))
    else:
        _notes(part).unlink(missing_ok=True)


def _validator(part: Path, url: str) -> str | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        note = json.loads(_notes(part).read_text())
        if note.get("url") == url:
            return str(note["validator"])
    return None


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _notes(part).unlink(missing_ok=True)
