"""What of each sentence a report holds, so that its size is bounded. In: `SentenceView`s. Out: rows and cuts of every head.

Weights above zero are few where attention is sparse, and all of them are held. A dense head of 512 tokens has 262,144. What is
more than its part of the budget is cut: the largest weights stay, and `cut` says below which weight nothing was kept, so that a
page never calls exactly 0 what is only small. Scores go first where there are too many: they serve the alpha slider alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from entformer.analysis.sentence import SentenceView
from entformer.decoding.records import SparseRows

MOST_WEIGHTS = 400_000  # in all sentences of a report: some 14 bytes each
MOST_SCORES = 1_000_000  # cells: 8 / 3 bytes each


@dataclass(frozen=True)
class HeldSentence:
    """What is held of one sentence."""

    heads: dict[str, tuple[SparseRows, float | None]]  # weights, and the least weight that was kept, None if all are there
    omitted: list[str]  # heads that could not have had one weight per query
    scores: bool


def allocate_budget(views: Sequence[SentenceView], weights: int, scores: int) -> list[HeldSentence]:
    """Share so many weights and cells of scores among sentences, the smallest first: what they leave, others get."""
    held: dict[int, HeldSentence] = {}
    for waiting, place in _smallest_first([view.entries for view in views]):
        view = views[place]
        heads, omitted = _share_heads(view.heads, weights // waiting)
        weights -= sum(len(rows.col) for rows, _ in heads.values())
        held[place] = HeldSentence(heads, omitted, scores=False)
    for _, place in _smallest_first([_cells(view) for view in views]):
        if 0 < (cells := _cells(views[place])) <= scores:
            scores -= cells
            held[place] = HeldSentence(held[place].heads, held[place].omitted, scores=True)
    return [held[place] for place in range(len(views))]


def cut_rows(rows: SparseRows, most: int) -> tuple[SparseRows, float]:
    """The largest weights, at most `most` of them: all that are not below a cut of two digits, and the cut."""
    least = np.partition(rows.weight, -most)[-most]
    cut = _rounded_up(float(least))
    if np.count_nonzero(rows.weight >= cut) > most:  # many are equal to the cut
        cut = _rounded_up(1.001 * cut)
    kept = rows.weight >= cut
    crow = np.concatenate([[0], np.cumsum(kept)])[rows.crow]
    return SparseRows(crow.astype(np.int64), rows.col[kept], rows.weight[kept], rows.keys), cut


def _share_heads(heads: Mapping[str, SparseRows], room: int) -> tuple[dict[str, tuple[SparseRows, float | None]], list[str]]:
    names = list(heads)
    kept: dict[str, tuple[SparseRows, float | None]] = {}
    for waiting, place in _smallest_first([len(heads[name].col) for name in names]):
        rows, part = heads[names[place]], room // waiting
        if len(rows.col) <= part:
            kept[names[place]] = rows, None
        elif part >= rows.queries:
            kept[names[place]] = cut_rows(rows, part)
        else:
            continue
        room -= len(kept[names[place]][0].col)
    return {name: kept[name] for name in names if name in kept}, [name for name in names if name not in kept]


def _smallest_first(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(how many are left with this one, place)."""
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    return list(zip(range(len(sizes), 0, -1), order, strict=True))


def _cells(view: SentenceView) -> int:
    return sum(scores.size for scores in view.scores.values())


def _rounded_up(value: float) -> float:
    """To two significant digits: 0.001234 -> 0.0013."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.1e}")
