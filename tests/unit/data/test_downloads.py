"""Downloads from a server on localhost: resume, checksums, wrong files, mirrors, local copies, hostile archives."""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
import random
import socket
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.data import archives, downloads
from entformer.data.archives import check_download, unpack
from entformer.data.datasets import CORPORA, DatasetInfo
from entformer.data.downloads import fetch
from entformer.errors import ArgumentError, DataError, RunFailed

from .web import EXPECTED, FILES, Web, tar, texts, zipped

PAGE = b"\n<!DOCTYPE html><html><body>Please log in</body></html>\n"
BODY = tar(
    {f"training/news.de-en.{language}": random.Random(1).randbytes(400_000).hex().encode() + b"\n" for language in ("de", "en")}
)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def pinned(web: Web, monkeypatch: pytest.MonkeyPatch) -> DatasetInfo:
    """The only dataset: one archive of about 800 kB with a published checksum."""
    part = downloads.Part("training/news.de-en.de", "training/news.de-en.en", "a.tgz")
    layout = downloads.Layout(
        "raw", (downloads.Download(f"{web.url}/a.tgz", DIGEST),), dict.fromkeys(downloads.SPLITS, (part,))
    )
    made = DatasetInfo("pinned", "de", "en", (layout,))
    web.files["a.tgz"] = BODY
    monkeypatch.setattr(downloads, "get_dataset", lambda name: made)
    return made


def partial(cache: Path, content: bytes) -> Path:
    path = cache / "pinned/downloads/a.tgz.part"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


# ---- one file ------------------------------------------------------------------------------------------------------------


def test_interrupted_transfer_resumes(web: Web, pinned: DatasetInfo, tmp_path: Path) -> None:
    web.cut_after = [300_000]
    fetch("pinned", tmp_path / "a")
    assert web.requests == [("/a.tgz", None), ("/a.tgz", "bytes=262144-")]  # whole chunks of 65,536 bytes were kept
    assert os.listdir(tmp_path / "a/pinned/downloads") == ["a.tgz"]
    web.cut_after, web.ranges = [300_000], False
    fetch("pinned", tmp_path / "b")  # the server sends the whole file again


@pytest.mark.parametrize(
    ("left", "requests"),
    [
        pytest.param(BODY[:1000], ["bytes=1000-"], id="beginning"),
        pytest.param(BODY, [], id="complete"),
        pytest.param(BODY + b"more", [f"bytes={len(BODY) + 4}-", None], id="too long"),
    ],
)
def test_next_process_resumes_from_a_partial_file(
    web: Web, pinned: DatasetInfo, tmp_path: Path, left: bytes, requests: list[str | None]
) -> None:
    partial(tmp_path, left)
    fetch("pinned", tmp_path)
    assert [requested for _, requested in web.requests] == requests


def test_transfer_without_known_checksum_restarts(web: Web, known: DatasetInfo, tmp_path: Path) -> None:
    (tmp_path / "small/downloads").mkdir(parents=True)
    (tmp_path / "small/downloads/test.de.gz.part").write_bytes(b"of another origin")
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert all(requested is None for _, requested in web.requests)


def test_wrong_checksum_is_an_error_and_leaves_no_file(web: Web, pinned: DatasetInfo, tmp_path: Path) -> None:
    web.files["a.tgz"] = BODY[:-1] + b"!"
    with pytest.raises(DataError, match=rf"a\.tgz has the SHA-256 [0-9a-f]{{64}}, expected {DIGEST}\. It was removed"):
        fetch("pinned", tmp_path)
    assert os.listdir(tmp_path / "pinned/downloads") == []


