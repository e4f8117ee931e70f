"""Unpacking of downloaded .tar.gz and .zip archives, with limits on what comes out.

Members are extracted with tarfile's `data` filter and zipfile's own sanitizing, so nothing is written outside the target
directory. The size of the content is bounded by the size of the archive.
"""

import contextlib
import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from entformer.errors import DataError

# Text shrinks three to six times; a file of zeros a thousand times.
UNPACKED_RATIO = 30
UNPACKED_FREE = 256 << 20  # bytes that any archive may unpack to
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")
_CHUNK = 1 << 20


def unpack(archive: Path, names: Iterable[str], directory: Path) -> None:
    """Extracts the members whose file names are those of `names` to `directory`, and reads the whole archive to check it.

    Raises:
        DataError: The archive is damaged, encrypted, or unpacks to more than its size allows.
    """
    wanted = {PurePosixPath(name).name for name in names}
    with _wrap_archive_errors(archive):
        if zipfile.is_zipfile(archive):
            with _open_zip(archive) as opened:
                for entry in opened.infolist():
                    if PurePosixPath(entry.filename).name in wanted:
                        opened.extract(entry, directory)
            return
        with _LimitedGzip(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                regular = (member for member in tar if member.isreg() and not member.issparse())
                tar.extractall(directory, (m for m in regular if PurePosixPath(m.name).name in wanted), filter="data")
            stream.exhaust()


def check_download(path: Path) -> None:
    """Reads a downloaded file to its end and checks that its content matches its name.

    Raises:
        DataError: The file is empty, a web page, damaged, encrypted, or unpacks to more than its size allows.
    """
    with path.open("rb") as file:
        start = file.read(1024)
    if not start:
        raise DataError(f"{path} is empty.")
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML):
        raise DataError(f"{path} is a web page (an error or a login page), not the dataset.")
    with _wrap_archive_errors(path):
        if path.name.endswith(".zip"):
            with _open_zip(path) as opened:
                if (damaged := opened.testzip()) is not None:
                    raise DataError(f"{path} is damaged: the checksum of {damaged} does not match.")
        elif path.name.endswith((".gz", ".tgz")):
            with _LimitedGzip(path) as stream:
                stream.exhaust()


class _LimitedGzip(io.RawIOBase):
    """A gzip stream that raises `DataError` when it yields more bytes than the size of the file allows."""

    def __init__(self, path: Path) -> None:
        self._path, self._stream = path, gzip.open(path)  # noqa: SIM115 (closed by `close`)
        self._limit = _unpacked_limit(path)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        if self._stream.tell() > self._limit:
            raise DataError(_too_large(self._path, self._limit))
        return data

    def exhaust(self) -> None:
        """Reads to the end, where gzip compares its checksum."""
        while self.read(_CHUNK):
            pass

    def close(self) -> None:
        self._stream.close()
        super().close()


def _open_zip(path: Path) -> zipfile.ZipFile:
    opened = zipfile.ZipFile(path)
    limit = _unpacked_limit(path)
    if sum(entry.file_size for entry in opened.infolist()) > limit:  # zipfile reads no more than this from a member
        opened.close()
        raise DataError(_too_large(path, limit))
    return opened


def _unpacked_limit(path: Path) -> int:
    return UNPACKED_FREE + UNPACKED_RATIO * path.stat().st_size


def _too_large(path: Path, limit: int) -> str:
    return f"{path} unpacks to more than {limit >> 20:,} MB, too much for text of its size; it is damaged or malicious."


@contextlib.contextmanager
def _wrap_archive_errors(path: Path) -> Iterator[None]:
    """Raises `DataError` for anything a file that is not a valid archive makes the standard library raise."""
    try:
        yield
    except DataError:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as err:
        # RuntimeError: an encrypted member, or (NotImplementedError) a compression method zipfile does not support
        reason = " ".join(str(err).split()) or type(err).__name__
        raise DataError(f"{path} cannot be unpacked: {reason}.") from err
