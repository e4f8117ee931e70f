"""Named datasets on disk: download, verify and unpack them into two text files per split.

    files = fetch("multi30k", cache)                                            # from the network
    files = fetch("multi30k", cache, source="some/directory")                   # a local copy: the downloads or their content
    files = fetch("multi30k", cache, source="https://mirror.example/multi30k")  # a mirror

CACHE/NAME holds downloads/ (a file put there manually is used too), LAYOUT/ (plain text of each split) and checksums.json.
A download without a published checksum is read to its end and its splits are compared before its checksum is recorded there;
from then on it must not change. A local copy is used as it is.
"""

import hashlib
import html
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from entformer.data.archives import check_download, unpack
from entformer.data.datasets import SPLITS, DatasetInfo, Download, Layout, Part, get_dataset
from entformer.errors import ArgumentError, DataError
from entformer.files import directory_lock, file_sha256, read_json, staged_directory, sync_file, wrap_os_errors, write_json
from entformer.text.lines import read_lines

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)
_ATTEMPTS = 3
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a dataset: `files[split]` is (source file, target file), plain text or .gz with equal numbers of lines."""

    name: str
    layout: str
    source_language: str
    target_language: str
    files: dict[str, tuple[Path, Path]]
    tokenized: bool
    lowercase: bool
    vocab_size: int  # of the joint vocabulary that published results use


def fetch(name: str, cache: Path, *, source: str | None = None, layout: str | None = None) -> CorpusFiles:
    """Returns the files of a dataset, downloading and unpacking what `cache` does not hold yet.

    Args:
        name: Name of the dataset.
        cache: Directory for downloads and unpacked text.
        source: A directory with a local copy, or the URL of a mirror; by default the dataset's own URLs.
        layout: Form of the text (Multi30k: "raw" or "tok"); by default the first one, or the first one in the local copy.

    Raises:
        ArgumentError: There is no such dataset or layout, or the cache cannot be created.
        DataError: A file cannot be downloaded, is not the expected one, or is missing from the local copy.
    """
    info = get_dataset(name)
    layouts = [entry for entry in info.layouts if layout in (None, entry.name)]
    if not layouts:
        names = ", ".join(entry.name for entry in info.layouts)
        raise ArgumentError(f"the corpus {info.name} has no layout {layout!r}; it has {names}.")
    directory = cache.expanduser() / name
    copy = None if source is None or source.lower().startswith(("http://", "https://")) else Path(source).expanduser()
    chosen, texts = layouts[0], directory / layouts[0].name
    if copy is not None:
        chosen, found = _find_layout(info, layouts, copy)
        if all(len(parts) == 1 and parts[0].archive is None for parts in chosen.splits.values()):
            files = {split: (found[parts[0].source], found[parts[0].target]) for split, parts in chosen.splits.items()}
            return _result(info, chosen, files)
        states = sorted((str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in found.values())
        fingerprint = hashlib.sha256(json.dumps(states).encode()).hexdigest()[:8]  # changes with the copy
        texts = directory / f"{chosen.name}-{fingerprint}"
    with wrap_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with directory_lock(directory):  # other processes wait and then find the work done
        if not all(path.exists() for pair in _split_files(info, texts).values() for path in pair):
            if copy is None:
                _from_network(info, chosen, directory, texts, mirror=source)
            else:
                _write_splits(info, chosen, copy, texts)
    return _result(info, chosen, _split_files(info, texts))


def _result(info: DatasetInfo, layout: Layout, files: dict[str, tuple[Path, Path]]) -> CorpusFiles:
    languages = info.source_language, info.target_language
    return CorpusFiles(info.name, layout.name, *languages, files, layout.tokenized, layout.lowercase, info.vocab_size)


# ---- network -------------------------------------------------------------------------------------------------------------


def _from_network(info: DatasetInfo, layout: Layout, directory: Path, texts: Path, *, mirror: str | None) -> None:
    """Downloads what is missing, writes the splits, and records the checksums that are not published."""
    record = directory / "checksums.json"
    try:
        recorded: dict[str, str] = read_json(record) if record.exists() else {}
    except DataError as err:
        raise DataError(f"{str(err).rstrip('.')}; delete it, and the checksums are recorded again.") from err
    downloads = directory / "downloads"
    with wrap_os_errors(downloads):
        downloads.mkdir(exist_ok=True)
    for entry in layout.downloads:
        _ensure_download(entry, downloads / entry.file, recorded.get(entry.file), record, mirror)
    unverified = [entry.file for entry in layout.downloads if entry.sha256 is None and entry.file not in recorded]
    try:
        for file in unverified:
            check_download(downloads / file)
        _write_splits(info, layout, downloads, texts, info.pairs)
    except DataError as err:
        if not unverified:
            raise
        for file in unverified:
            (downloads / file).unlink(missing_ok=True)
        raise DataError(
            f"{err} Downloads without a known checksum were removed ({', '.join(unverified)}); run the same command again, "
            "or pass a local copy with --from DIR."
        ) from err
    if unverified:
        write_json(record, recorded | {file: file_sha256(downloads / file) for file in unverified})


def _ensure_download(entry: Download, path: Path, recorded: str | None, record: Path, mirror: str | None) -> None:
    sha256 = entry.sha256 or recorded
    is_new = not path.exists()
    if is_new:
        _download(f"{mirror.rstrip('/')}/{entry.file}" if mirror else entry.url, path, sha256)
    if sha256 is None or (found := file_sha256(path)) == sha256:
        return
    if is_new:
        path.unlink()
    origin = "" if entry.sha256 else f" (recorded at the first download; if the file was replaced, remove it from {record})"
    remedy = "It was removed" if is_new else "Delete it"
    raise DataError(f"{path} has the SHA-256 {found}, expected {sha256}{origin}. {remedy}; then run the same command again.")


def _download(url: str, path: Path, sha256: str | None) -> None:
    """Downloads a file; an interrupted transfer is retried, and resumed if a checksum will verify the result."""
    import requests  # pooch's own dependency; slow to import

    part = path.with_name(path.name + ".part")
    advice = f"pass a local copy with --from DIR or a mirror with --from URL, or download the file yourself to {path}"
    with wrap_os_errors(path):  # requests' own exceptions, which are OSErrors too, do not leave the loop
        for attempt in range(1, _ATTEMPTS + 1):
            start = part.stat().st_size if sha256 and part.exists() else 0
            try:
                if not (start and file_sha256(part) == sha256):
                    _transfer(url, part, start)
                break
            except requests.HTTPError as err:
                status, reason = getattr(err.response, "status_code", 0), getattr(err.response, "reason", "")
                if status != 416 or attempt == _ATTEMPTS:
                    raise DataError(f"{url} returned {status} {reason}; {advice}.") from err
                part.unlink()  # 416: the partial file is longer than the file on the server
            except requests.RequestException as err:
                received = part.stat().st_size if part.exists() else 0
                if attempt == _ATTEMPTS or received == start:
                    kept = f" ({received:,} bytes are kept; the same command resumes)" if received and sha256 else ""
                    raise DataError(f"{url} cannot be downloaded: {_innermost_reason(err)}{kept}; {advice}.") from err
        sync_file(part)
        os.replace(part, path)


def _transfer(url: str, part: Path, start: int) -> None:
    """Appends the bytes from `start` on to `part`, or replaces it if the server sends the whole file."""
    import pooch

    headers = {"User-Agent": "entformer", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)

        def restart(response: Any, **_: Any) -> None:
            if response.status_code == 200:
                file.seek(0)
                file.truncate()

        hooks = {"response": restart}
        pooch.HTTPDownloader(chunk_size=1 << 16, headers=headers, hooks=hooks, timeout=_TIMEOUT_S)(url, file, None)


def _innermost_reason(err: BaseException) -> str:
    """Returns the system's own message, which requests wraps several times."""
    while (inner := err.__cause__ or err.__context__) is not None:
        err = inner
    reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
    return " ".join(str(reason).split()).rstrip(".")


