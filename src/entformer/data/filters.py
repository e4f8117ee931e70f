"""Options of `entformer prep`: how text is cleaned and which training pairs are dropped.

A pair can be dropped for its text, before there is a vocabulary, or for its token ids. Validation and test text is cleaned but
never dropped.
"""

import hashlib
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entformer.data.batch import SentencePair
from entformer.errors import ArgumentError
from entformer.text.lines import LINE_SEPARATORS

REASONS = {
    "empty": "a side is empty",
    "nul": "it holds a NUL byte (--clean removes the byte and keeps the pair)",
    "identical": "both sides are the same text (--keep-identical keeps them)",
    "duplicate": "it repeats an earlier pair",
    "held out": "it is in the validation or test text too",
    "too long": "a side has more subwords than --max-length",
    "ratio": "one side is more than --max-ratio times as long as the other",
    "malformed row": "a TSV row with a wrong number of columns",
}
_RATIO_MIN_LENGTH = 10  # subwords; shorter pairs may differ more ("danke" / "thank you very much")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f\ufeff]")
_SPACES = re.compile("[ \u00a0]{2,}")


@dataclass(frozen=True)
class PreprocessConfig:
    """Options of `prepare`.

    Args:
        vocab_size: Subwords of the joint vocabulary.
        max_length: Subwords that either side of a training pair may have.
        max_ratio: How many times as many subwords one side may have as the other.
        dedup: Drop repeated training pairs, and those in the validation or test text.
        clean: Remove control characters, collapse whitespace and skip malformed TSV rows.
        lowercase: Lowercase the text.
        keep_identical: Keep training pairs whose two sides are equal.
        allow_truncate: Stop at the end of the shorter file instead of raising an error.
        sample: Training lines the vocabulary is learned from.
        seed: Seed of that sample.
    """

    vocab_size: int = 32000
    max_length: int = 256
    max_ratio: float = 4.0
    dedup: bool = False
    clean: bool = False
    lowercase: bool = False
    keep_identical: bool = False
    allow_truncate: bool = False
    sample: int = 2_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ArgumentError(f"max_length must be at least 1, got {self.max_length}.")
        if self.max_ratio < 1:
            raise ArgumentError(f"max_ratio must be at least 1, got {self.max_ratio}.")

    def clean_text(self, text: str) -> str:
        """Returns the text as it is used in any split."""
        if self.clean:
            text = _SPACES.sub(" ", LINE_SEPARATORS.sub(" ", _CONTROL.sub("", text))).strip()
        return text.lower() if self.lowercase else text

    def clean_pair(self, pair: SentencePair) -> SentencePair:
        """Returns the pair with both sides cleaned."""
        if not (self.clean or self.lowercase):
            return pair
        return SentencePair(self.clean_text(pair.source), self.clean_text(pair.target), pair.line)

    def reject_text(self, pair: SentencePair) -> str | None:
        """Returns why a training pair is dropped for its text (a key of `REASONS`), or None."""
        if not pair.source.strip() or not pair.target.strip():
            return "empty"
        if "\0" in pair.source or "\0" in pair.target:
            return "nul"
        if pair.source == pair.target and not self.keep_identical:
            return "identical"
        return None

    def reject_lengths(self, source: int, target: int) -> str | None:
        """Returns why a training pair of these numbers of subwords is dropped (a key of `REASONS`), or None."""
        longer, shorter = max(source, target), min(source, target)
        if longer > self.max_length:
            return "too long"
        if longer > _RATIO_MIN_LENGTH and longer > self.max_ratio * shorter:
            return "ratio"
        return None


def digest(*texts: str) -> int:
    """Returns a 64-bit hash of the texts; among five million pairs the probability of a collision is one in a million."""
    joined = "\n".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")


def find_repeats(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Returns a mask (N,), True where a value occurred before."""
    repeated = np.ones(len(digests), dtype=bool)
    repeated[np.unique(digests, return_index=True)[1]] = False
    return repeated
