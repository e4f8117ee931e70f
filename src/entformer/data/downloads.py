"""A named corpus on this machine. In: its name, a cache folder, perhaps a mirror or a copy. Out: two text files per split.

    files = fetch("multi30k", cache)                       # from the network
    files = fetch("multi30k", cache, source="some/folder")  # a local copy: the downloads, or what is in them
    files = fetch("multi30k", cache, source="https://mirror.example/multi30k")

The cache holds NAME/downloads/ (files as they are on the network; a file put there by hand is taken too), NAME/LAYOUT/ (plain
text of each split) and NAME/checksums.json. A file whose checksum nobody publishes is read to its end, split into the corpus
and compared with its other language first; only then its checksum is recorded there, and if it ever comes differently, that
is an error. A local copy is taken as it is: its owner answers for it.
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

from entformer.data.archives import Budget, check_download, members
from entformer.data.datasets import SPLITS, Corpus, Download, Layout, Piece, corpus
from entformer.data.http_download import Progress, download, file_sha256
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
            _from_network(known, chosen, cache / name, texts, mirror=source, progress=progress)
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
    with _storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob("*.part"):  # of a process that was killed; downloads/*.part are taken up instead
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        yield


# ---- the network ---------------------------------------------------------------------------------------------------------


def _from_network(
    known: Corpus, layout: Layout, folder: Path, texts: Path, *, mirror: str | None, progress: Progress | None
) -> None:
    """Download what is missing, make the splits of it, and record the checksums nobody publishes."""
    record = folder / "checksums.json"
    recorded = _read_record(record)
    downloads = folder / "downloads"
    with _storing(downloads):
        downloads.mkdir(exist_ok=True)
    found = {
        entry.file: _download(entry, downloads / entry.file, recorded.get(entry.file), record, mirror, progress)
        for entry in layout.downloads
    }
    unknown = {entry.file for entry in layout.downloads if entry.sha256 is None and entry.file not in recorded}
    try:
        _write_splits(known, layout, {file: downloads / file for file in found}, texts)
        if unknown:
            _compare_counts(known, layout, texts, unknown)
    except _WrongFiles as problem:
        wrong = sorted(unknown & problem.files)
        for file in wrong:
            (downloads / file).unlink(missing_ok=True)
        shutil.rmtree(texts, ignore_errors=True)
        removed = (
            f" {' and '.join(wrong)} had no known checksum and {'are' if len(wrong) > 1 else 'is'} removed;" if wrong else ""
        )
        raise DataError(f"{problem}{removed} run the same command again, or give a local copy with --from DIR.") from problem
    if unknown:
        content = recorded | {file: found[file] for file in unknown}
        _write_text(record, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _download(
    entry: Download, path: Path, recorded: str | None, record: Path, mirror: str | None, progress: Progress | None
) -> str:
    """Have one file in the cache; its sha256."""
    expected = entry.sha256 or recorded
    check = None if expected else lambda file: check_download(file, entry.file)
    if path.exists():
        found = file_sha256(path)
        if expected is not None and found != expected:
            raise DataError(f"{path} is not the file we know: its sha256 is {found}, not {expected}; delete it.")
        if check is not None:  # put there by hand, or by a process that ended before the splits were made
            check(path)
        return found
    url = f"{mirror.rstrip('/')}/{entry.file}" if mirror else entry.url
    try:
        return download(url, path, sha256=expected, check=check, progress=progress)
    except DataError as problem:
        if recorded and not entry.sha256 and recorded in str(problem):
            raise DataError(
                f"{problem} The checksum was recorded at the first download in {record}; if the file was replaced on the "
                "server, remove its line there."
            ) from problem
        raise


def _read_record(path: Path) -> dict[str, str]:
    """The checksums recorded so far."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{path} cannot be read ({problem}); delete it, and the checksums are recorded again.") from problem
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise DataError(f"{path} holds no checksums of files; delete it, and the checksums are recorded again.")
    return content


