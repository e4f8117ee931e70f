"""Files inside .tar.gz and .zip archives. In: an archive and the names wanted. Out: their bytes, one stream at a time.

Nothing is unpacked under a name the archive chose: a member is copied to a file of our own naming, so a member called
"../../etc/passwd", a link or a device can do no harm. Nor can a small archive that unpacks to terabytes: what comes out is
limited by the size of the archive.
"""

import contextlib
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from entformer.errors import DataError

# Text gets three to six times smaller; a file of zeros a thousand times.
UNPACKED_RATIO = 30
UNPACKED_FREE = 256 << 20  # bytes that any archive may unpack to
HTML = (b"<!doctype html", b"<html", b"<head", b"<body")
_CHUNK = 1 << 20
_UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,  # also NotImplementedError: a compression method that zipfile does not know
    ValueError,
    OverflowError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)


def unpacked_limit(path: Path) -> int:
    """How many bytes the contents of a compressed file may have."""
    return UNPACKED_FREE + UNPACKED_RATIO * path.stat().st_size


class Limited(io.RawIOBase):
    """A stream that raises `DataError` once more than `limit` bytes were read from it and those before it."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, budget: "Budget") -> None:
        self._stream, self._budget = stream, budget

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        with _telling(self._budget.name):
            data = self._stream.read(size if size >= 0 else self._budget.left + 1)
        self._budget.take(len(data))
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


class Budget:
    """The bytes that one archive may still unpack to."""

    def __init__(self, archive: Path, name: str | None = None) -> None:
        self.name = name or str(archive)
        self._limit = self.left = unpacked_limit(archive)

    def take(self, size: int) -> None:
        """Count `size` bytes; too many are an error."""
        self.left -= size
        if self.left < 0:
            raise DataError(
                f"{self.name} unpacks to more than {self._limit >> 20:,} MB, which no text of its size does; it is damaged or "
                "made to fill the disk."
            )


def members(archive: Path, wanted: Iterable[str]) -> Iterator[tuple[str, Limited]]:
    """(name as wanted, open stream) of each wanted member, in the order of the archive; read a stream before the next one.

    A member is found by its path, or by the end of it: archives differ in the folder they begin with.
    """
    missing = set(wanted)
    with _telling(str(archive)):
        for path, stream in _regular_files(archive, Budget(archive)):
            name = _match(path, missing)
            if name is not None:
                missing.remove(name)
                with stream() as opened:
                    yield name, opened
                if not missing:
                    return
    if missing:
        raise DataError(f"{archive} has no file {', '.join(sorted(missing))}; it is not the archive we know.")


def check_download(path: Path, name: str) -> None:
    """Read a downloaded file to its end, to see that it is what its name says.

    Args:
        path: where the file is now.
        name: how it is called; .tgz, .tar.gz, .zip and .gz must be that, anything else is text.

    Raises:
        DataError: it is a web page, of another kind, cut short, damaged, encrypted, or unpacks to too much.
    """
    with path.open("rb") as file:
        start = file.read(1024)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(HTML):
        raise DataError(f"{name} is a web page (an error or a login page), not the file.")
    if not start:
        raise DataError(f"{name} is empty.")
    with _telling(name):
        if name.endswith((".zip", ".tgz", ".tar.gz")):
            if zipfile.is_zipfile(path) != name.endswith(".zip"):
                raise DataError(f"{name} is no {'ZIP' if name.endswith('.zip') else 'tar'} archive, or was cut short.")
            for _, stream in _regular_files(path, Budget(path, name)):
                with stream() as opened:
                    while opened.read(_CHUNK):  # checksums are compared at the end of each member
                        pass
        elif name.endswith(".gz"):
            with Limited(gzip.open(path), Budget(path, name)) as opened:
                while opened.read(_CHUNK):
                    pass


@contextlib.contextmanager
def _telling(name: str) -> Iterator[None]:
    """Turn whatever an archive that is no archive raises into one sentence."""
    try:
        yield
    except DataError:
        raise
    except _UNREADABLE as problem:
        kind = "gzip" if name.endswith(".gz") and not name.endswith(".tar.gz") else "an archive"
        said = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"{name} cannot be read as {kind}: {said}; delete it and fetch it again.") from problem


class _Opener:
    """Opens one member when asked."""

    def __init__(
        self, archive: tarfile.TarFile | zipfile.ZipFile, member: tarfile.TarInfo | zipfile.ZipInfo, budget: Budget
    ) -> None:
        self._archive, self._member, self._budget = archive, member, budget

    def __call__(self) -> Limited:
        stream: IO[bytes] | None = None
        if isinstance(self._archive, zipfile.ZipFile) and isinstance(self._member, zipfile.ZipInfo):
            if self._member.flag_bits & 1:
                raise DataError(f"{self._budget.name} is encrypted; unpack it yourself and give the folder with --from.")
            stream = self._archive.open(self._member)
        elif isinstance(self._archive, tarfile.TarFile) and isinstance(self._member, tarfile.TarInfo):
            stream = self._archive.extractfile(self._member)
        if stream is None:
            raise DataError("A member of an archive that is no regular file cannot be read.")
        return Limited(stream, self._budget)


def _regular_files(archive: Path, budget: Budget) -> Iterator[tuple[str, _Opener]]:
    """Name and opener of every regular file. Of a tar, what is passed over is unpacked too, and the rest is read to its end."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened_zip:
            for entry in opened_zip.infolist():
                if not entry.is_dir():
                    yield entry.filename, _Opener(opened_zip, entry, budget)
        return
    with tarfile.open(archive, mode="r:*") as opened_tar:
        passed = Budget(archive, budget.name)
        for member in opened_tar:
            passed.take(member.size)
            if member.isreg():
                yield member.name, _Opener(opened_tar, member, budget)
        while opened_tar.fileobj is not None and (rest := opened_tar.fileobj.read(_CHUNK)):
            passed.take(len(rest))


def _match(path: str, wanted: set[str]) -> str | None:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        return None
    clean = "/".join(parts)
    for name in wanted:
        if clean == name or clean.endswith("/" + name):
            return name
    # Last, the bare file name, if the archive has left out folders we expect.
    bare = [name for name in wanted if name.rpartition("/")[2] == clean]
    return bare[0] if bare else None