def test_unreachable_server_names_the_remedy_and_keeps_what_arrived(web: Web, pinned: DatasetInfo, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/other/a\.tgz returned 404 Not Found; pass a local copy with --from DIR"):
        fetch("pinned", tmp_path / "other", source=f"{web.url}/other")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    part = partial(tmp_path, BODY[:1000])
    with pytest.raises(
        DataError, match=r"/a\.tgz cannot be downloaded: .* \(1,000 bytes are kept.*; pass a local copy with --from DIR"
    ):
        fetch("pinned", tmp_path, source=url)
    assert part.stat().st_size == 1000


# ---- a dataset -----------------------------------------------------------------------------------------------------------


def test_dataset_is_downloaded_once(web: Web, known: DatasetInfo, tmp_path: Path) -> None:
    (tmp_path / "small/.raw.1.partial/unpacked").mkdir(parents=True)  # left by a killed process
    files = fetch("small", tmp_path)
    assert texts(files) == EXPECTED
    assert (files.source_language, files.target_language, files.layout) == ("de", "en", "raw")
    assert len(web.requests) == len(FILES)
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert len(web.requests) == len(FILES)  # the second call needs no network
    assert sorted(os.listdir(tmp_path / "small")) == [".lock", "checksums.json", "downloads", "raw"]
    assert len(os.listdir(tmp_path / "small/raw")) == 6


def test_unpublished_checksums_are_recorded_and_then_compared(web: Web, known: DatasetInfo, tmp_path: Path) -> None:
    fetch("small", tmp_path)
    record = json.loads((tmp_path / "small/checksums.json").read_text())
    assert record == {file: hashlib.sha256(body).hexdigest() for file, body in FILES.items()}
    (tmp_path / "small/raw/test.de").unlink()
    (tmp_path / "small/downloads/test.de.gz").unlink()
    web.files["test.de.gz"] = gzip.compress(b"other\n")
    with pytest.raises(DataError, match=r"test\.de\.gz has the SHA-256 .* \(recorded at the first download"):
        fetch("small", tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000], ids=range(5))
def test_damaged_record_of_checksums_is_an_error(known: DatasetInfo, tmp_path: Path, text: str) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small/checksums.json").write_text(text)
    with pytest.raises(DataError, match=r"checksums\.json .*; delete it, and the checksums are recorded again\.$"):
        fetch("small", tmp_path)


@pytest.mark.parametrize(
    ("file", "wrong", "message"),
    [
        ("ted.zip", PAGE, r"ted\.zip is a web page .* without a known checksum were removed .*ted\.zip"),
        ("test.de.gz", PAGE, r"test\.de\.gz is a web page"),
        *((file, body[:-12], rf"{file} cannot be unpacked: .* were removed") for file, body in FILES.items()),
        ("test.de.gz", gzip.compress(b"vier\nzuviel\n"), r"test\.de\.gz has 2 lines and test\.en\.gz has 1; they must"),
        ("one.tgz", tar({"other.txt": b"x"}), r"one\.tgz has no file training/news\.de-en\.de.*not the expected archive"),
    ],
    ids=range(8),
)
def test_wrong_file_is_removed_and_the_right_one_recorded(
    web: Web, known: DatasetInfo, tmp_path: Path, file: str, wrong: bytes, message: str
) -> None:
    web.with_length = False  # a truncated body is not noticed by its length
    web.files[file] = wrong
    with pytest.raises(DataError, match=message) as caught:
        fetch("small", tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "small/downloads" / file).exists()
    assert not (tmp_path / "small/checksums.json").exists()
    assert not (tmp_path / "small/raw").exists()
    web.files[file] = FILES[file]
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert json.loads((tmp_path / "small/checksums.json").read_text())[file] == hashlib.sha256(FILES[file]).hexdigest()


