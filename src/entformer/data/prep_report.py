"""Results of `prepare` as plain records; the command line prints them as tables or JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entformer.data.corpus import Found
from entformer.text.lines import LineCounter


@dataclass
class TextReport:
    """One training, validation or test text."""

    name: str
    pairs: int = 0  # read
    kept: int = 0
    dropped: dict[str, LineCounter] = field(default_factory=dict)  # reason -> count and first lines
    duplicates: LineCounter = field(default_factory=LineCounter)  # pairs that occurred before, dropped or not
    found: Found = field(default_factory=Found)

    def drop(self, reason: str, line: int) -> None:
        self.dropped.setdefault(reason, LineCounter()).add(line)


@dataclass
class Overlap:
    """Held-out lines that are in the training text too."""

    sources: int = 0  # held-out lines whose source is a training source
    pairs: int = 0  # and whose target is that source's target
    train_lines: LineCounter = field(default_factory=LineCounter)  # training pairs that are held-out pairs


@dataclass
class SideReport:
    """Lengths of one side of the training text in subwords, without EOS."""

    tokens: int
    mean: float
    percentiles: dict[str, int]  # "50", "90", "99", "100"

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.int32]) -> "SideReport":
        points = (50, 90, 99, 100)
        values = np.percentile(lengths, points).round().astype(int)
        percentiles = {str(point): int(value) for point, value in zip(points, values, strict=True)}
        return cls(int(lengths.sum()), round(float(lengths.mean()), 2), percentiles)


@dataclass
class PrepReport:
    """Everything `prepare` counted."""

    folder: str
    source_language: str
    target_language: str
    train: list[TextReport]
    held_out: dict[str, TextReport]  # "valid", "test", where given
    overlap: dict[str, Overlap]
    sides: dict[str, SideReport]  # "source", "target"
    vocabulary: int
    vocabulary_asked: int
    subwords_fingerprint: str
    fingerprint: str
    tokenized: bool
    lowercase: bool
    longest_seen: int  # subwords, before filtering
    batch_tokens: int
    batches: int
    padding_share: float
    notes: list[str]
    seconds: float = 0.0

    @property
    def pairs(self) -> int:
        return sum(text.pairs for text in self.train)

    @property
    def kept(self) -> int:
        return sum(text.kept for text in self.train)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
