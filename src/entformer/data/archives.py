"""Files inside .tar.gz and .zip archives. In: an archive and the names wanted. Out: their bytes, one stream at a time.

Nothing is unpacked under a name the archive chose: a member is copied to a file of our own naming, so a member called
"../../etc/passwd", a link or a device can do no harm.
"""

import contextlib
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from entformer.errors import DataError


def members(archive: Path, wanted: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """(name as wanted, open stream) of each wanted member, in the order of the archive; read a stream before the next one.

    A member is found by its path, or by the end of it: archives differ in the folder they begin with.
    """
    missing = set(wanted)
    try:
        for path, stream in _regular_files(archive):
            name = _match(path, missing)
            if name is not None:
                missing.remove(name)
                with stream() as opened:
                    yield name, opened
                if not missing:
                    return
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as problem:
        raise DataError(f"{archive} cannot be read as an archive: {problem}; delete it and fetch it again.") from problem
    if missing:
        raise DataError(f"{archive} has no file {', '.join(sorted(missing))}; it is not the archive we know.")


class _Opener:
    """Opens one member when asked."""

    def __init__(self, archive: tarfile.TarFile | zipfile.ZipFile, member: tarfile.TarInfo | zipfile.ZipInfo) -> None:
        self._archive, self._member = archive, member

    def __call__(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        if isinstance(self._archive, zipfile.ZipFile) and isinstance(self._member, zipfile.ZipInfo):
            return contextlib.closing(self._archive.open(self._member))
        if isinstance(self._archive, tarfile.TarFile) and isinstance(self._member, tarfile.TarInfo):
            stream = self._archive.extractfile(self._member)
            if stream is not None:
                return contextlib.closing(stream)
        raise DataError("A member of an archive that is no regular file cannot be read.")


def _regular_files(archive: Path) -> Iterator[tuple[str, _Opener]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened_zip:
            for entry in opened_zip.infolist():
                if not entry.is_dir():
                    yield entry.filename, _Opener(opened_zip, entry)
        return
    with tarfile.open(archive, mode="r:*") as opened_tar:
        for member in opened_tar:
            if member.isreg():
                yield member.name, _Opener(opened_tar, member)


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
