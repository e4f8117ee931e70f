"""Bounds the size of a report.

Sparse heads have few nonzero weights, and all of them are stored. A dense head of 512 tokens has 262,144: above its part of the
budget only the largest weights are stored, with the threshold `cut`, so that a page never shows a small weight as exactly 0.
Scores, which only the alpha slider uses, are dropped first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from entformer.analysis.sentence import SentenceView
from entformer.decoding.records import SparseRows

MOST_WEIGHTS = 400_000  # in all sentences of a report: some 14 bytes each
MOST_SCORES = 1_000_000  # cells: 8 / 3 bytes each

StoredHeads = dict[str, tuple[SparseRows, float | None]]
"""The weights of each head, and the smallest stored weight, None if all are stored."""


@dataclass(frozen=True)
class StoredSentence:
    """What is stored of one sentence."""

    heads: StoredHeads
    omitted: list[str]  # heads with a budget for less than one weight per query
    scores: bool


def allocate_budget(views: Sequence[SentenceView], weights: int, scores: int) -> list[StoredSentence]:
    """Divides a number of weights and scores among sentences, the smallest first: what one does not need, others get."""
    stored: dict[int, StoredSentence] = {}
    for waiting, index in _smallest_first([view.entries for view in views]):
        heads, omitted = _allocate_heads(views[index].heads, weights // waiting)
        weights -= sum(len(rows.col) for rows, _ in heads.values())
        stored[index] = StoredSentence(heads, omitted, scores=False)
    for _, index in _smallest_first([_cells(view) for view in views]):
        if 0 < (cells := _cells(views[index])) <= scores:
            scores -= cells
            stored[index] = replace(stored[index], scores=True)
    return [stored[index] for index in range(len(views))]


def cut_rows(rows: SparseRows, most: int) -> tuple[SparseRows, float]:
    """Returns the weights not below a threshold of two digits, at most `most` of them, and the threshold."""
    least = np.partition(rows.weight, -most)[-most]
    cut = _rounded_up(float(least))
    if np.count_nonzero(rows.weight >= cut) > most:  # many are equal to the cut
        cut = _rounded_up(1.001 * cut)
    kept = rows.weight >= cut
    crow = np.concatenate([[0], np.cumsum(kept)])[rows.crow]
    return SparseRows(crow.astype(np.int64), rows.col[kept], rows.weight[kept], rows.keys), cut


def _allocate_heads(
    heads: Mapping[str, SparseRows], weights: int
) -> tuple[dict[str, tuple[SparseRows, float | None]], list[str]]:
    names = list(heads)
    stored: StoredHeads = {}
    for waiting, index in _smallest_first([len(heads[name].col) for name in names]):
        name, part = names[index], weights // waiting
        rows = heads[name]
        if len(rows.col) <= part:
            stored[name] = rows, None
        elif part >= rows.queries:
            stored[name] = cut_rows(rows, part)
        else:
            continue
        weights -= len(stored[name][0].col)
    return {name: stored[name] for name in names if name in stored}, [name for name in names if name not in stored]


def _smallest_first(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (how many are left including this one, index) in order of size."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return list(zip(range(len(sizes), 0, -1), order, strict=True))


def _cells(view: SentenceView) -> int:
    return sum(scores.size for scores in view.scores.values())


def _rounded_up(value: float) -> float:
    """Rounds up to two significant digits: 0.001234 -> 0.0013."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.1e}")
