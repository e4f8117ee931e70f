"""The prepared folder as a whole: what it was made from, and how it appears at once. In: a corpus and options, or a folder.

checksums.json holds size and sha256 of every file but prep.json and itself; whoever opens a file compares it first. Folders
of older versions have none.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from entformer.data.corpus import Corpus
from entformer.data.filters import Rules
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import SubwordTokenizer

FORMAT = 1
CHECKSUMS = "checksums.json"
_AGAIN = "run `entformer prep` again"


def request(
    corpus: Corpus,
    rules: Rules,
    vocab_size: int,
    allow_truncate: bool,
    subwords: SubwordTokenizer | None,
    sample: int,
    seed: int,
) -> dict[str, Any]:
    """Everything the result depends on, so that equal requests need not be done twice."""
    splits = {"train": corpus.train, "valid": (corpus.valid,), "test": (corpus.test,)}
    files = {
        split: [{"files": [_sha256(path) for path in text.files], "columns": list(text.columns)} for text in texts if text]
        for split, texts in splits.items()
    }
    return {
        "languages": [corpus.source_language, corpus.target_language],
        "tokenized": corpus.tokenized,
        "files": files,
        "rules": rules.as_dict(),
        "vocab_size": vocab_size if subwords is None else None,
        "subwords": subwords.fingerprint if subwords is not None else None,
        "allow_truncate": allow_truncate,
        "sample": sample,
        "seed": seed,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _TextRequest(BaseModel, strict=True):
    files: list[str]


class _Request(BaseModel, strict=True):
    files: dict[str, list[_TextRequest]]


class _Facts(BaseModel, strict=True):
    """What every prep.json holds."""

    corpus: str
    source_language: str
    target_language: str
    tokenized: bool
    lowercase: bool
    splits: list[str]
    fingerprint: str
    request: _Request
    report: dict[str, Any]


def read_facts(folder: Path) -> dict[str, Any]:
    """Read prep.json.

    Raises:
        DataError: there is none, it is damaged, or another version wrote it.
    """
    path = folder / "prep.json"
    facts = _read_object(path)
    if facts is None:
        what = "is no prepared folder: prep.json is missing" if folder.is_dir() else "there is no such folder"
        raise DataError(f"{folder}: {what}; make one with `entformer prep`.")
    if facts.get("format") != FORMAT:
        raise DataError(f"{path}: written by another version of entformer; {_AGAIN}.")
    try:
        _Facts.model_validate(facts)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise DataError(f"{path}: damaged ({'.'.join(map(str, first['loc']))}: {first['msg']}); {_AGAIN}.") from problem
    return facts


def stored(folder: Path) -> dict[str, Any] | None:
    """prep.json of a folder, or None if it has none that this version can use."""
    try:
        return read_facts(folder)
    except DataError:
        return None


def read_checksums(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 by name of file; empty for a folder of an older version."""
    path = folder / CHECKSUMS
    content = _read_object(path)
    try:
        return {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in (content or {}).items()}
    except (KeyError, TypeError, ValueError) as problem:
        raise DataError(f"{path}: damaged; {_AGAIN}.") from problem


def verify(path: Path, size: int, sha256: str) -> None:
    """Compare a file with what it was when the folder was made.

    Raises:
        DataError: it is missing, or its size or content is another.
    """
    try:
        now = path.stat().st_size
        if now != size:
            raise DataError(
                f"{path}: has {now} bytes and must have {size}; a copy was cut short, or the disk was full. "
                f"{_AGAIN[0].upper()}{_AGAIN[1:]}."
            )
        if _sha256(path) != sha256:
            raise DataError(f"{path}: changed since it was written (its checksum is another); {_AGAIN}.")
    except OSError as problem:
        raise DataError(f"{path}: missing ({problem.strerror}); {_AGAIN}.") from problem


def _read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{path}: cannot be read ({problem}); {_AGAIN}.") from problem
    if not isinstance(content, dict):
        raise DataError(f"{path}: damaged, it holds no JSON object; {_AGAIN}.")
    return content


@contextlib.contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """A fresh folder beside `out`, on the same disk, so that it can be renamed to `out` at the end; else it is removed.

    It is locked while in use, so that folders of processes that were killed can be told and are removed here.
    """
    out = out.resolve()
    work = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in [*out.parent.glob(f".{_literal(out.name)}.*.partial"), *out.parent.glob(f".{_literal(out.name)}.*.old")]:
            _remove_unlocked(left)
        work.mkdir()
        lock = os.open(work, os.O_RDONLY)
    except OSError as problem:
        raise ArgumentError(f"the folder {out} cannot be made ({problem.strerror}); give another one.") from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"{out}: the disk is full; free some space or give another folder.") from problem
        raise DataError(f"{problem.filename or out}: {problem.strerror or problem}.") from problem
    finally:
        os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


def _literal(name: str) -> str:
    """A name for glob, without meaning of its own."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _remove_unlocked(folder: Path) -> None:
    """Remove what a killed process left; a folder in use is locked and stays."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def publish(work: Path, out: Path) -> None:
    """Give the finished folder its name; an older one is moved away first and deleted last."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(work.iterdir())
        if path.name != "prep.json"
    }
    (work / CHECKSUMS).write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    for path in work.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = work.with_suffix(".old")
    if out.exists():
        os.replace(out, old)
    os.replace(work, out)
    shutil.rmtree(old, ignore_errors=True)