def _compare_counts(known: Corpus, layout: Layout, texts: Path, unknown: set[str]) -> None:
    """The splits made of files without a checksum must have as many pairs as the corpus is known to have."""
    for split, pieces in layout.splits.items():
        files = {file for piece in pieces for file in _downloads_of(piece)}
        if split not in known.pairs or not files & unknown:
            continue
        with _text_files(known, texts, split)[0].open("rb") as lines:
            count = sum(1 for _ in lines)
        if count != known.pairs[split]:
            raise _WrongFiles(f"the {split} text has {count:,} lines, and {known.name} has {known.pairs[split]:,};", files)


def _downloads_of(piece: Piece) -> set[str]:
    return {piece.archive} if piece.archive else {piece.source, piece.target}


class _WrongFiles(DataError):
    """These downloads are not what the corpus is made of."""

    def __init__(self, why: str, files: set[str]) -> None:
        super().__init__(why)
        self.files = files


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """Turn a failure to write into one sentence."""
    try:
        yield
    except OSError as problem:
        raise DataError(f"The cache folder {folder} cannot be written: {problem.strerror or problem}.") from problem


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
    try:
        with _storing(work):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            plain = _unpack(layout, have, work)
            for split, pieces in layout.splits.items():
                _write_split(pieces, plain, _text_files(known, work, split))
            for path in work.glob("member-*"):
                path.unlink()
            shutil.rmtree(texts, ignore_errors=True)
            os.replace(work, texts)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(layout: Layout, have: dict[str, Path], work: Path) -> dict[str, Path]:
    """Where each text is, those inside archives copied to `work`."""
    plain = dict(have)
    inside: dict[str, list[str]] = {}
    for piece in (piece for pieces in layout.splits.values() for piece in pieces):
        if piece.archive and piece.source not in plain:
            inside.setdefault(piece.archive, []).extend((piece.source, piece.target))
    for archive, names in inside.items():
        with _blaming({archive}):
            for name, stream in members(have[archive], names):
                plain[name] = work / f"member-{len(plain)}"
                with plain[name].open("wb") as file:
                    shutil.copyfileobj(stream, file, 1 << 20)
    return plain


def _write_split(pieces: tuple[Piece, ...], plain: dict[str, Path], targets: tuple[Path, Path]) -> None:
    """Join the pieces; each must have as many lines in one language as in the other."""
    with (
        targets[0].open("w", encoding="utf-8", newline="\n") as one,
        targets[1].open("w", encoding="utf-8", newline="\n") as two,
    ):
        for piece in pieces:
            with _blaming(_downloads_of(piece)):
                counts = [_append(plain[name], piece, out) for name, out in ((piece.source, one), (piece.target, two))]
                if counts[0] != counts[1]:
                    raise DataError(
                        f"{piece.source} has {counts[0]:,} lines and {piece.target} has {counts[1]:,}, which must be equal."
                    )
        for out in (one, two):
            out.flush()
            os.fsync(out.fileno())


@contextlib.contextmanager
def _blaming(files: set[str]) -> Iterator[None]:
    """Name the downloads that an error comes from."""
    try:
        yield
    except DataError as problem:
        raise _WrongFiles(str(problem), files) from problem


def _append(path: Path, piece: Piece, out: IO[str]) -> int:
    """Write the text of one file of a piece; how many lines."""
    if piece.markup == "segments":
        text = "\n".join(_bounded_lines(path))
        lines: Iterable[str] = (" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text))
    elif piece.markup == "tagged":
        lines = (line.strip() for line in _bounded_lines(path) if not line.lstrip().startswith("<"))
    else:
        lines = _bounded_lines(path)
    count = 0
    for line in lines:
        out.write(line + "\n")
        count += 1
    return count


def _bounded_lines(path: Path) -> Iterator[str]:
    """The lines of a file, plain or gzip, no more of them than a file of its size can hold."""
    budget = Budget(path)
    for line in read_lines(path):
        budget.take(len(line) + 1)
        yield line


def _write_text(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with _storing(path.parent):
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