def test_dataset_of_another_size_is_removed(
    web: Web, known: DatasetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized = dataclasses.replace(known, pairs={"test": 1})
    monkeypatch.setattr(downloads, "get_dataset", lambda name: sized)
    web.files |= {"test.en.gz": gzip.compress(b"four\nfive\n"), "test.de.gz": gzip.compress(b"vier\nfuenf\n")}
    with pytest.raises(DataError, match="the test split has 2 pairs, expected 1 in small"):
        fetch("small", tmp_path)
    web.files |= FILES
    assert texts(fetch("small", tmp_path)) == EXPECTED


def test_manually_placed_file_is_checked_and_used(web: Web, known: DatasetInfo, tmp_path: Path) -> None:
    directory = tmp_path / "small/downloads"
    directory.mkdir(parents=True)
    for file, body in FILES.items():
        (directory / file).write_bytes(body)
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert web.requests == []
    (tmp_path / "small/raw/test.de").unlink()
    (directory / "test.de.gz").write_bytes(gzip.compress(b"other\n"))
    with pytest.raises(DataError, match=r"test\.de\.gz has the SHA-256 .* Delete it; then run"):
        fetch("small", tmp_path)


def test_mirror_and_local_copies(web: Web, known: DatasetInfo, tmp_path: Path) -> None:
    for file in FILES:
        web.files[f"mirror/{file}"] = web.files.pop(file)
    assert texts(fetch("small", tmp_path / "a", source=f"{web.url}/mirror/")) == EXPECTED
    requests = len(web.requests)
    assert texts(fetch("small", tmp_path / "b", source=str(tmp_path / "a/small/downloads"))) == EXPECTED
    copy = tmp_path / "copy"  # unpacked, partly compressed
    unpack(tmp_path / "a/small/downloads/one.tgz", [p.source for s in known.layouts[0].splits.values() for p in s], copy)
    unpack(tmp_path / "a/small/downloads/one.tgz", [p.target for s in known.layouts[0].splits.values() for p in s], copy)
    (copy / "ted.zip").write_bytes(FILES["ted.zip"])
    (copy / "test.de").write_text("vier\n")
    (copy / "test.en.gz").write_bytes(FILES["test.en.gz"])
    assert texts(fetch("small", tmp_path / "b", source=str(copy))) == EXPECTED
    (copy / "test.de").write_text("fünf\n", encoding="utf-8")  # a change of the copy is noticed
    assert texts(fetch("small", tmp_path / "b", source=str(copy)))["test"] == ("fünf\n", "four\n")
    assert len(web.requests) == requests


def test_invalid_arguments(known: DatasetInfo, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not contain small: raw lacks one\.tgz and 3 more\."):
        fetch("small", tmp_path / "cache", source=str(tmp_path))
    with pytest.raises(DataError, match="is not a directory; pass a directory that contains small, or a URL"):
        fetch("small", tmp_path / "cache", source=str(tmp_path / "nowhere"))
    with pytest.raises(ArgumentError, match="has no layout 'tok'; it has raw"):
        fetch("small", tmp_path, layout="tok")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match=r"file/small could not be written"):
        fetch("small", tmp_path / "file")


# ---- archives ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pack"), [("archive.tgz", tar), ("archive.zip", zipped)])
def test_nothing_is_written_outside_the_directory(name: str, pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path) -> None:
    archive, directory = tmp_path / name, tmp_path / "directory"
    archive.write_bytes(pack({"../../x.en": b"bad", "a/../../x.en": b"bad", "/x.de": b"fine"}))
    with contextlib.suppress(DataError):  # tarfile refuses such a member, zipfile renames it
        unpack(archive, ["x.en", "x.de"], directory)
    assert set(os.listdir(tmp_path)) <= {name, "directory"}
    assert not any(path.is_symlink() for path in directory.rglob("*"))


def test_link_in_an_archive_is_not_extracted(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tgz"
    with tarfile.open(archive, "w:gz") as opened:
        link = tarfile.TarInfo("x.en")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        opened.addfile(link)
    unpack(archive, ["x.en"], tmp_path / "directory")
    assert not (tmp_path / "directory/x.en").exists()


def patched_zip(fields: dict[bytes, tuple[int, bytes]]) -> bytes:
    data = bytearray(zipped({"x.en": b"text"}))
    for signature, (offset, value) in fields.items():
        start = data.index(signature) + offset
        data[start : start + len(value)] = value
    return bytes(data)


ZEROS = bytes(1 << 20)
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "encrypted.zip": (lambda: patched_zip({b"PK\x03\x04": (6, b"\x01"), b"PK\x01\x02": (8, b"\x01")}), "encrypted"),
    "method.zip": (
        lambda: patched_zip({b"PK\x03\x04": (8, struct.pack("<H", 97)), b"PK\x01\x02": (10, struct.pack("<H", 97))}),
        "cannot be unpacked: .*compression",
    ),
    "crc.zip": (lambda: patched_zip({b"PK\x03\x04": (14, b"\0"), b"PK\x01\x02": (16, b"\0")}), "checksum of x.en"),
    "cut.zip": (lambda: zipped({"x.en": random.Random(1).randbytes(400)})[:200], "cannot be unpacked"),
    "empty.tgz": (lambda: b"", "is empty"),
    "noise.tar.gz": (lambda: bytes(range(256)) * 9, "cannot be unpacked"),
    "half.tgz": (lambda: tar({"x.en": b"text" * 999})[:-30], "cannot be unpacked"),
    "flipped.tgz": (lambda: bytes([*(good := tar({"x.en": b"text"}))[:-8], good[-8] ^ 1, *good[-7:]]), "unpacked: CRC"),
    "bomb.zip": (lambda: zipped({"x.en": ZEROS}), "unpacks to more than 0 MB, too much for text of its size"),
    "bomb.tgz": (lambda: tar({"skipped": ZEROS, "x.en": ZEROS}), "unpacks to more than 0 MB"),
    "bomb.gz": (lambda: gzip.compress(ZEROS), "unpacks to more than 0 MB"),
    "cut.gz": (lambda: gzip.compress(b"text" * 99)[:-9], "cannot be unpacked"),
    "empty.txt": (lambda: b"", "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_archive_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = BAD[name]
    monkeypatch.setattr(archives, "UNPACKED_FREE", 1 << 10 if "bomb" in name else 1 << 20)
    path = tmp_path / name
    path.write_bytes(make())
    with pytest.raises(DataError, match=message) as caught:
        check_download(path)
    assert "\n" not in str(caught.value)
    if name.endswith((".zip", ".tgz", ".tar.gz")):
        with pytest.raises(DataError):
            unpack(path, ["x.en"], tmp_path / "directory")


# ---- Multi30k on this machine --------------------------------------------------------------------------------------------

DATA = Path(os.environ.get("ENTFORMER_DATA", Path(__file__).parents[4] / "shared/data")) / "multi30k"
needs_multi30k = pytest.mark.skipif(not DATA.is_dir(), reason="no local copy of Multi30k (set ENTFORMER_DATA)")


@needs_multi30k
@pytest.mark.parametrize(
    ("directory", "layout", "expected"), [("raw", None, "raw"), ("tok", None, "tok"), ("", None, "raw"), ("", "tok", "tok")]
)
def test_multi30k_is_found_in_both_layouts(directory: str, layout: str | None, expected: str, tmp_path: Path) -> None:
    files = fetch("multi30k", tmp_path, source=str(DATA / directory), layout=layout)
    assert (files.layout, files.tokenized, files.lowercase) == (expected, expected == "tok", expected == "tok")
    for split, count in CORPORA["multi30k"].pairs.items():
        for side in files.files[split]:
            with gzip.open(side) as lines:
                assert sum(1 for _ in lines) == count


@needs_multi30k
def test_local_copy_matches_the_published_checksums() -> None:
    for layout in CORPORA["multi30k"].layouts:
        for entry in layout.downloads:
            path = DATA / layout.name / entry.file
            body = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
            assert hashlib.sha256(body).hexdigest() == entry.sha256
