"""Reads gold word alignments in Pharaoh format.

A line holds links `i-j`: word i of the first text is translated by word j of the second, counted from 0, words separated by
spaces. `i-j` is sure; `i?j`, `ipj` and `i-j-P` are possible only. Sure links are possible too.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entformer.errors import DataError
from entformer.text.lines import read_lines

Links = frozenset[tuple[int, int]]

_LINK = re.compile(r"(\d+)([-?p])(\d+)(-[SP])?")


@dataclass(frozen=True)
class Gold:
    """Links (source word, target word) of every sentence; `possible` contains `sure`."""

    sure: tuple[Links, ...]
    possible: tuple[Links, ...]

    def __len__(self) -> int:
        return len(self.sure)

    def turned(self) -> "Gold":
        """Returns the links for the other direction of translation."""
        sides = ([frozenset((j, i) for i, j in links) for links in side] for side in (self.sure, self.possible))
        return Gold(*map(tuple, sides))


def read_gold(path: Path, sources: Sequence[str], targets: Sequence[str], *, first: int = 0) -> Gold:
    """Reads links between the lines of `sources` and `targets`.

    A link to a word that does not exist is skipped with a warning that names its line.

    Args:
        path: The file.
        sources: The source text.
        targets: The target text.
        first: The number of the first word, 0 or 1.
    """
    lines = list(read_lines(path))
    if len(lines) != len(sources) or len(sources) != len(targets):
        raise DataError(
            f"{path} has {len(lines)} lines and its texts have {len(sources)} and {len(targets)}; "
            "each line must hold the links of the same line of the texts."
        )
    sure, possible, stray = [], [], []
    for number, (line, source, target) in enumerate(zip(lines, sources, targets, strict=True), start=1):
        sizes = _words(source), _words(target)
        found: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
        for text in line.split():
            match = _LINK.fullmatch(text)
            if match is None:
                raise DataError(f"{path}:{number}: {text!r} is not a link; expected 3-4 (sure) or 3?4 (possible).")
            link = int(match[1]) - first, int(match[3]) - first
            if 0 <= link[0] < sizes[0] and 0 <= link[1] < sizes[1]:
                found[match[2] == "-" and match[4] != "-P"].add(link)
            else:
                stray.append(f"{path}:{number}: {text}")
        sure.append(frozenset(found[True]))
        possible.append(frozenset(found[True] | found[False]))
    if stray:
        more = f" and {len(stray) - 1} more" if len(stray) > 1 else ""
        warnings.warn(f"{stray[0]}{more}: no such word in that line; skipped.", stacklevel=2)
    return Gold(tuple(sure), tuple(possible))


def _words(line: str) -> int:
    """Counts words separated by the ASCII space only: an ideographic space is a word of its own in some aligned texts."""
    return sum(bool(word) for word in line.split(" "))