# ---- local copy ----------------------------------------------------------------------------------------------------------


def _find_layout(info: DatasetInfo, layouts: list[Layout], copy: Path) -> tuple[Layout, dict[str, Path]]:
    """Returns the first layout that a local copy holds, and where its files are."""
    if not copy.is_dir():
        raise DataError(f"--from {copy} is not a directory; pass a directory that contains {info.name}, or a URL.")
    missing_by_layout = []
    for layout in layouts:
        found, missing = _find_files(layout, copy)
        if not missing:
            return layout, found
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        missing_by_layout.append(f"{layout.name} lacks {missing[0]}{more}")
    raise DataError(f"{copy} does not contain {info.name}: {'; '.join(missing_by_layout)}.")


def _find_files(layout: Layout, directory: Path) -> tuple[dict[str, Path], list[str]]:
    """Returns where each file of a layout is, and the names of missing ones.

    An archive is preferred to its content. A file is found by its path or its bare name, compressed or not.
    """
    present: dict[str, Path] = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        present.setdefault(path.name, path)
        present[path.relative_to(directory).as_posix()] = path
    found: dict[str, Path] = {}
    missing: dict[str, None] = {}
    for part in (part for parts in layout.splits.values() for part in parts):
        if part.archive and part.archive in present:
            found[part.archive] = present[part.archive]
            continue
        for name in (part.source, part.target):
            plain = name.removesuffix(".gz")
            spellings = [stem + suffix for stem in (plain, plain.rpartition("/")[2]) for suffix in (".gz", "")]
            match = next((spelling for spelling in spellings if spelling in present), None)
            if match is None:
                missing[part.archive or name] = None
            else:
                found[name] = present[match]
    return found, list(missing)


