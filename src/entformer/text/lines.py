"""Reading of text files, plain or gzip, line by line.

A line ends at `\\n` only; `str.splitlines` also splits at U+2028, U+0085, form feeds and others, so that two files with equal
`wc -l` would get out of step. A `\\r` before the `\\n` (Windows) and a byte-order mark are dropped. Compression is
detected from the content. Text that is not UTF-8 is an error with file, line and byte. A line has at most `MAX_LINE_BYTES`
bytes, so that a file without line ends cannot fill the memory; files whose lines end in `\\r` alone are an error.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, Literal

from entformer.errors import DataError

Nul = Literal["refuse", "keep"]

UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
GZIP = b"\x1f\x8b"
OTHER_KINDS = {
    b"PK\x03\x04": ("a ZIP archive", "unzip it"),
    b"BZh": ("compressed with bzip2", "run bunzip2 on it"),
    b"\xfd7zXZ\x00": ("compressed with xz", "run unxz on it"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "run unzstd on it"),
    b"%PDF-": ("a PDF file", "save its text as UTF-8"),
}
_RETURNS = "the lines end in a carriage return alone; convert them with `tr '\\r' '\\n'`"
LINE_SEPARATORS = re.compile("[\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r]")  # other programs end a line at these
MAX_LINE_BYTES = 1 << 20  # about 200,000 words
REPORTED_LINES = 5  # line numbers kept by a LineCounter


@dataclass
class LineCounter:
    """A count of lines, and the first of their numbers."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < REPORTED_LINES:
            self.lines.append(line)


@dataclass
class TextIssues:
    """Irregularities found while reading a file."""

    windows_ends: int = 0  # lines that ended in \r\n
    separators: LineCounter = field(default_factory=LineCounter)  # lines with characters at which other programs split
    byte_order_mark: bool = False
    no_last_newline: bool = False


def read_lines(path: Path, *, nul: Nul = "refuse", text_issues: TextIssues | None = None) -> Iterator[str]:
    """Yields the lines of a file, plain or gzip, without their ends.

    Args:
        path: The file.
        nul: Whether a NUL character is an error ("refuse") or kept.
        text_issues: Receives the irregularities found.

    Raises:
        DataError: The file cannot be read or is not UTF-8 text.
    """
    path = Path(path)
    with open_file(path) as stream:
        yield from decode_lines(stream, str(path), nul=nul, text_issues=text_issues)


def read_text(path: Path) -> str:
    """Returns the text of a file, plain or gzip: its lines, of any length, joined by `\\n`, without empty ones at its ends.

    Raises:
        DataError: The file cannot be read or is not UTF-8 text.
    """
    with open_file(path) as stream:
        return "\n".join(decode_lines(stream, str(path), longest=None)).strip("\n")


def open_file(path: Path) -> BinaryIO:
    """Opens a file for reading bytes, decompressed if it is gzip."""
    try:
        plain = path.open("rb")
    except FileNotFoundError as err:
        raise DataError(f"{path}: there is no such file{_near(path)}.") from err
    except IsADirectoryError as err:
        raise DataError(f"{path}: this is a directory; pass a text file.") from err
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror}).") from err
    start = plain.peek(8)[:8]
    if start.startswith(GZIP):
        plain.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]  # a GzipFile is a binary stream
    for mark, (kind, advice) in OTHER_KINDS.items():
        if start.startswith(mark):
            plain.close()
            raise DataError(f"{path}: this is {kind}, not text; {advice} first (plain text and gzip are supported).")
    return plain


