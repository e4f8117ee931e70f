"""A named corpus on this machine. In: its name, a cache folder, perhaps a mirror or a copy. Out: two text files per split.

    files = fetch("multi30k", cache)                       # from the network
    files = fetch("multi30k", cache, source="some/folder")  # a local copy: the downloads, or what is in them
    files = fetch("multi30k", cache, source="https://mirror.example/multi30k")

The cache holds NAME/downloads/ (files as they are on the network), NAME/LAYOUT/ (plain text of each split) and
NAME/checksums.json. A file whose checksum nobody publishes is recorded there at its first download; if it ever comes
differently, that is an error. A local copy is taken as it is: its owner answers for it.
"""

import contextlib
import fcntl
import hashlib
import html
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from entformer.data.archives import members
from entformer.data.catalogue import SPLITS, Corpus, Download, Layout, Piece, corpus
from entformer.data.http_download import Progress, download
from entformer.errors import ArgumentError, DataError
from entformer.text.lines import read_lines

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class CorpusFiles:
    """Where a corpus lies. `files[split]` = (source file, target file), plain text or .gz, equally many lines."""

    name: str
    layout: str
    source_language: str
    target_language: str
    files: dict[str, tuple[Path, Path]]
    tokenized: bool
    lowercase: bool
    vocab_size: int  # of the joint BPE that the published figures use


def fetch(
    name: str, cache: Path, *, source: str | None = None, layout: str | None = None, progress: Progress | None = None
) -> CorpusFiles:
    """Make a corpus ready: from the cache, else from `source` (a folder or the URL of a mirror), else from its home.

    `layout` chooses between forms of the text (Multi30k: "raw" or "tok"); without it, the first that the local copy has.
    """
    known = corpus(name)
    choices = _layouts(known, layout)
    cache = cache.expanduser()
    if source is not None and not source.lower().startswith(("http://", "https://")):
        return _from_folder(known, choices, Path(source).expanduser(), cache / name, asked=layout)
    chosen = choices[0]
    texts = cache / name / chosen.name
    with _held(cache / name):
        if not _complete(known, texts):
            folder = cache / name / "downloads"
            folder.mkdir(exist_ok=True)
            for entry in chosen.downloads:
                _download(entry, folder, cache / name / "checksums.json", mirror=source, progress=progress)
            _write_splits(known, chosen, {entry.file: folder / entry.file for entry in chosen.downloads}, texts)
    return _answer(known, chosen, {split: _text_files(known, texts, split) for split in SPLITS})


def _layouts(known: Corpus, name: str | None) -> list[Layout]:
    choices = [layout for layout in known.layouts if name in (None, layout.name)]
    if not choices:
        names = ", ".join(layout.name for layout in known.layouts)
        raise ArgumentError(f"The corpus {known.name} has no layout {name!r}; it has {names}.")
    return choices


def _answer(known: Corpus, layout: Layout, files: dict[str, tuple[Path, Path]]) -> CorpusFiles:
    return CorpusFiles(
        known.name,
        layout.name,
        known.source_language,
        known.target_language,
        files,
        layout.tokenized,
        layout.lowercase,
        known.vocab_size,
    )


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One process at a time works in a corpus folder; the others wait and then find the work done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as problem:
        raise DataError(f"The cache folder {folder} cannot be written: {problem.strerror or problem}.") from problem
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- the network ---------------------------------------------------------------------------------------------------------


def _download(entry: Download, folder: Path, record: Path, *, mirror: str | None, progress: Progress | None) -> None:
    path = folder / entry.file
    if path.exists():  # it got this name only once it was whole and checked
        return
    recorded: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    expected = entry.sha256 or recorded.get(entry.file)
    url = f"{mirror.rstrip('/')}/{entry.file}" if mirror else entry.url
    try:
        found = download(url, path, sha256=expected, progress=progress)
    except DataError as problem:
        if expected and not entry.sha256 and expected in str(problem):
            raise DataError(f"{problem} The checksum was recorded at the first download in {record}.") from problem
        raise
    if expected is None:
        _write_text(record, json.dumps({**recorded, entry.file: found}, indent=2, sort_keys=True) + "\n")


# ---- a local copy --------------------------------------------------------------------------------------------------------