# ---- splits --------------------------------------------------------------------------------------------------------------


def _split_files(info: DatasetInfo, texts: Path) -> dict[str, tuple[Path, Path]]:
    return {split: (texts / f"{split}.{info.source_language}", texts / f"{split}.{info.target_language}") for split in SPLITS}


def _write_splits(
    info: DatasetInfo, layout: Layout, directory: Path, texts: Path, expected: dict[str, int] | None = None
) -> None:
    """Unpacks archives and concatenates the parts of every split into plain text; `expected` are their numbers of lines."""
    found, _ = _find_files(layout, directory)
    parts = [part for parts in layout.splits.values() for part in parts]
    with staged_directory(texts) as staged:
        unpacked = staged / "unpacked"
        for archive in dict.fromkeys(part.archive for part in parts if part.archive and part.archive in found):
            members = [(part.source, part.target) for part in parts if part.archive == archive]
            unpack(found[archive], [name for pair in members for name in pair], unpacked / archive)
            inside, missing = _find_files(
                Layout(archive, (), {"all": tuple(Part(*pair) for pair in members)}), unpacked / archive
            )
            if missing:
                raise DataError(f"{found[archive]} has no file {', '.join(missing)}; it is not the expected archive.")
            found |= inside
        for split, files in _split_files(info, staged).items():
            with files[0].open("w", encoding="utf-8") as source, files[1].open("w", encoding="utf-8") as target:
                total = sum(_append(part, found, source, target) for part in layout.splits[split])
            if expected and total != expected.get(split, total):
                raise DataError(f"the {split} split has {total:,} pairs, expected {expected[split]:,} in {info.name}.")
        shutil.rmtree(unpacked, ignore_errors=True)


def _append(part: Part, found: dict[str, Path], source: IO[str], target: IO[str]) -> int:
    """Writes the text of a part and returns its number of pairs."""
    counts = []
    for name, out in ((part.source, source), (part.target, target)):
        count = 0
        for line in _plain_lines(found[name], part.markup):
            out.write(line + "\n")
            count += 1
        counts.append(count)
    if counts[0] != counts[1]:
        raise DataError(f"{part.source} has {counts[0]:,} lines and {part.target} has {counts[1]:,}; they must be equal.")
    return counts[0]


def _plain_lines(path: Path, markup: str) -> Iterable[str]:
    if markup == "segments":
        text = "\n".join(read_lines(path))
        return (" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text))
    if markup == "tagged":
        return (line.strip() for line in read_lines(path) if not line.lstrip().startswith("<"))
    return read_lines(path)
