"""The reader: lines end at newline only, and what is not UTF-8 text is named with file, line and byte."""

import bz2
import gzip
import io
import os
import random
from pathlib import Path

import pytest

from entformer.errors import DataError
from entformer.text.lines import MAX_LINE_BYTES, TextIssues, decode_lines, read_lines

JAPANESE = "これは日本語のテキストです。\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "train.en"


def read(path: Path, data: bytes) -> list[str]:
    path.write_bytes(data)
    return list(read_lines(path))


def test_exotic_line_separators_do_not_end_a_line(file: Path) -> None:
    line = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj"
    odd = TextIssues()
    file.write_bytes(f"one\n{line}\nthree\n".encode())
    assert list(read_lines(file, text_issues=odd)) == ["one", line, "three"]
    assert (odd.separators.count, odd.separators.lines) == (1, [2])
    assert len(line.splitlines()) == 10  # what Python alone would make of it


def test_a_nul_is_named_with_its_line(file: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(file, b"good\nba\0d\n")
    assert str(caught.value) == (
        f"{file}:2: byte 3 of the line (byte 8 of the file) is a NUL character; "
        "`tr -d '\\0'`, or for parallel text `entformer prep --clean` removes it."
    )
    assert list(read_lines(file, nul="keep")) == ["good", "ba\0d"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "gut\nschöne\n".encode("cp1252"),
            r":2: byte 4 .* 0xF6.* is not UTF-8; perhaps it is Windows-1252",
        ),
        (JAPANESE.encode("euc_jp"), r":1: byte 1 of the line .* is not UTF-8; perhaps it is EUC-JP; convert it"),
        (JAPANESE.encode("shift_jis"), r":1: byte 1 .* is not UTF-8; perhaps it is Shift JIS; convert it with `iconv"),
        (b"ab\x81\n", r":1: byte 3 of the line \(byte 3 of the file, 0x81\) is not UTF-8; convert it to UTF-8\.$"),
        ("a man sees\n".encode("utf-16"), r":1: this is UTF-16 \(byte-order mark\); convert it with `iconv -f UTF-16 -t"),
        ("a man sees\n".encode("utf-16-le"), r":1: this is UTF-16 \(every other byte is NUL\)"),
        ("a man sees\n".encode("utf-16-be"), r":1: this is UTF-16 \(every other byte is NUL\)"),
        (bz2.compress(b"x"), "this is compressed with bzip2, not text; run bunzip2 on it first"),
        (b"PK\x03\x04...", "this is a ZIP archive, not text; unzip it first"),
        (b"\xfd7zXZ\x00...", "this is compressed with xz, not text; run unxz on it first"),
        (
            gzip.compress(random.Random(1).randbytes(40_000).hex().encode(), mtime=0)[:20_000],
            "damaged or truncated after line .*; download or compress it again",
        ),
        (b"one\rtwo\rthree\r", "the lines end in a carriage return alone; convert them with `tr '"),
        (b"one\rtwo", "the lines end in a carriage return alone"),
        (b"one\rtwo\rthree\n", "the lines end in a carriage return alone"),
        (b"a\rb\rc\nd\re\rf\n", "the lines end in a carriage return alone"),
    ],
)
def test_invalid_content_is_an_error(file: Path, data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(file, data)


def test_the_byte_order_mark_of_utf8_is_dropped(file: Path) -> None:
    odd = TextIssues()
    file.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert list(read_lines(file, text_issues=odd)) == ["one", "\ufefftwo"]  # only at the start of the file it is a mark
    assert odd.byte_order_mark


def test_windows_ends_and_a_missing_last_newline(file: Path) -> None:
    odd = TextIssues()
    file.write_bytes(b"one\r\ntwo\r\n\r\nlast")
    assert list(read_lines(file, text_issues=odd)) == ["one", "two", "", "last"]
    assert odd.windows_ends == 3
    assert odd.no_last_newline


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n\n", ["", ""]),
        (b"a", ["a"]),
        (b"\xef\xbb\xbf", [""]),
        (b"only one \\r goes\r\r\n", ["only one \\r goes\r"]),
        (b"one\rtwo\nthree\nfour\n", ["one\rtwo", "three", "four"]),  # a carriage return now and then is text
        (gzip.compress(b"one\ntwo\n", mtime=0), ["one", "two"]),  # detected by content: the name does not end in .gz
    ],
)
def test_lines_of_files(file: Path, data: bytes, lines: list[str]) -> None:
    assert read(file, data) == lines


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.en: there is no such file\.$"):
        list(read_lines(tmp_path / "train.en"))
    (tmp_path / "train.eng").touch()
    with pytest.raises(DataError, match=r"train\.en: there is no such file; did you mean .*train\.eng"):
        list(read_lines(tmp_path / "train.en"))
    with pytest.raises(DataError, match=r"there is no such file \(nor the directory .*nowhere\)\.$"):
        list(read_lines(tmp_path / "nowhere" / "train.en"))
    with pytest.raises(DataError, match="this is a directory; pass a text file"):
        list(read_lines(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_named(file: Path) -> None:
    file.write_text("x\n")
    file.chmod(0)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        list(read_lines(file))


def test_a_stream_is_read_line_by_line() -> None:
    """Standard input: the first line is there before the second has come."""

    class Slow(io.BytesIO):
        taken = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            self.taken += 1
            return super().readline(size)

    stream = Slow(b"one\ntwo\nthree\n")
    lines = decode_lines(stream, "standard input")
    assert next(lines) == "one"
    assert stream.taken == 1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("filler", [b"x", b"a sentence of some words\r"])
def test_a_huge_line_is_refused_after_its_first_megabyte(file: Path, filler: bytes, packed: bool) -> None:
    data = b"good\n" + filler * (2 * MAX_LINE_BYTES // len(filler))
    said = "the lines end in a carriage return" if b"\r" in filler else "the line is longer than 1,048,576 bytes; put one"
    with pytest.raises(DataError, match=f"train.en:2: {said}"):
        read(file, gzip.compress(data) if packed else data)
