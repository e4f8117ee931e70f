"""Servers that send the wrong file, archives that are none: told in one sentence, removed, and never recorded as right."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.data import archives, downloads
from entformer.data.archives import check_download, members
from entformer.data.datasets import CORPORA, Corpus
from entformer.data.downloads import fetch
from entformer.data.http_download import download
from entformer.errors import DataError

from .web import EXPECTED, FILES, Web, tar, texts, zipped

PAGE = b"\n<!DOCTYPE html><html><body>Please log in</body></html>\n"


def right_at_second_try(web: Web, file: str, wrong: bytes, cache: Path, said: str) -> None:
    """The wrong file is told and not kept; the right one is taken afterwards, and recorded."""
    web.files[file] = wrong
    with pytest.raises(DataError, match=said) as caught:
        fetch("small", cache)
    assert "\n" not in str(caught.value)
    assert not (cache / "small" / "downloads" / file).exists()
    record = cache / "small" / "checksums.json"
    assert file not in (json.loads(record.read_text()) if record.exists() else {})
    web.files[file] = FILES[file]
    assert texts(fetch("small", cache)) == EXPECTED
    assert json.loads(record.read_text())[file] == hashlib.sha256(FILES[file]).hexdigest()


@pytest.mark.parametrize("file", FILES)
def test_a_web_page_instead_of_the_file_is_not_recorded(web: Web, known: Corpus, tmp_path: Path, file: str) -> None:
    right_at_second_try(web, file, PAGE, tmp_path, rf"did not send the file: {file} is a web page .*put it at .*{file}\.")


@pytest.mark.parametrize("file", FILES)
def test_a_body_cut_short_without_its_length_is_not_taken_as_whole(web: Web, known: Corpus, tmp_path: Path, file: str) -> None:
    web.with_length = False
    right_at_second_try(web, file, FILES[file][:-12], tmp_path, rf"did not send the file: {file} (cannot be read as|is no ZIP)")


def test_text_cut_short_differs_in_lines_from_its_other_language(web: Web, known: Corpus, tmp_path: Path) -> None:
    said = r"test\.de\.gz has 2 lines and test\.en\.gz has 1, which must be equal\. test\.de\.gz and test\.en\.gz had no known"
    right_at_second_try(web, "test.de.gz", gzip.compress(b"vier\nzuviel\n"), tmp_path, said)


def test_a_corpus_of_another_size_is_not_recorded(
    web: Web, known: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized = dataclasses.replace(known, pairs={"test": 1})
    monkeypatch.setattr(downloads, "corpus", lambda name: sized)
    web.files |= {"test.en.gz": gzip.compress(b"four\nfive\n"), "test.de.gz": gzip.compress(b"vier\nfuenf\n")}
    with pytest.raises(DataError, match=r"the test text has 2 lines, and small has 1"):
        fetch("small", tmp_path)
    web.files |= FILES
    assert texts(fetch("small", tmp_path)) == EXPECTED


def test_an_archive_of_something_else_is_removed(web: Web, known: Corpus, tmp_path: Path) -> None:
    right_at_second_try(web, "one.tgz", tar({"other.txt": "x"}), tmp_path, r"has no file .*one\.tgz had no known checksum")


def test_a_file_with_a_known_checksum_is_kept_whatever_it_holds(
    web: Web, known: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tar({"other.txt": "x"})
    layout = known.layouts[0]
    pinned = tuple(
        dataclasses.replace(entry, sha256=hashlib.sha256(other).hexdigest()) if entry.file == "one.tgz" else entry
        for entry in layout.downloads
    )
    changed = dataclasses.replace(known, layouts=(dataclasses.replace(layout, downloads=pinned),))
    monkeypatch.setattr(downloads, "corpus", lambda name: changed)
    web.files["one.tgz"] = other
    with pytest.raises(DataError, match="has no file"):
        fetch("small", tmp_path)
    assert (tmp_path / "small/downloads/one.tgz").exists()


def test_a_file_put_there_by_hand_is_checked_and_taken(web: Web, known: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "small" / "downloads"
    folder.mkdir(parents=True)
    (folder / "one.tgz").write_bytes(PAGE)
    with pytest.raises(DataError, match="is a web page"):
        fetch("small", tmp_path)
    for file, body in FILES.items():
        (folder / file).write_bytes(body)
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert web.asked == []
    (tmp_path / "small/raw/test.de").unlink()
    (folder / "test.de.gz").write_bytes(gzip.compress(b"other\n"))
    with pytest.raises(DataError, match=r"test\.de\.gz is not the file we know: its sha256 is [0-9a-f]{64}, not .*; delete it"):
        fetch("small", tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"one.tgz": 3}', "\x00", "[" * 100_000])
def test_a_broken_record_of_checksums_is_one_sentence(known: Corpus, tmp_path: Path, text: str) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "checksums.json").write_text(text)
    with pytest.raises(DataError, match=r"checksums\.json .*; delete it, and the checksums are recorded again\.$") as caught:
        fetch("small", tmp_path)
    assert "\n" not in str(caught.value)


def test_what_a_killed_process_left_is_removed(known: Corpus, tmp_path: Path) -> None:
    (tmp_path / "small" / "raw.part").mkdir(parents=True)
    (tmp_path / "small" / "raw.part" / "member-3").touch()
    (tmp_path / "small" / "checksums.json.part").touch()
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert sorted(os.listdir(tmp_path / "small")) == [".lock", "checksums.json", "downloads", "raw"]


def test_no_note_of_a_part_can_stop_a_download(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"] = b"text"
    (tmp_path / "a.bin.part").write_bytes(b"t")
    for note in ("{", "[]", json.dumps({"url": f"{web.url}/a.bin"})):
        (tmp_path / "a.bin.part.json").write_text(note)
        assert download(f"{web.url}/a.bin", tmp_path / "a.bin") == hashlib.sha256(b"text").hexdigest()


def test_nothing_comes_unchecked_over_an_open_line() -> None:
    for known in CORPORA.values():
        for layout in known.layouts:
            for entry in layout.downloads:
                assert entry.url.startswith("https://") or entry.sha256


# ---- archives -----------------------------------------------------------------------------------------------------------


def encrypted() -> bytes:
    """A ZIP whose only member says that it is encrypted."""
    data = bytearray(zipped({"x.en": "text"}))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    return bytes(data)


def unknown_method() -> bytes:
    data = bytearray(zipped({"x.en": "text"}))
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = data.index(mark) + at
        data[start : start + 2] = struct.pack("<H", 97)
    return bytes(data)


def wrong_crc() -> bytes:
    return zipped({"x.en": "text"}).replace(b"text", b"tex!")


def packed_zeros(size: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.en", bytes(size))
    return buffer.getvalue()


def tar_of_zeros(size: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("passed-over", "x.en"):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    return buffer.getvalue()


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "encrypted.zip": (encrypted, "is encrypted; unpack it yourself"),
    "method.zip": (unknown_method, "cannot be read as an archive: .*compression"),
    "crc.zip": (wrong_crc, "cannot be read as an archive: Bad CRC-32"),
    "cut.zip": (lambda: zipped({"x.en": "text" * 99})[:200], "ZIP archive|as an archive"),
    "empty.tgz": (lambda: b"", "is empty|as an archive"),
    "noise.tar.gz": (lambda: bytes(range(256)) * 9, "as an archive"),
    "half.tgz": (lambda: tar({"x.en": "text" * 999})[:-30], "as an archive"),
    "flipped.tgz": (lambda: bytes([*(good := tar({"x.en": "text"}))[:-8], good[-8] ^ 1, *good[-7:]]), "as an archive: CRC"),
    "bomb.zip": (lambda: packed_zeros(1 << 20), "unpacks to more than 0 MB, which no text of its size does"),
    "bomb.tgz": (lambda: tar_of_zeros(1 << 20), "unpacks to more than 0 MB"),
    "bomb.gz": (lambda: gzip.compress(bytes(1 << 20)), "unpacks to more than 0 MB"),
    "cut.gz": (lambda: gzip.compress(b"text" * 99)[:-9], "as gzip"),
    "empty.txt": (lambda: b"", "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_archives_that_are_none_are_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, said = BAD[name]
    monkeypatch.setattr(archives, "UNPACKED_FREE", 1 << 10 if "bomb" in name else 1 << 20)
    path = tmp_path / name
    path.write_bytes(make())
    with pytest.raises(DataError, match=said) as caught:
        check_download(path, name)
    assert "\n" not in str(caught.value)
    if name.endswith((".zip", ".tgz", ".tar.gz")) and name != "flipped.tgz":  # its one wrong byte lies behind the member
        with pytest.raises(DataError):
            [stream.read() for _, stream in members(path, ["x.en", "y.en"])]


def test_good_files_of_every_kind_pass(tmp_path: Path) -> None:
    for name, data in {**FILES, "plain.txt": b"<seg id=1>text</seg>\n"}.items():
        (tmp_path / name).write_bytes(data)
        check_download(tmp_path / name, name)
