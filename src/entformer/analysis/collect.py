"""All measures of all heads over a data set, in one pass and fixed memory. In: a model and batches. Out: `HeadTable`.

    table = entformer.analysis.collect(run.model, TokenBatches(store).epoch(0), subwords=run.subwords, languages=("en", "de"))

Each layer hands over its exact support as it computes (compressed rows, a batch at a time); sums are taken at once and the
support is dropped. `Collector` does the same with weights of any origin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from entformer.analysis.examples import ExampleSampler, Tokens, most_varied
from entformer.analysis.roles import find_roles
from entformer.analysis.rows import Floats, Ints, LayerRows
from entformer.analysis.table import HeadRow, HeadTable, LayerRow
from entformer.analysis.totals import LayerTotals
from entformer.analysis.words import Marks, WordMarker
from entformer.data.batch import Batch
from entformer.decoding.attention_record import attention_hooks
from entformer.errors import ArgumentError
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import SubwordTokenizer

Alphas = Mapping[tuple[str, int], Sequence[float] | Floats]


class Collector:
    """Sums over batches, layer by layer.

    For weights of any model: `collector.add(LayerRows.from_dense("decoder", 0, weights, causal=True), ids)` for every layer
    of every batch, then `collector.table()`.
    """

    def __init__(self, *, examples: int = 0, seed: int = 1) -> None:
        self.totals: dict[tuple[str, int], LayerTotals] = {}
        self.keeper = ExampleSampler(examples, seed)
        self.sentences = self.source_tokens = self.target_tokens = 0

    def add(self, rows: LayerRows, ids: Sequence[int] | Ints | None = None, marks: Marks | None = None) -> None:
        """One layer of one batch. `ids` (B,) name its sentences; `marks` say what the tokens of self-attention are."""
        key = rows.kind, rows.layer
        if key not in self.totals:
            self.totals[key] = LayerTotals(rows.heads, rows.causal, self_attention=rows.kind != "cross")
        if self.totals[key].heads != rows.heads:
            raise ArgumentError(f"{rows.kind} layer {rows.layer} had {self.totals[key].heads} heads and now has {rows.heads}.")
        self.totals[key].add(rows, np.arange(rows.batch) if ids is None else np.asarray(ids, np.int64), marks)

    def add_contrast(self, rows: LayerRows, marks: Marks) -> None:
        """One layer of questions that were read again as statements: `marks.mark` is where the full stop stands."""
        if (key := (rows.kind, rows.layer)) not in self.totals:
            raise ArgumentError(f"{rows.kind} layer {rows.layer}: add the questions themselves first, with `add`.")
        self.totals[key].add_contrast(rows, marks)

    def end_batch(self, sentences: Mapping[int, tuple[Tokens, Tokens]], questions: Iterable[int] = ()) -> None:
        """After all layers of a batch: count its sentences, and keep those worth looking at."""
        self.sentences += len(sentences)
        self.source_tokens += sum(len(source) for source, _ in sentences.values())
        self.target_tokens += sum(len(target) for _, target in sentences.values())
        self.keeper.add(sentences, questions, self.totals.values())

    def table(self, alphas: Alphas | None = None, normalizers: Mapping[str, str] | None = None) -> HeadTable:
        """The measures. `alphas`: (kind, layer) -> a number per head."""
        if not self.totals:
            raise ArgumentError("nothing was collected: there was no batch.")
        kinds = list(dict.fromkeys(kind for kind, _ in self.totals))
        kinds.sort(key=lambda kind: KINDS.index(kind) if kind in KINDS else len(KINDS))
        ordered = sorted(self.totals.items(), key=lambda entry: (kinds.index(entry[0][0]), entry[0][1]))
        varied = most_varied(self.totals)
        heads = [
            _head_row(kind, layer, head, total, None if alphas is None else alphas.get((kind, layer)))
            for (kind, layer), total in ordered
            for head in range(total.heads)
        ]
        return HeadTable(
            heads=tuple(find_roles(row) for row in heads),
            layers=tuple(_layer_row(kind, layer, total) for (kind, layer), total in ordered),
            sentences=self.sentences,
            source_tokens=self.source_tokens,
            target_tokens=self.target_tokens,
            normalizers=dict(normalizers or {}),
            varied=varied,
            examples=self.keeper.chosen(varied),
        )


def collect(
    model: Seq2Seq,
    batches: Iterable[Batch],
    *,
    subwords: SubwordTokenizer | None = None,
    languages: tuple[str, str] | None = None,
    tokenized: bool = False,
    examples: int = 0,
    seed: int = 1,
    progress: Callable[[int], None] | None = None,
) -> HeadTable:
    """Measure every head of a translation model, teacher-forced on `batches`.

    Args:
        subwords: the vocabulary; without it, what needs words (merging, interrogation) is left out.
        languages: source and target, such as ("en", "de"), for the interrogative words.
        tokenized: punctuation is parted from words by spaces, so a lone hyphen joins its neighbours.
        examples: how many sentences to keep for looking at.
        progress: called after every batch with the number of sentences so far.
    """
    markers = None
    if subwords is not None:
        source_language, target_language = languages or ("", "")
        source_marker = WordMarker(subwords, source_language, tokenized=tokenized)
        markers = source_marker, WordMarker(subwords, target_language, tokenized=tokenized)
    collector = Collector(examples=examples, seed=seed)
    device = model.source_embedding.device
    for batch in batches:
        _one_batch(model, batch.to(device), batch, collector, markers)
        if progress is not None:
            progress(collector.sentences)
    alphas = {
        (kind, layer): values[layer].double().cpu().numpy()
        for kind, values in model.alphas().items()
        for layer in range(len(values))
    }
    return collector.table(alphas, {kind: module.normalizer for kind, _, module in model.attention_layers()})


def _one_batch(
    model: Seq2Seq, on_device: Batch, batch: Batch, collector: Collector, markers: tuple[WordMarker, WordMarker] | None
) -> None:
    lengths = batch.source_lengths.cpu().numpy(), batch.target_lengths.cpu().numpy()  # the decoder reads BOS, not EOS: as many
    ids = np.asarray(batch.examples, np.int64)
    sides = [
        [ids[:length] for ids, length in zip(side.tolist(), own.tolist(), strict=True)]
        for side, own in zip((batch.source, batch.target), lengths, strict=True)
    ]
    marks: dict[str, Marks] = {}
    if markers is not None:
        marks["encoder"] = markers[0].marks(sides[0], batch.source.shape[1])
        marks["decoder"] = markers[1].marks(sides[1], batch.target.shape[1] - 1)

    def watch(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        query_lengths, key_lengths = lengths[0 if kind == "encoder" else 1], lengths[1 if kind == "decoder" else 0]
        collector.add(layer_rows(kind, layer, trace, query_lengths, key_lengths), ids, marks.get(kind))

    run_with_trace(model, on_device, watch)
    if markers is not None:
        _read_as_statements(model, on_device, collector, markers[0], marks["encoder"])
    sentences = {
        number: (tuple(source[:-1]), tuple(target[1:])) for number, source, target in zip(batch.examples, *sides, strict=True)
    }
    asking = marks["encoder"].questions if marks else np.zeros(len(ids), np.bool_)
    collector.end_batch(sentences, ids[asking].tolist())


def _read_as_statements(model: Seq2Seq, batch: Batch, collector: Collector, marker: WordMarker, marks: Marks) -> None:
    """The encoder reads the questions of a batch once more, with a full stop in place of each question mark."""
    places = np.maximum(marks.mark, 0)
    ends = np.array([marker.statement_end(int(token)) for token in batch.source[range(len(places)), places]], dtype=np.int64)
    chosen = np.flatnonzero((marks.mark >= 0) & marks.asking.any(1) & (ends >= 0))
    if not len(chosen):
        return
    source = batch.source[chosen].clone()
    source[range(len(chosen)), places[chosen]] = torch.from_numpy(ends[chosen]).to(source)
    examples = tuple(batch.examples[i] for i in chosen.tolist())
    statements = Batch(source, batch.target[chosen], batch.source_lengths[chosen], batch.target_lengths[chosen], examples)
    lengths = statements.source_lengths.cpu().numpy()

    def watch(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        collector.add_contrast(layer_rows(kind, layer, trace, lengths, lengths), marks.of(chosen))

    run_with_trace(model, statements, watch, kinds=("encoder",))


def run_with_trace(
    model: Seq2Seq,
    batch: Batch,
    watch: Callable[[str, int, MultiheadAttention, AttentionTrace], None],
    *,
    kinds: Sequence[str] = (),
) -> None:
    """Read a batch teacher-forced, without dropout; `watch` sees every attention layer as it computes, or those of `kinds`."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), attention_hooks(model, watch, kinds=kinds):
            mask = batch.source_mask
            memory = model.encode(batch.source, mask)
            if set(kinds) != {"encoder"}:
                model.decode(batch.target[:, :-1], memory, mask)
    finally:
        model.train(training)


