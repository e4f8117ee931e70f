"""Statistics of a stream in fixed memory: means, medians, a uniform sample."""

from typing import Protocol

import numpy as np

from entformer.analysis.rows import Floats

BINS = 1000


class Accumulator(Protocol):
    """One statistic per head over values that arrive in batches."""

    def __init__(self, heads: int) -> None: ...

    def add(self, values: Floats) -> None:
        """Adds values with heads on axis 1; NaN is skipped."""

    def values(self) -> list[float | None]:
        """Returns a number per head; None for a head without values."""


class StreamingMeans:
    """The mean of each head's values; of all values if there is one head only."""

    def __init__(self, heads: int) -> None:
        self._sums, self._counts = np.zeros(heads), np.zeros(heads)

    def add(self, values: Floats) -> None:
        axes = tuple(axis for axis in range(values.ndim) if axis != 1 or len(self._sums) == 1)
        self._sums += np.nansum(values, axes)
        self._counts += np.count_nonzero(~np.isnan(values), axes)

    def values(self) -> list[float | None]:
        return [float(total / count) if count else None for total, count in zip(self._sums, self._counts, strict=True)]


class StreamingMedians:
    """The median of each head's values from 0 to 1, to within 1 / 1000, whatever their number.

    A histogram with the mean of every bin; the median is the mean of the bin it is in, so it is exact when the values in that
    bin are equal, as at exactly 0 and exactly 1.
    """

    def __init__(self, heads: int) -> None:
        self._counts = np.zeros((heads, BINS), dtype=np.int64)
        self._sums = np.zeros((heads, BINS))

    def add(self, values: Floats) -> None:
        head = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        known = ~np.isnan(values)
        value = np.clip(values[known], 0.0, 1.0)
        cell = head[known] * BINS + np.minimum((value * BINS).astype(np.int64), BINS - 1)
        self._counts += np.bincount(cell, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(cell, value, self._sums.size).reshape(self._sums.shape)

    def values(self) -> list[float | None]:
        found: list[float | None] = []
        for counts, sums in zip(self._counts, self._sums, strict=True):
            total = int(counts.sum())
            middle = np.searchsorted(np.cumsum(counts), ((total + 1) // 2, total // 2 + 1))
            found.append(float(np.mean(sums[middle] / counts[middle])) if total else None)
        return found


class Reservoir:
    """A uniform sample of at most `size` ids from a stream of unknown length (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.size = size
        self.ids: list[int] = []
        self._seen = 0
        self._rng = np.random.default_rng(seed)

    def add(self, number: int) -> None:
        self._seen += 1
        if len(self.ids) < self.size:
            self.ids.append(number)
        elif self.size and (index := int(self._rng.integers(self._seen))) < self.size:
            self.ids[index] = number
