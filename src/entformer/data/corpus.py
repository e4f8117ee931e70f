"""Parallel text: two files aligned line by line, or one TSV file, read as a stream of `SentencePair`.

Files of different lengths are an error, with an estimate of the line where they get out of step.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np

from entformer.data.batch import SentencePair
from entformer.errors import ArgumentError, DataError
from entformer.text.lines import LineCounter, Nul, TextIssues, read_lines


@dataclass
class Found:
    """Irregularities found while reading a parallel text."""

    source: TextIssues = field(default_factory=TextIssues)
    target: TextIssues = field(default_factory=TextIssues)
    malformed_rows: LineCounter = field(default_factory=LineCounter)  # skipped TSV rows with too few or too many columns
    left_over: int = 0  # skipped lines at the end of the longer file


@dataclass(frozen=True)
class ParallelText:
    """Two files with a sentence per line, or one TSV (`target` is None) with the two sides in `columns`, counted from 1."""

    source: Path
    target: Path | None = None
    columns: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if min(self.columns) < 1 or self.columns[0] == self.columns[1]:
            raise ArgumentError(f"columns must be two different numbers of at least 1, got {self.columns}.")

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def name(self) -> str:
        """Name of the text in messages."""
        return str(self.source) if self.target is None else f"{self.source} and {self.target}"

    def pairs(
        self, *, nul: Nul = "refuse", allow_truncate: bool = False, drop_malformed: bool = False, found: Found | None = None
    ) -> Iterator[SentencePair]:
        """Yields every pair in order.

        Args:
            nul: Whether a NUL character is an error ("refuse") or kept.
            allow_truncate: Stop at the end of the shorter file instead of raising an error.
            drop_malformed: Skip TSV rows with a wrong number of columns instead of raising an error.
            found: Receives the irregularities found.
        """
        found = found if found is not None else Found()
        if self.target is None:
            return self._rows(nul, drop_malformed, found)
        if self.target.exists() and self.source.exists() and self.source.samefile(self.target):
            raise ArgumentError(f"{self.source} is given for both sides; pass a source file and a target file.")
        return self._zipped(self.target, nul, allow_truncate, found)

    def lines(self) -> tuple[list[str], list[str]]:
        """Returns all source lines and all target lines."""
        pairs = list(self.pairs(nul="keep"))
        return [pair.source for pair in pairs], [pair.target for pair in pairs]

    def _zipped(self, other: Path, nul: Nul, allow_truncate: bool, found: Found) -> Iterator[SentencePair]:
        both = [
            read_lines(self.source, nul=nul, text_issues=found.source),
            read_lines(other, nul=nul, text_issues=found.target),
        ]
        for line, (source, target) in enumerate(zip_longest(*both), start=1):
            if source is None or target is None:
                longer = both[1 if source is None else 0]
                found.left_over = 1 + sum(1 for _ in longer)
                if not allow_truncate:
                    raise DataError(self._mismatch(other, line - 1, source is None, found.left_over))
                return
            yield SentencePair(source, target, line)

    def _mismatch(self, other: Path, both: int, target_longer: bool, more: int) -> str:
        counts = (both, both + more) if target_longer else (both + more, both)
        where = _out_of_step(self.source, other)
        hint = f"; they get out of step near line {where}" if where else ""
        return (
            f"{self.source} has {counts[0]} lines and {other} has {counts[1]}{hint}. Each line must be the translation of the "
            "same line of the other file (never delete empty lines from one file alone)."
        )

    def _rows(self, nul: Nul, drop_malformed: bool, found: Found) -> Iterator[SentencePair]:
        first, second = self.columns[0] - 1, self.columns[1] - 1
        width = 0  # columns of the first row
        for line, row in enumerate(read_lines(self.source, nul=nul, text_issues=found.source), start=1):
            cells = row.split("\t")
            if line == 1:
                width = len(cells)
                if width <= max(first, second):
                    raise DataError(
                        f"{self.source}:1: expected tab-separated columns {self.columns[0]} and {self.columns[1]}, got "
                        f"{_columns(width)}. "
                        "Choose other columns, or pass two plain files as source and target."
                    )
            if len(cells) != width:
                if drop_malformed:
                    found.malformed_rows.add(line)
                    continue
                raise DataError(
                    f"{self.source}:{line}: expected {width} tab-separated columns, got {len(cells)}. Fix the row, "
                    "or pass --clean to skip malformed rows."
                )
            yield SentencePair(cells[first], cells[second], line)


@dataclass(frozen=True)
class ParallelCorpus:
    """Input of `prepare`: the languages and the text of each split. Several training texts are concatenated."""

    source_language: str
    target_language: str
    train: tuple[ParallelText, ...]
    valid: ParallelText | None = None
    test: ParallelText | None = None
    tokenized: bool | None = None  # None: detected from the text
    name: str = "files"

    def __post_init__(self) -> None:
        if not self.train:
            raise ArgumentError("a corpus needs at least one training text.")


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _out_of_step(source: Path, target: Path) -> int | None:
    """Estimates the line from which two files no longer match, from line lengths; None if there is too little text.

    |log length ratio| is small for true pairs. If a block of lines is missing on one side, true pairs are (i, i) before it and
    (i + surplus, i) after it; the break minimizes the sum over both parts.
    """
    sizes = array("I"), array("I")
    for lengths, path in zip(sizes, (source, target), strict=True):
        lengths.extend(len(line) for line in read_lines(path, nul="keep"))
    longer, shorter = sorted((np.log1p(np.frombuffer(lengths, dtype=np.uint32)) for lengths in sizes), key=len, reverse=True)
    shared, surplus = len(shorter), len(longer) - len(shorter)
    if shared < 10:
        return None
    usual = np.median(longer[:shared] - shorter)
    aligned = np.abs(longer[:shared] - shorter - usual)
    shifted = np.abs(longer[surplus:] - shorter - usual)
    # cost[k]: the first k lines aligned, the others shifted
    cost = np.concatenate(([0.0], np.cumsum(aligned))) + np.concatenate((np.cumsum(shifted[::-1])[::-1], [0.0]))
    return int(cost.argmin()) + 1
