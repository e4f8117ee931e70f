"""The statistics of a layer while data streams by, in memory that does not depend on the number of sentences."""

import numpy as np

from entformer.analysis import density
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES
from entformer.analysis.rows import Floats, Ints, LayerRows
from entformer.analysis.words import Marks

BUCKET = 4  # tokens; sentences whose lengths fall in one bucket of this width are of similar length
BUCKETS = 32
SHORTEST = 5  # tokens; the density of shorter sentences varies at random


class Variation:
    """The sparsest and the densest sentence of each head among sentences of similar length (Correia et al. 2019, Fig. 10)."""

    def __init__(self, heads: int) -> None:
        shape = (heads, BUCKETS)
        self.low, self.high = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.low_id, self.high_id = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)

    def add(self, mean_density: Floats, lengths: Ints, ids: Ints) -> None:
        """Adds a batch: mean_density (B, H), the mean over the queries of each sentence; lengths and ids (B,)."""
        bucket = np.minimum(lengths // BUCKET, BUCKETS - 1)
        for number in np.unique(bucket[lengths >= SHORTEST]):
            in_bucket = np.flatnonzero((bucket == number) & (lengths >= SHORTEST))
            part = mean_density[in_bucket]
            for best, best_id, at, better in (
                (self.low, self.low_id, part.argmin(0), np.less),
                (self.high, self.high_id, part.argmax(0), np.greater),
            ):
                value = np.take_along_axis(part, at[None], 0)[0]  # (H,)
                new = better(value, best[:, number])
                best[new, number] = value[new]
                best_id[new, number] = ids[in_bucket[at]][new]

    def widest(self) -> tuple[Floats, Ints]:
        """Returns each head's largest difference within a bucket, and the bucket: (H,) each; 0 where there is no pair."""
        spread = np.where(self.low_id >= 0, self.high - self.low, 0.0)
        return spread.max(1), spread.argmax(1)


class LayerTotals:
    """The measures of one layer over all batches."""

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.histogram = np.zeros((heads, density.BINS), dtype=np.int64)
        self.variation = Variation(heads)
        self._key_sums = np.zeros((heads, density.KEY_BINS))
        self._key_counts = np.zeros(density.KEY_BINS, dtype=np.int64)
        self._heads = [(measure, measure.over(heads)) for measure in HEAD_MEASURES if measure.compute]
        self._layer = [(measure, measure.over(1)) for measure in LAYER_MEASURES if measure.compute]

    def add(self, rows: LayerRows, ids: Ints, marks: Marks | None, *, statements: bool = False) -> None:
        """Adds a batch.

        Args:
            rows: The weights.
            ids: The sentences' ids, (B,).
            marks: The words of self-attention.
            statements: The batch holds questions that are read again as statements: only their contrast is measured.
        """
        for measure, statistic in self._heads if statements else [*self._heads, *self._layer]:
            if measure.compute is not None and measure.applies(rows, marks, statements=statements):
                statistic.add(measure.compute(rows, marks))
        if not statements:
            per_sentence = density.sentence_density(density.density(rows))
            self.histogram += density.density_histogram(per_sentence)
            sums, counts = density.density_by_keys(rows)
            self._key_sums += sums
            self._key_counts += counts
            self.variation.add(np.nan_to_num(per_sentence), rows.key_lengths, ids)

    def density_by_keys(self, head: int) -> tuple[float | None, ...]:
        """Returns the mean density of a head in each bin of `density.density_by_keys`, None without queries, up to the last."""
        sums, counts = self._key_sums, self._key_counts
        last = int(np.flatnonzero(counts).max(initial=-1)) + 1
        return tuple(float(sums[head, at] / counts[at]) if counts[at] else None for at in range(last))

    def head_values(self) -> list[dict[str, float | None]]:
        """Returns each head's measures by name."""
        columns = {measure.name: statistic.values() for measure, statistic in self._heads}
        columns["density_spread"] = self.variation.widest()[0].tolist()
        return [{name: column[head] for name, column in columns.items()} for head in range(self.heads)]

    def layer_values(self) -> dict[str, float | None]:
        """Returns the layer's measures by name."""
        return {measure.name: statistic.values()[0] for measure, statistic in self._layer}
