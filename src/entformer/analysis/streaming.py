"""Numbers of a stream in fixed memory. In: values between 0 and 1, batch after batch. Out: medians; a uniform sample."""

import numpy as np

from entformer.analysis.rows import Floats

FINE = 1000


class StreamingMedians:
    """The median of each of `count` streams of values from 0 to 1, to within 1 / 1000, whatever their length.

    A histogram with the mean of every bin: what is said is the mean of the bin the median is in, so it is exact when the values
    in that bin are equal, as at exactly 0 and exactly 1.
    """

    def __init__(self, count: int) -> None:
        self._counts = np.zeros((count, FINE), dtype=np.int64)
        self._sums = np.zeros((count, FINE))

    def add(self, values: Floats) -> None:
        """values (n, count); NaN is left out."""
        stream = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        known = ~np.isnan(values)
        value = np.clip(values[known], 0.0, 1.0)
        cell = stream[known] * FINE + np.minimum((value * FINE).astype(np.int64), FINE - 1)
        self._counts += np.bincount(cell, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(cell, value, self._sums.size).reshape(self._sums.shape)

    def medians(self) -> Floats:
        """(count,); NaN for a stream without values."""
        upto = np.cumsum(self._counts, 1)
        total = upto[:, -1]
        middle = [(upto < np.maximum(rank, 1)[:, None]).sum(1) for rank in ((total + 1) // 2, (total + 2) // 2)]
        each = np.arange(len(total))
        halves = [self._sums[each, np.minimum(at, FINE - 1)] for at in middle]
        sizes = [np.maximum(self._counts[each, np.minimum(at, FINE - 1)], 1) for at in middle]
        found: Floats = (halves[0] / sizes[0] + halves[1] / sizes[1]) / 2
        return np.where(total > 0, found, np.nan)


class Reservoir:
    """A uniform sample of at most `size` ids from a stream of unknown length (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.size = size
        self.ids: list[int] = []
        self._seen = 0
        self._chance = np.random.default_rng(seed)

    def add(self, number: int) -> None:
        self._seen += 1
        if len(self.ids) < self.size:
            self.ids.append(number)
        elif self.size and (place := int(self._chance.integers(self._seen))) < self.size:
            self.ids[place] = number