def layer_rows(kind: str, layer: int, trace: AttentionTrace, query_lengths: Ints, key_lengths: Ints) -> LayerRows:
    """What a layer handed over, as the measures take it."""
    _, heads, queries, _ = trace.query.shape
    crow, col, weight = (part.cpu().numpy() for part in trace.support)
    keys = trace.key.shape[2]
    return LayerRows.from_support(
        kind, layer, (crow, col, weight), heads, queries, keys, query_lengths, key_lengths, causal=trace.causal
    )


def _head_row(kind: str, layer: int, head: int, total: LayerTotals, alphas: Sequence[float] | Floats | None) -> HeadRow:
    rows = max(total.rows, 1)
    positional = {offset: float(medians.medians()[head]) for offset, medians in total.positional.items()}
    spread, _ = total.variation.widest()
    return HeadRow(
        kind=kind,
        layer=layer,
        head=head,
        alpha=None if alphas is None else float(alphas[head]),
        density=float(total.density[head]) / rows,
        density_histogram=tuple(total.histogram[head].tolist()),
        support=float(total.support[head]) / rows,
        entropy=_mean(total.entropy[head], total.live_rows[head]),
        effective_keys=_mean(total.effective_keys[head], total.live_rows[head]),
        null_rate=float(total.null[head]) / rows,
        normalized_entropy=_mean(total.normalized_entropy[head], total.even_rows[head]),
        positional={str(offset): value for offset, value in positional.items() if value == value},
        first_key=_known(float(total.first_key.medians()[head])),
        last_key=_known(float(total.last_key.medians()[head])),
        merging=_mean(total.merging[head], total.clusters),
        merging_pieces=_mean(total.merging_pieces[head], total.split_words),
        merging_with_self=_mean(total.merging_with_self[head], total.split_words),
        interrogation=_mean(total.interrogation[head], total.questions),
        interrogation_contrast=_mean(total.contrast[head], total.statements),
        density_spread=float(spread[head]),
    )


def _layer_row(kind: str, layer: int, total: LayerTotals) -> LayerRow:
    rows = max(total.rows, 1)
    by_keys, by_heads = (_mean(*both) for both in total.diversity)
    live_by_keys, live_by_heads = (_mean(*both) for both in total.live_diversity)
    return LayerRow(
        kind=kind,
        layer=layer,
        js_diversity_keys=by_keys,
        js_diversity_heads=by_heads,
        js_diversity_live_keys=live_by_keys,
        js_diversity_live_heads=live_by_heads,
        union_density=total.union / rows,
        density=float(total.density.mean()) / rows,
        null_rate=float(total.null.mean()) / rows,
    )


def _mean(total: float, count: float) -> float | None:
    return float(total) / float(count) if count else None


def _known(value: float) -> float | None:
    return value if value == value else None  # NaN is not equal to itself