def _from_folder(known: Corpus, choices: list[Layout], folder: Path, cache: Path, *, asked: str | None) -> CorpusFiles:
    if not folder.is_dir():
        raise DataError(f"--from {folder} is not a folder; give a folder that holds {known.name}, or a URL.")
    problems = []
    for layout in choices:
        found, missing = _find(layout, folder)
        if missing:
            problems.append(f"{layout.name} lacks {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))
            continue
        if all(len(pieces) == 1 and pieces[0].archive is None for pieces in layout.splits.values()):
            files = {split: (found[pieces[0].source], found[pieces[0].target]) for split, pieces in layout.splits.items()}
            return _answer(known, layout, files)
        texts = cache / f"{layout.name}-{_fingerprint(found.values())}"
        with _held(cache):
            if not _complete(known, texts):
                _write_splits(known, layout, found, texts)
        return _answer(known, layout, {split: _text_files(known, texts, split) for split in SPLITS})
    which = f" in the layout {asked}" if asked else ""
    raise DataError(f"{folder} does not hold {known.name}{which}: {'; '.join(problems)}.")


def _find(layout: Layout, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Where each needed file is: the archive if it is there, else what it holds; compressed or not. And what is missing."""
    there: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            there.setdefault(path.name, path)
            there[path.relative_to(folder).as_posix()] = path
    found: dict[str, Path] = {}
    missing: list[str] = []
    for pieces in layout.splits.values():
        for piece in pieces:
            if piece.archive and piece.archive in there:
                found[piece.archive] = there[piece.archive]
                continue
            for name in (piece.source, piece.target):
                copy = _named(name, there)
                if copy is None:
                    missing.append(piece.archive or name)
                else:
                    found[name] = copy
    return found, list(dict.fromkeys(missing))


def _named(name: str, there: dict[str, Path]) -> Path | None:
    plain = name.removesuffix(".gz")
    for candidate in (plain, plain.rpartition("/")[2]):
        for ending in (".gz", ""):
            if candidate + ending in there:
                return there[candidate + ending]
    return None


def _fingerprint(paths: Iterable[Path]) -> str:
    """Eight letters that change when a file of the local copy does."""
    states = sorted((str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()[:8]


# ---- from pieces to splits -----------------------------------------------------------------------------------------------


def _text_files(known: Corpus, texts: Path, split: str) -> tuple[Path, Path]:
    return texts / f"{split}.{known.source_language}", texts / f"{split}.{known.target_language}"


def _complete(known: Corpus, texts: Path) -> bool:
    # The folder gets its name only once all is in it; a file may still have been deleted by hand.
    return all(path.exists() for split in SPLITS for path in _text_files(known, texts, split))


def _write_splits(known: Corpus, layout: Layout, have: dict[str, Path], texts: Path) -> None:
    """Join the pieces of every split into plain text, in a temporary folder that then takes the final name."""
    work = texts.with_name(texts.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    plain = dict(have)
    inside: dict[str, list[str]] = {}
    for piece in (piece for pieces in layout.splits.values() for piece in pieces):
        if piece.archive and piece.source not in plain:
            inside.setdefault(piece.archive, []).extend((piece.source, piece.target))
    for archive, names in inside.items():
        for name, stream in members(have[archive], names):
            plain[name] = work / f"member-{len(plain)}"
            with plain[name].open("wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
    for split, pieces in layout.splits.items():
        for side, target in enumerate(_text_files(known, work, split)):
            with target.open("w", encoding="utf-8", newline="\n") as out:
                for piece in pieces:
                    _append(plain[(piece.source, piece.target)[side]], piece, out)
                out.flush()
                os.fsync(out.fileno())
    for path in work.glob("member-*"):
        path.unlink()
    shutil.rmtree(texts, ignore_errors=True)
    os.replace(work, texts)


def _append(path: Path, piece: Piece, out: IO[str]) -> None:
    if piece.markup == "segments":
        text = "\n".join(read_lines(path))
        lines: Iterable[str] = (" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text))
    elif piece.markup == "tagged":
        lines = (line.strip() for line in read_lines(path) if not line.lstrip().startswith("<"))
    else:
        lines = read_lines(path)
    for line in lines:
        out.write(line + "\n")


def _write_text(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
