"""Unpacking of downloaded .tar.gz and .zip archives, with limits on what comes out.

Members are extracted with tarfile's `data` filter and zipfile's own sanitizing, so nothing is written outside the target
directory. The size of the content is bounded by the size of the archive.
"""

import contextlib
import gzip
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
    """Checks an archive and extracts the members whose file names are those of `names` to `directory`.

    Raises:
        DataError: The archive is damaged, encrypted, or unpacks to more than its size allows.
    """
    check_download(archive)
    wanted = {PurePosixPath(name).name for name in names}
    with _wrap_archive_errors(archive):
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                for entry in opened.infolist():
                    if PurePosixPath(entry.filename).name in wanted:
                        opened.extract(entry, directory)
            return
        with tarfile.open(archive, "r|gz") as tar:
            regular = (member for member in tar if member.isreg() and not member.issparse())
            tar.extractall(directory, (m for m in regular if PurePosixPath(m.name).name in wanted), filter="data")


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
    limit, size, damaged = UNPACKED_FREE + UNPACKED_RATIO * path.stat().st_size, 0, None
    with _wrap_archive_errors(path):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as opened:
                size = sum(entry.file_size for entry in opened.infolist())  # zipfile reads no more than this
                damaged = opened.testzip() if size <= limit else None
        elif path.suffix in (".gz", ".tgz"):
            with gzip.open(path) as stream:  # compares its checksum at the end
                while size <= limit and stream.read(_CHUNK):
                    size = stream.tell()
    if size > limit:
        raise DataError(
            f"{path} unpacks to more than {limit >> 20:,} MB, too much for text of its size; it is damaged or malicious."
        )
    if damaged is not None:
        raise DataError(f"{path} is damaged: the checksum of {damaged} does not match.")


@contextlib.contextmanager
def _wrap_archive_errors(path: Path) -> Iterator[None]:
    """Raises `DataError` for anything a file that is not a valid archive makes the standard library raise."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as err:
        # RuntimeError: an encrypted member, or (NotImplementedError) a compression method zipfile does not support
        reason = " ".join(str(err).split()) or type(err).__name__
        raise DataError(f"{path} cannot be unpacked: {reason}.") from err
