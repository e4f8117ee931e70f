"""Bounds the size of a report.

Sparse heads have few nonzero weights, and all of them are stored. A dense head of 512 tokens has 262,144: above its part of the
budget only the largest weights are stored, with the threshold `cut`, so that a page never shows a small weight as exactly 0.
Scores, which only the alpha slider uses, are dropped first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from entformer.analysis.sentence import SentenceView
from entformer.decoding.sparse_rows import StoredHeads, allocate_heads, smallest_first

MOST_WEIGHTS = 400_000  # in all sentences of a report: some 14 bytes each
MOST_SCORES = 1_000_000  # cells: 8 / 3 bytes each
ROW_WEIGHTS = 8  # of a query of a dense head: fewer show little of it


@dataclass(frozen=True)
class StoredSentence:
    """What is stored of one sentence."""

    heads: StoredHeads
    omitted: list[str]  # heads with a budget for less than one weight per query
    scores: bool


def keep_affordable(views: Iterable[SentenceView], weights: int) -> list[SentenceView]:
    """Returns the first views that fit into a number of weights, at least one; of a dense head, `ROW_WEIGHTS` a query.

    Later ones are not computed if `views` is a generator: a dense head of 2,048 tokens has two million weights.
    """
    kept: list[SentenceView] = []
    for view in views:
        weights -= sum(min(len(rows.col), ROW_WEIGHTS * rows.queries) for rows in view.heads.values())
        if kept and weights < 0:
            break
        kept.append(view)
    return kept


def allocate_budget(views: Sequence[SentenceView], weights: int, scores: int) -> list[StoredSentence]:
    """Divides a number of weights and scores among sentences, the smallest first: what one does not need, others get."""
    stored: dict[int, StoredSentence] = {}
    for waiting, index in smallest_first([view.entries for view in views]):
        heads, omitted = allocate_heads(views[index].heads, weights // waiting)
        weights -= sum(len(rows.col) for rows, _ in heads.values())
        stored[index] = StoredSentence(heads, omitted, scores=False)
    for _, index in smallest_first([_cells(view) for view in views]):
        if 0 < (cells := _cells(views[index])) <= scores:
            scores -= cells
            stored[index] = replace(stored[index], scores=True)
    return [stored[index] for index in range(len(views))]


def _cells(view: SentenceView) -> int:
    return sum(scores.size for scores in view.scores.values())
