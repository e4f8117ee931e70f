"""Atomic writes, locks and checksums: a file or directory appears complete or not at all.

Content is written under a temporary name, synced, then renamed, so that neither a reader nor the next start after a crash
finds a partial file.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from entformer.errors import ArgumentError, DataError, RunFailed

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces `path` by `data` atomically."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with wrap_os_errors(path):
        try:
            temporary.write_bytes(data)
            sync_file(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replaces `path` by `text` in UTF-8 atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` by `value` as indented JSON atomically. NaN and infinities become null."""
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Returns `value` with NaN and infinities replaced by None, also inside lists and dicts."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in `path`.

    Raises:
        DataError: The file is missing, unreadable or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError(f"{path} is missing.") from err
    except (OSError, ValueError, RecursionError) as err:
        raise DataError(f"{path} cannot be read as JSON ({err}).") from err
    if not isinstance(value, dict):
        raise DataError(f"{path} must hold a JSON object.")
    return value


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_temporary(directory: Path) -> None:
    """Removes temporary files that `write_bytes` left in `directory` when its process was killed."""
    for path in directory.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Waits until the file's content is on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Waits until the names in `directory` are on disk, where the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def staged_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory that replaces `path` when the block ends without an error, and is removed otherwise.

    The directory is locked while in use; unlocked ones, left by killed processes, are removed first.
    """
    path = path.resolve()
    staged, old = (path.with_name(f".{path.name}.{os.getpid()}.{suffix}") for suffix in ("partial", "old"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("partial", "old"):
            for left in path.parent.glob(f".{glob.escape(path.name)}.*.{suffix}"):
                _remove_unlocked(left)
        staged.mkdir()
        lock = os.open(staged, os.O_RDONLY)
    except OSError as err:
        raise ArgumentError(f"the directory {path} cannot be created ({err.strerror}); choose another one.") from err
    try:
        _flock(lock, wait=False)
        with wrap_os_errors(path):
            yield staged
            for file in staged.iterdir():
                sync_file(file)
            if path.exists():
                os.replace(path, old)
            os.replace(staged, path)
            sync_directory(path.parent)
    finally:
        os.close(lock)
        shutil.rmtree(staged, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _flock(handle: int, *, wait: bool) -> None:
    import fcntl  # POSIX only

    fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_unlocked(directory: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            _flock(handle, wait=False)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(handle)


@contextlib.contextmanager
def directory_lock(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds an exclusive lock on `directory` (file `.lock` in it) until the block or the process ends.

    Args:
        directory: The directory to lock; it must exist.
        wait: Wait for another process to release the lock. If False, raise `ArgumentError` instead.
    """
    path = directory / ".lock"
    try:
        file = path.open("a+", encoding="utf-8", errors="replace")
    except OSError as err:
        raise ArgumentError(
            f"{path} cannot be opened ({err.strerror}): {directory} belongs to another user or is read-only; "
            "choose another directory."
        ) from err
    with file:
        try:
            _flock(file.fileno(), wait=wait)
        except OSError as err:
            file.seek(0)
            holder = file.read(20).strip()
            raise ArgumentError(
                f"another process (PID {holder if holder.isdecimal() else 'unknown'}) is writing to {directory}; "
                "wait for it, stop it, or choose another directory."
            ) from err
        with wrap_os_errors(path):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


@contextlib.contextmanager
def wrap_os_errors(path: Path) -> Iterator[None]:
    """Raises `RunFailed` with the cause and the remedy if `path` cannot be written."""
    try:
        yield
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"the disk is full: {path} could not be written. What was saved before is intact; "
                "free some space and run the same command again."
            ) from err
        if err.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise RunFailed(
                f"{path} cannot be written ({err.strerror}); make its directory writable or choose another."
            ) from err
        raise RunFailed(f"{path} could not be written ({err.strerror or err}).") from err