def decode_lines(
    stream: BinaryIO,
    name: str,
    *,
    nul: Nul = "refuse",
    text_issues: TextIssues | None = None,
    longest: int | None = MAX_LINE_BYTES,
) -> Iterator[str]:
    """Yields the lines of a stream of bytes, such as standard input. See `read_lines`.

    Args:
        name: Used in error messages.
        longest: Bytes of a line; None: any number.
    """
    seen = text_issues if text_issues is not None else TextIssues()
    offset = number = returns = 0
    try:
        while raw := stream.readline(-1 if longest is None else longest + 1):
            number += 1
            cut = longest is not None and len(raw) > longest
            if number == 1:
                _refuse_utf16(raw, name)
                if raw.startswith(UTF8_MARK):
                    seen.byte_order_mark = True
                    offset, raw = len(UTF8_MARK), raw[len(UTF8_MARK) :]
            if cut:
                raise DataError(_too_long(name, number, raw))
            try:
                line = raw.decode()
            except UnicodeDecodeError as err:
                raise DataError(_not_utf8(name, number, offset, raw, err.start)) from err
            if nul == "refuse" and "\0" in line:
                where = raw.index(0)
                raise DataError(
                    f"{name}:{number}: byte {where + 1} of the line (byte {offset + where + 1} of the file) is a NUL "
                    "character; `tr -d '\\0'`, or for parallel text `entformer prep --clean` removes it."
                )
            offset += len(raw)
            if line.endswith("\n"):
                line = line[:-1]
            else:
                seen.no_last_newline = True
            if line.endswith("\r"):
                line = line[:-1]
                seen.windows_ends += 1
            if LINE_SEPARATORS.search(line):
                seen.separators.add(number)
                returns += line.rstrip("\r").count("\r")
            yield line
        if returns and returns >= number:
            raise DataError(f"{name}: {_RETURNS}.")
    except (EOFError, gzip.BadGzipFile, zlib.error) as err:
        raise DataError(
            f"{name}: the compressed file is damaged or truncated after line {number}; download or compress it again."
        ) from err
    except OSError as err:
        raise DataError(f"{name}: cannot be read after line {number} ({err.strerror or err}).") from err


def _too_long(name: str, number: int, raw: bytes) -> str:
    """Returns the error message for a line beyond `MAX_LINE_BYTES`, of which `raw` is the beginning."""
    if raw.count(b"\r") > len(raw) // 10_000:  # more than one per long paragraph
        return f"{name}:{number}: {_RETURNS}."
    return f"{name}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes; put one sentence on a line."


def _refuse_utf16(first: bytes, name: str) -> None:
    """Raises `DataError` for UTF-16, detected by its byte-order mark or its many NULs."""
    marked = first.startswith(UTF16_MARKS)
    start = first[:4096]
    if marked or (len(start) >= 8 and start.count(0) > 0.3 * len(start)):
        how = "byte-order mark" if marked else "every other byte is NUL"
        raise DataError(f"{name}:1: this is UTF-16 ({how}); convert it with `iconv -f UTF-16 -t UTF-8`.")


def _not_utf8(name: str, number: int, offset: int, raw: bytes, where: int) -> str:
    guess = _guess_encoding(raw)
    advice = f"perhaps it is {guess[0]}; convert it with `iconv -f {guess[1]} -t UTF-8`" if guess else "convert it to UTF-8"
    location = f"byte {where + 1} of the line (byte {offset + where + 1} of the file, 0x{raw[where]:02X})"
    return f"{name}:{number}: {location} is not UTF-8; {advice}."


def _guess_encoding(raw: bytes) -> tuple[str, str] | None:
    """Guesses the encoding of a line that is not UTF-8; returns its common name and its name in iconv."""
    letters = [byte for byte in raw if byte > 0x20]
    if letters and sum(byte >= 0x80 for byte in letters) > 0.5 * len(letters):  # mostly beyond ASCII: not a Western language
        for encoding, people, iconv in (("euc_jp", "EUC-JP", "EUC-JP"), ("shift_jis", "Shift JIS", "SHIFT_JIS")):
            try:
                text = raw.decode(encoding)
            except UnicodeDecodeError:
                continue
            if any("\u3040" <= character <= "\u30ff" for character in text):  # kana: it is Japanese
                return people, iconv
        return None
    try:
        raw.decode("cp1252")
    except UnicodeDecodeError:
        return None
    return "Windows-1252 (Latin-1)", "CP1252"


def _near(path: Path) -> str:
    """Returns the missing parent directory or a similar file name, as the end of an error message."""
    parent = path.parent
    if not parent.is_dir():
        return f" (nor the directory {parent})"
    close = get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=1, cutoff=0.75)
    return f"; did you mean {parent / close[0]}?" if close else ""
