"""The prepared folder as a whole: what it was made from, and how it appears at once. In: a corpus and options, or a folder."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from entformer.data.corpus import Corpus
from entformer.data.filters import Rules
from entformer.errors import ArgumentError
from entformer.text.subwords import Subwords

FORMAT = 1


def request(
    corpus: Corpus, rules: Rules, vocab_size: int, allow_truncate: bool, subwords: Subwords | None, sample: int, seed: int
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


def stored(folder: Path) -> dict[str, Any] | None:
    """prep.json of a folder, or None if it has none that this version can use."""
    try:
        facts = json.loads((folder / "prep.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and facts.get("format") == FORMAT else None


def work_folder(out: Path) -> Path:
    """A fresh folder beside `out`, on the same disk, so that it can be renamed to `out` at the end."""
    work = out.resolve().with_name(f".{out.resolve().name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    except OSError as problem:
        raise ArgumentError(f"the folder {out} cannot be made ({problem.strerror}); give another one.") from problem
    return work


def publish(work: Path, out: Path) -> None:
    """Give the finished folder its name; an older one is moved away first and deleted last."""
    for path in work.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = work.with_suffix(".old")
    if out.exists():
        os.replace(out, old)
    os.replace(work, out)
    shutil.rmtree(old, ignore_errors=True)
