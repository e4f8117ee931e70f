"""Tokenizers of documents for language models: byte-pair encoding with line breaks, or bytes.

Ids are those of `SubwordTokenizer`: PAD, UNK, BOS and EOS are 0 to 3. A line break is the byte 0x0A, and byte b of the byte
tokenizer is the id 4 + b.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from entformer.text.tokenizer import NUM_SPECIAL_TOKENS, SPACE, SubwordTokenizer

NEWLINE = "\u21b5"  # how a line break is shown
BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")  # how sentencepiece shows a byte


class DocumentTokenizer(Protocol):
    """Text to ids and back."""

    name: str
    size: int
    fingerprint: str

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without BOS and EOS."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids; special ids are skipped."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns each id as text for display."""

    def save(self, path: Path) -> None:
        """Writes what `open_tokenizer` needs to a file."""


class ByteTokenizer:
    """One id per byte of UTF-8; encoding loses nothing."""

    name, size = "bytes", NUM_SPECIAL_TOKENS + 256
    fingerprint = hashlib.sha256(b"bytes").hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        return [NUM_SPECIAL_TOKENS + byte for byte in text.encode("utf-8", "replace")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) - NUM_SPECIAL_TOKENS for i in ids if int(i) >= NUM_SPECIAL_TOKENS).decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        special = ("<pad>", "<unk>", "<s>", "</s>")
        return [special[int(i)] if int(i) < NUM_SPECIAL_TOKENS else _shown(int(i) - NUM_SPECIAL_TOKENS) for i in ids]

    def save(self, path: Path) -> None:
        """Writes nothing: there is nothing to store."""


class BpeTokenizer:
    """Subwords within lines, and a byte for each line break. Runs of spaces within a line become one."""

    name = "bpe"

    def __init__(self, subwords: SubwordTokenizer) -> None:
        self.subwords = subwords
        self.size, self.fingerprint = subwords.size, subwords.fingerprint
        self.newline = subwords.byte_id(10)

    @classmethod
    def train(cls, lines: Iterable[str], *, vocab_size: int, seed: int = 1) -> "BpeTokenizer":
        """Trains a vocabulary on lines of text."""
        return cls(SubwordTokenizer.train(lines, vocab_size=vocab_size, seed=seed))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for number, line in enumerate(self.subwords.encode_lines(text.split("\n"))):
            ids += [self.newline, *line] if number else line
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        lines: list[list[int]] = [[]]
        for i in ids:
            lines.append([]) if int(i) == self.newline else lines[-1].append(int(i))
        return "\n".join(map(self.subwords.decode, lines))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        pieces = self.subwords.pieces(ids)
        return [_shown(int(found[1], 16)) if (found := BYTE_PIECE.fullmatch(piece)) else piece for piece in pieces]

    def save(self, path: Path) -> None:
        self.subwords.save(path)


def _shown(byte: int) -> str:
    """Returns a byte as text for display: its number in hexadecimal, unless it is a character of its own."""
    if byte == ord("\n"):
        return NEWLINE
    return SPACE if byte == ord(" ") else chr(byte) if ord(" ") < byte < 127 else f"<0x{byte:02X}>"


def open_tokenizer(name: str, path: Path) -> DocumentTokenizer:
    """Returns the tokenizer of this name, whose vocabulary is in the file `path`."""
    return ByteTokenizer() if name == "bytes" else BpeTokenizer(SubwordTokenizer.load(path))
