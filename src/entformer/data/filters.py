"""Which training pairs are left out, and why. In: a pair. Out: the pair as it will be used, or the reason it is not.

Reasons come in two rounds: those seen in the text, before there is a vocabulary, and those seen in the ids.
Validation and test text never passes through here: every line of it is kept.
"""

import hashlib
import re
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from entformer.data.batch import SentencePair
from entformer.errors import ArgumentError
from entformer.text.lines import EXOTIC

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
SHORT = 10  # subwords; below this one side may be much longer than the other ("danke" / "thank you very much")
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f\ufeff]")
SPACES = re.compile("[ \u00a0]{2,}")


@dataclass(frozen=True)
class Rules:
    """What `prepare` may change in the text and what it leaves out."""

    max_length: int = 256  # subwords on either side
    max_ratio: float = 4.0  # of subwords, longer side / shorter side
    dedup: bool = False  # leave out repeated pairs, and pairs that are in the validation or test text
    clean: bool = False  # remove control characters, turn exotic line separators and runs of spaces into one space
    lowercase: bool = False
    keep_identical: bool = False

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ArgumentError(f"max_length is {self.max_length}; give how many subwords a sentence may have, 1 or more.")
        if self.max_ratio < 1:
            raise ArgumentError(f"max_ratio is {self.max_ratio}; give how many times as long one side may be, 1 or more.")

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def mend(self, text: str) -> str:
        """The text as it is used, of any split."""
        if self.clean:
            text = SPACES.sub(" ", EXOTIC.sub(" ", CONTROL.sub("", text))).strip()
        return text.lower() if self.lowercase else text

    def clean_pair(self, pair: SentencePair) -> SentencePair:
        if not (self.clean or self.lowercase):
            return pair
        return SentencePair(self.mend(pair.source), self.mend(pair.target), pair.line)

    def refuse_text(self, pair: SentencePair) -> str | None:
        """Why this pair is left out, evaluated by its text; None if it is not."""
        if not pair.source.strip() or not pair.target.strip():
            return "empty"
        if "\0" in pair.source or "\0" in pair.target:
            return "nul"
        if pair.source == pair.target and not self.keep_identical:
            return "identical"
        return None

    def refuse_ids(self, source: int, target: int) -> str | None:
        """Why a pair of so many ids is left out; None if it is not."""
        longer, shorter = max(source, target), min(source, target)
        if longer > self.max_length:
            return "too long"
        if longer > SHORT and longer > self.max_ratio * shorter:
            return "ratio"
        return None


def digest(*texts: str) -> int:
    """64 bits that stand for the texts: among five million pairs two share them by chance once in a million corpora."""
    joined = "\n".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")


def repeats(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True where a value has come before. (N,)"""
    repeated = np.ones(len(digests), dtype=bool)
    repeated[np.unique(digests, return_index=True)[1]] = False
    return repeated
