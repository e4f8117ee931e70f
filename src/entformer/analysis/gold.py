"""Word alignments made by hand. In: a file in Pharaoh format. Out: `Gold`, the links of every line.

A line holds links `i-j`: word i of the first text is translated by word j of the second, counted from 0, words parted by
spaces. `i-j` is sure; `i?j`, `ipj` and `i-j-P` are possible only. What is sure is possible too.
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
        """For the other direction of translation."""
        return Gold(tuple(_turned(links) for links in self.sure), tuple(_turned(links) for links in self.possible))


def read_gold(path: Path, sources: Sequence[str], targets: Sequence[str], *, first: int = 0) -> Gold:
    """Read links between the lines of `sources` and `targets`.

    Args:
        first: the number of the first word, 0 or 1.

    A link to a word that is not there is left out, with a warning that names its line.
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
                raise DataError(f"{path}:{number}: {text!r} is not a link; links look like 3-4 (sure) or 3?4 (possible).")
            link = int(match[1]) - first, int(match[3]) - first
            if 0 <= link[0] < sizes[0] and 0 <= link[1] < sizes[1]:
                found[match[2] == "-" and match[4] != "-P"].add(link)
            else:
                stray.append(f"{path}:{number}: {text}")
        sure.append(frozenset(found[True]))
        possible.append(frozenset(found[True] | found[False]))
    if stray:
        more = f" and {len(stray) - 1} more" if len(stray) > 1 else ""
        warnings.warn(f"{stray[0]}{more}: no such word in that line; left out.", stacklevel=2)
    return Gold(tuple(sure), tuple(possible))


def _words(line: str) -> int:
    """Words are parted by the ASCII space alone: an ideographic space is a word of its own in some aligned texts."""
    return sum(bool(word) for word in line.split(" "))


def _turned(links: Links) -> Links:
    return frozenset((j, i) for i, j in links)
