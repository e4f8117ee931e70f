"""The measures of all heads over batches, in fixed memory: statistics are updated at once, and weights are dropped."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from entformer.analysis.examples import ExampleSampler, Tokens, most_varied
from entformer.analysis.measures import HEAD_MEASURES
from entformer.analysis.roles import find_roles
from entformer.analysis.rows import Floats, Ints, LayerRows
from entformer.analysis.table import HeadRow, HeadTable, LayerRow
from entformer.analysis.totals import LayerTotals
from entformer.analysis.words import Marks
from entformer.errors import ArgumentError
from entformer.models.seq2seq import KINDS

Alphas = Mapping[tuple[str, int], Sequence[float] | Floats]


class Collector:
    """The measures of all layers over batches.

    For weights of any model: `collector.add(LayerRows.from_dense("decoder", 0, weights, causal=True), ids)` for every layer
    of every batch, then `collector.table()`.
    """

    def __init__(self, *, examples: int = 0, seed: int = 1) -> None:
        self.totals: dict[tuple[str, int], LayerTotals] = {}
        self._sampler = ExampleSampler(examples, seed)
        self.sentences = self.source_tokens = self.target_tokens = 0

    def add(self, rows: LayerRows, ids: Sequence[int] | Ints | None = None, marks: Marks | None = None) -> None:
        """Adds one layer of one batch: `ids` (B,) of its sentences, `marks` with the words of self-attention."""
        key = rows.attn_type, rows.layer
        totals = self.totals.setdefault(key, LayerTotals(rows.heads))
        if totals.heads != rows.heads:
            raise ArgumentError(f"{rows.attn_type} layer {rows.layer} had {totals.heads} heads and now has {rows.heads}.")
        totals.add(rows, np.arange(rows.batch) if ids is None else np.asarray(ids, np.int64), marks)

    def add_contrast(self, rows: LayerRows, marks: Marks) -> None:
        """Adds one layer of questions read again as statements: `marks.mark` is the index of the full stop."""
        if (key := (rows.attn_type, rows.layer)) not in self.totals:
            raise ArgumentError(f"{rows.attn_type} layer {rows.layer}: add the questions themselves first, with `add`.")
        self.totals[key].add(rows, np.arange(rows.batch), marks, statements=True)

    def end_batch(self, sentences: Mapping[int, tuple[Tokens, Tokens]], questions: Iterable[int] = ()) -> None:
        """Counts the sentences of a batch after all its layers, and samples examples."""
        self.sentences += len(sentences)
        self.source_tokens += sum(len(source) for source, _ in sentences.values())
        self.target_tokens += sum(len(target) for _, target in sentences.values())
        self._sampler.add(sentences, questions, self.totals.values())

    def table(self, alphas: Alphas | None = None, normalizers: Mapping[str, str] | None = None) -> HeadTable:
        """Returns the measures. `alphas`: (attention type, layer) -> a number per head."""
        if not self.totals:
            raise ArgumentError("nothing was collected: there was no batch.")
        ordered = sorted(self.totals.items(), key=lambda entry: ([*KINDS, entry[0][0]].index(entry[0][0]), entry[0]))
        varied = most_varied(self.totals)
        heads = [
            HeadRow(
                attn_type=attn_type,
                layer=layer,
                head=head,
                density_histogram=tuple(total.histogram[head].tolist()),
                density_by_keys=total.density_by_keys(head),
                values=dict.fromkeys((measure.name for measure in HEAD_MEASURES), None)
                | values
                | {"alpha": None if (own := (alphas or {}).get((attn_type, layer))) is None else float(own[head])},
            )
            for (attn_type, layer), total in ordered
            for head, values in enumerate(total.head_values())
        ]
        return HeadTable(
            heads=tuple(find_roles(row) for row in heads),
            layers=tuple(LayerRow(attn_type=key[0], layer=key[1], values=total.layer_values()) for key, total in ordered),
            sentences=self.sentences,
            source_tokens=self.source_tokens,
            target_tokens=self.target_tokens,
            normalizers=dict(normalizers or {}),
            varied=varied,
            examples=self._sampler.chosen(varied),
        )
