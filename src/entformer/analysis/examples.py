"""Samples example sentences from a stream in fixed memory, each with the reason it was chosen."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from entformer.analysis.streaming import Reservoir
from entformer.analysis.table import Example, VariedPair
from entformer.analysis.totals import LayerTotals

PAIRS = 2  # of sentences in which a head's sparsity varies
VARIED = "most variable sparsity"

Tokens = tuple[int, ...]


class ExampleSampler:
    """Samples sentences: a uniform sample, questions, the longest, and those whose density varies most."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.count = count
        self._sample = Reservoir(count, seed)
        self._questions = Reservoir(max(1, count // 4) if count else 0, seed + 1)
        self._longest: tuple[int, int] = (-1, -1)  # tokens, id
        self._kept: dict[int, tuple[Tokens, Tokens]] = {}

    def add(
        self, sentences: Mapping[int, tuple[Tokens, Tokens]], questions: Iterable[int], totals: Iterable[LayerTotals]
    ) -> None:
        """Adds a batch: its sentences by id, the questions among them, and the totals after it."""
        if not self.count:
            return
        for number, (source, target) in sentences.items():
            self._sample.add(number)
            self._longest = max(self._longest, (len(source) + len(target), number))
        for number in questions:
            self._questions.add(number)
        extremes = [ids for total in totals for ids in (total.variation.low_id, total.variation.high_id)]
        needed = {*self._sample.ids, *self._questions.ids, self._longest[1], *np.unique(extremes).tolist()}
        known = {**self._kept, **sentences}
        self._kept = {number: known[number] for number in needed if number >= 0}

    def chosen(self, varied: Sequence[VariedPair]) -> tuple[Example, ...]:
        """Returns at most `count` sentences, each once."""
        reasons: dict[int, str] = {}
        for pair in varied[: max(0, self.count // 4)]:
            for number in (pair.sparse, pair.dense):
                reasons.setdefault(number, VARIED)
        for number in self._questions.ids:
            reasons.setdefault(number, "question")
        if self._longest[1] >= 0 and self.count > 1:
            reasons.setdefault(self._longest[1], "longest")
        for number in self._sample.ids:
            if len(reasons) >= self.count:
                break
            reasons.setdefault(number, "sample")
        return tuple(Example(number, why, *self._kept[number]) for number, why in list(reasons.items())[: self.count])


def most_varied(totals: Mapping[tuple[str, int], LayerTotals], pairs: int = PAIRS) -> tuple[VariedPair, ...]:
    """Returns the heads whose sparsity differs most between two sentences of similar length, one pair each (Fig. 10).

    Ranked by the difference of the mean densities of the two sentences.
    """
    found = []
    for (attn_type, layer), total in totals.items():
        spread, bucket = total.variation.widest()
        for head in range(total.heads):
            at = (head, int(bucket[head]))
            if spread[head] > 0.0:
                ids = int(total.variation.low_id[at]), int(total.variation.high_id[at])
                densities = float(total.variation.low[at]), float(total.variation.high[at])
                found.append((float(spread[head]), VariedPair(attn_type, layer, head, *ids, densities)))
    found.sort(key=lambda entry: -entry[0])
    return tuple(pair for _, pair in found[:pairs])
