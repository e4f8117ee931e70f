"""Files that appear whole or not at all. In: a path and what to write. Out: the file on disk, or the old one untouched.

Written under another name, synced, then renamed: a reader, or the next start after a crash, never sees half of it.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from entformer.errors import DataError, RunFailed

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step."""
    # The name says what it is, and no two processes choose the same.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with wrap_os_errors(path):
        try:
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8 in one step."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as readable JSON in one step. NaN and infinities are written as null, as JSON has none."""
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """`value` with NaN and infinities replaced by None, all through lists and dicts."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; a clear error if it is missing or not JSON."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise DataError(f"{path} is missing.") from problem
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{path} cannot be read as JSON ({problem}).") from problem
    if not isinstance(value, dict):
        raise DataError(f"{path} must hold a JSON object.")
    return value


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_temporary(folder: Path) -> list[str]:
    """Remove what `write_bytes` leaves in `folder` when its process is killed; the names of the files they were for."""
    if not folder.is_dir():
        return []
    left = [(match, path) for path in sorted(folder.iterdir()) if (match := _TEMPORARY.fullmatch(path.name))]
    for _, path in left:
        path.unlink(missing_ok=True)
    return [match[1] for match, _ in left]


def sync_file(path: Path) -> None:
    """Wait until the file's content is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def wrap_os_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` into one sentence that says what to do."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"the disk is full: {path} could not be written. What was saved before is intact; "
                "free some space and run the same command again."
            ) from problem
        if problem.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise RunFailed(
                f"{path} cannot be written ({problem.strerror}); make its folder writable or give another."
            ) from problem
        raise RunFailed(f"{path} could not be written ({problem.strerror or problem}).") from problem
