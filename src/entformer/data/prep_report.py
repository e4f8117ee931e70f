"""What `prepare` found and did, as plain records. Out: `as_dict()` for JSON; the command line draws its tables from these."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entformer.data.corpus import Found
from entformer.errors import DataError
from entformer.text.lines import LineCounter, TextIssues


@dataclass
class TextReport:
    """One training, validation or test text."""

    name: str
    pairs: int = 0  # read
    kept: int = 0
    dropped: dict[str, LineCounter] = field(default_factory=dict)  # reason -> how many, and the first lines
    duplicates: LineCounter = field(default_factory=LineCounter)  # pairs that came before, left out or not
    found: Found = field(default_factory=Found)

    def drop(self, reason: str, line: int) -> None:
        self.dropped.setdefault(reason, LineCounter()).add(line)


@dataclass
class Overlap:
    """Lines of a held-out text that are in the training text too."""

    sources: int = 0  # held-out lines whose source is a training source
    pairs: int = 0  # and whose target is its target too
    train_lines: LineCounter = field(default_factory=LineCounter)  # training pairs that are held-out pairs


@dataclass
class SideReport:
    """Lengths of one side of the training text in subwords, without EOS."""

    tokens: int
    mean: float
    percentiles: dict[str, int]  # "50", "90", "99", "100"

    @classmethod
    def of(cls, lengths: NDArray[np.int32]) -> "SideReport":
        points = (50, 90, 99, 100)
        values = np.percentile(lengths, points).round().astype(int)
        percentiles = {str(point): int(value) for point, value in zip(points, values, strict=True)}
        return cls(int(lengths.sum()), round(float(lengths.mean()), 2), percentiles)


@dataclass
class PrepReport:
    """All of it."""

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
    longest_seen: int  # subwords, before the filters
    batch_tokens: int
    batches: int
    padding_share: float
    notes: list[str]
    seconds: float = 0.0
    reused: bool = False

    @property
    def pairs(self) -> int:
        return sum(text.pairs for text in self.train)

    @property
    def kept(self) -> int:
        return sum(text.kept for text in self.train)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "PrepReport":
        """A report read back from prep.json."""
        try:
            return cls._from_dict(stored)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise DataError(f"the report in prep.json is damaged ({problem!r}); run `entformer prep` again.") from problem

    @classmethod
    def _from_dict(cls, stored: dict[str, Any]) -> "PrepReport":
        made = dict(stored)
        made["train"] = [_text(text) for text in stored["train"]]
        made["held_out"] = {split: _text(text) for split, text in stored["held_out"].items()}
        made["overlap"] = {
            split: Overlap(o["sources"], o["pairs"], LineCounter(**o["train_lines"])) for split, o in stored["overlap"].items()
        }
        made["sides"] = {side: SideReport(**report) for side, report in stored["sides"].items()}
        return cls(**made)


def _text(stored: dict[str, Any]) -> TextReport:
    found = stored["found"]
    sides = [
        TextIssues(**{**found[side], "separators": LineCounter(**found[side]["separators"])}) for side in ("source", "target")
    ]
    return TextReport(
        name=stored["name"],
        pairs=stored["pairs"],
        kept=stored["kept"],
        dropped={reason: LineCounter(**counter) for reason, counter in stored["dropped"].items()},
        duplicates=LineCounter(**stored["duplicates"]),
        found=Found(sides[0], sides[1], LineCounter(**found["malformed_rows"]), found["left_over"]),
    )
