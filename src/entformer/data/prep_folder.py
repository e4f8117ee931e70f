"""Metadata of a prepared directory: prep.json (what it was made from) and checksums.json (size and SHA-256 of each file).

A file is compared with its checksum before it is opened. Directories of older versions have no checksums.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from entformer.data.corpus import ParallelCorpus
from entformer.data.filters import PreprocessConfig
from entformer.data.store import AGAIN, check_size, read_object
from entformer.errors import DataError
from entformer.files import file_sha256, write_json
from entformer.text.tokenizer import SubwordTokenizer

FORMAT = 1
CHECKSUMS = "checksums.json"
_RULES = ("max_length", "max_ratio", "dedup", "clean", "lowercase", "keep_identical")


def make_request(corpus: ParallelCorpus, config: PreprocessConfig, subwords: SubwordTokenizer | None) -> dict[str, Any]:
    """Returns everything the result of `prepare` depends on, as stored in prep.json."""
    splits = {"train": corpus.train, "valid": (corpus.valid,), "test": (corpus.test,)}
    files = {
        split: [{"files": [file_sha256(path) for path in text.files], "columns": list(text.columns)} for text in texts if text]
        for split, texts in splits.items()
    }
    return {
        "languages": [corpus.source_language, corpus.target_language],
        "tokenized": corpus.tokenized,
        "files": files,
        "rules": {name: getattr(config, name) for name in _RULES},
        "vocab_size": config.vocab_size if subwords is None else None,
        "subwords": subwords.fingerprint if subwords is not None else None,
        "allow_truncate": config.allow_truncate,
        "sample": config.sample,
        "seed": config.seed,
    }


class _TextRequest(BaseModel, strict=True):
    files: list[str]


class _Request(BaseModel, strict=True):
    files: dict[str, list[_TextRequest]]


class _Facts(BaseModel, strict=True):
    """Fields that every prep.json has."""

    corpus: str
    source_language: str
    target_language: str
    tokenized: bool
    lowercase: bool
    splits: list[str]
    fingerprint: str
    request: _Request
    report: dict[str, Any]


def read_facts(directory: Path) -> dict[str, Any]:
    """Returns the content of prep.json.

    Raises:
        DataError: The file is missing, damaged, or written by another version.
    """
    path = directory / "prep.json"
    if not path.exists():
        reason = "not a prepared directory: prep.json is missing" if directory.is_dir() else "there is no such directory"
        raise DataError(f"{directory}: {reason}; create one with `entformer prep`.")
    facts = read_object(path)
    if facts.get("format") != FORMAT:
        raise DataError(f"{path}: written by another version of entformer; {AGAIN}.")
    try:
        _Facts.model_validate(facts)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        raise DataError(f"{path}: damaged ({'.'.join(map(str, first['loc']))}: {first['msg']}); {AGAIN}.") from err
    return facts


def stored(directory: Path) -> dict[str, Any] | None:
    """Returns the content of prep.json, or None if there is none that this version can use."""
    try:
        return read_facts(directory)
    except DataError:
        return None


def write_checksums(directory: Path) -> None:
    """Writes checksums.json for all files in a directory."""
    files = {path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in sorted(directory.iterdir())}
    write_json(directory / CHECKSUMS, files)


def read_checksums(directory: Path) -> dict[str, tuple[int, str]]:
    """Returns size and SHA-256 by file name; empty for a directory of an older version."""
    path = directory / CHECKSUMS
    if not path.exists():
        return {}
    try:
        return {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in read_object(path).items()}
    except (KeyError, TypeError, ValueError) as err:
        raise DataError(f"{path}: damaged; {AGAIN}.") from err


def verify(path: Path, size: int, sha256: str) -> None:
    """Compares a file with its checksum.

    Raises:
        DataError: The file is missing, or its size or content differs.
    """
    check_size(path, size)
    if file_sha256(path) != sha256:
        raise DataError(f"{path}: changed since it was written (the checksum differs); {AGAIN}.")
