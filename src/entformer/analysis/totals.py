"""What is kept of a layer while data stream by. In: `LayerRows` after `LayerRows`. Out: sums; their size knows no sentences."""

import numpy as np

from entformer.analysis import density, diversity, merging, positional
from entformer.analysis.interrogation import interrogation_weights
from entformer.analysis.rows import Bools, Floats, Ints, LayerRows
from entformer.analysis.streaming import StreamingMedians
from entformer.analysis.words import Marks

BUCKET = 4  # sentences whose lengths fall in one bucket of this width are "of similar length"
BUCKETS = 32
SHORTEST = 5  # tokens; the density of shorter sentences jumps for no reason


class Variation:
    """The sparsest and the densest sentence of each head among sentences of similar length (Correia et al. 2019, Fig. 10)."""

    def __init__(self, heads: int) -> None:
        shape = (heads, BUCKETS)
        self.low, self.high = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.low_id, self.high_id = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)

    def add(self, mean_density: Floats, lengths: Ints, ids: Ints) -> None:
        """mean_density (B, H), the mean over the rows of each sentence; lengths and ids (B,)."""
        bucket = np.minimum(lengths // BUCKET, BUCKETS - 1)
        for number in np.unique(bucket[lengths >= SHORTEST]):
            of_bucket = np.flatnonzero((bucket == number) & (lengths >= SHORTEST))
            part = mean_density[of_bucket]
            for best, best_id, at, better in (
                (self.low, self.low_id, part.argmin(0), np.less),
                (self.high, self.high_id, part.argmax(0), np.greater),
            ):
                value = np.take_along_axis(part, at[None], 0)[0]  # (H,)
                new = better(value, best[:, number])
                best[new, number] = value[new]
                best_id[new, number] = ids[of_bucket[at]][new]

    def widest(self) -> tuple[Floats, Ints]:
        """For each head the largest difference within a bucket, and the bucket: (H,) each; 0 where there is no pair."""
        spread = np.where(self.low_id >= 0, self.high - self.low, 0.0)
        return spread.max(1), spread.argmax(1)


class LayerTotals:
    """Sums over the rows and sentences of one layer, a number per head."""

    def __init__(self, heads: int, causal: bool, self_attention: bool) -> None:
        self.heads = heads
        self.rows = 0
        self.density = np.zeros(heads)
        self.histogram = np.zeros((heads, density.BINS), dtype=np.int64)
        self.support = np.zeros(heads)
        self.live_rows = np.zeros(heads)
        self.entropy = np.zeros(heads)
        self.effective_keys = np.zeros(heads)
        self.normalized_entropy, self.even_rows = np.zeros(heads), np.zeros(heads)
        self.null = np.zeros(heads)
        self.union = 0.0
        self.diversity = np.zeros((2, 2))  # by keys and by heads: sum, rows
        self.live_diversity = np.zeros((2, 2))
        offsets = positional.OFFSETS if self_attention else ()
        # A causal query never sees the token after it.
        self.positional = {offset: StreamingMedians(heads) for offset in offsets if not (causal and offset > 0)}
        self.first_key, self.last_key = StreamingMedians(heads), StreamingMedians(heads)
        self.merging, self.clusters = np.zeros(heads), 0
        self.merging_pieces, self.merging_with_self, self.split_words = np.zeros(heads), np.zeros(heads), 0
        self.interrogation, self.questions = np.zeros(heads), 0
        self.contrast, self.statements = np.zeros(heads), 0
        self.variation = Variation(heads)

    def add(self, rows: LayerRows, ids: Ints, marks: Marks | None) -> None:
        """One batch; `ids` (B,) name its sentences, `marks` say what the tokens of self-attention are."""
        real = rows.real[:, None]  # (B, 1, Lq)
        self.rows += int(rows.real.sum())
        per_row = density.density(rows)
        self.density += np.nansum(per_row, (0, 2))
        per_sentence = density.sentence_density(per_row)
        self.histogram += density.density_histogram(per_sentence)
        self.support += rows.count.sum((0, 2))
        null = density.null_rows(rows)
        self.null += null.sum((0, 2))
        live: Bools = real & ~null
        self.live_rows += live.sum((0, 2))
        nats = density.entropy(rows)
        self.entropy += np.nansum(nats, (0, 2))
        self.effective_keys += np.nansum(np.exp(nats), (0, 2))
        choice = live & (rows.visible > 1)[:, None]
        most = np.log(np.maximum(rows.visible, 2))[:, None]
        self.normalized_entropy += np.where(choice, nats / most, 0.0).sum((0, 2))
        self.even_rows += choice.sum((0, 2))
        self.union += float(np.nansum(density.union_density(rows)))
        for total, both in (
            (self.diversity, diversity.jensen_shannon(rows)),
            (self.live_diversity, diversity.jensen_shannon_of_live_heads(rows)),
        ):
            total += [(np.nansum(values), np.count_nonzero(~np.isnan(values))) for values in both]
        for offset, medians in self.positional.items():
            medians.add(positional.positional_confidence(rows, offset))
        self.first_key.add(positional.first_key_share(rows))
        if not rows.causal:
            self.last_key.add(positional.last_key_share(rows))
        self.variation.add(np.nan_to_num(per_sentence), rows.key_lengths, ids)
        if marks is not None and self.positional:
            self._add_words(rows, marks)

    def _add_words(self, rows: LayerRows, marks: Marks) -> None:
        found = merging.merging_scores(rows, marks.words)
        self.merging += found.rest.sum(1)
        self.clusters += len(found.sizes)
        split = found.sizes > 1
        self.merging_pieces += found.rest[:, split].sum(1)
        self.merging_with_self += found.with_self[:, split].sum(1)
        self.split_words += int(split.sum())
        if not rows.causal:  # a causal query cannot see the mark at the end
            weights = interrogation_weights(rows, marks.asking, marks.mark)
            self.interrogation += weights.sum(1)
            self.questions += weights.shape[1]

    def add_contrast(self, rows: LayerRows, marks: Marks) -> None:
        """Questions read again as statements; `marks.mark` is where the full stop stands in place of the question mark."""
        weights = interrogation_weights(rows, marks.asking, marks.mark)
        self.contrast += weights.sum(1)
        self.statements += weights.shape[1]
