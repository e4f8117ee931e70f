"""Collects all measures of all heads over a data set in one pass and fixed memory.

    table = entformer.analysis.collect(run.model, TokenBatches(store).epoch(0), subwords=run.subwords, languages=("en", "de"))

A hook passes on the exact support of each layer (compressed rows, one batch at a time); statistics are updated at once and the
support is dropped. `Collector` does the same with weights of any model.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from entformer.analysis.collector import Collector
from entformer.analysis.rows import Ints, LayerRows
from entformer.analysis.table import HeadTable
from entformer.analysis.words import Marks, WordMarker
from entformer.data.batch import Batch
from entformer.decoding.attention_record import attention_hooks
from entformer.models.lm import CausalLM
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import SubwordTokenizer


def collect(
    model: Any,
    batches: Iterable[Any],
    *,
    subwords: SubwordTokenizer | None = None,
    languages: tuple[str, str] | None = None,
    tokenized: bool = False,
    examples: int = 0,
    seed: int = 1,
    progress: Callable[[int], None] | None = None,
    tokenizer: Any = None,
    length: int = 2048,
) -> HeadTable:
    """Measures every head of a translation model, teacher-forced on `batches`, or of a decoder or encoder on texts.

    Args:
        model: A `Seq2Seq`, a `CausalLM`, or a model of transformers, converted by `entformer.hf.sparsify` or not.
        batches: The text: batches of ids for a `Seq2Seq`; ids of a text each for a `CausalLM`; for a Hugging Face model, texts
            as `entformer.hf.calibrate` takes them.
        tokenizer: Of a Hugging Face model; by default the one saved with it.
        length: The most tokens of a text for a Hugging Face model.
        subwords: The tokenizer; without it, what needs words (merging, interrogation) is not measured.
        languages: Source and target, such as ("en", "de"), for the interrogative words.
        tokenized: Punctuation is separated from words by spaces, so a lone hyphen joins its neighbors.
        examples: How many sentences to sample as examples.
        seed: Of the sample.
        progress: Called after every batch with the number of sentences so far.

    Returns:
        The measures of all heads and layers.
    """
    collector = Collector(examples=examples, seed=seed)
    if isinstance(model, CausalLM):
        from entformer.analysis.language_model import LMTracer, lm_inputs
        from entformer.analysis.traces import collect_texts

        return collect_texts(LMTracer(model), lm_inputs(model, batches), collector, progress)
    if not isinstance(model, Seq2Seq):
        from entformer.analysis.hugging_face import collect_hf

        return collect_hf(model, batches, collector, tokenizer=tokenizer, length=length, progress=progress)
    markers = None
    if subwords is not None:
        source_language, target_language = languages or ("", "")
        source_marker = WordMarker(subwords, source_language, tokenized=tokenized)
        markers = source_marker, WordMarker(subwords, target_language, tokenized=tokenized)
    device = model.source_embedding.device
    for batch in batches:
        _one_batch(model, batch.to(device), batch, collector, markers)
        if progress is not None:
            progress(collector.sentences)
    alphas = {
        (attn_type, layer): values[layer].double().cpu().numpy()
        for attn_type, values in model.alphas().items()
        for layer in range(len(values))
    }
    return collector.table(alphas, {attn_type: module.normalizer for attn_type, _, module in model.attention_layers()})


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

    def hook(attn_type: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        collector.add(layer_rows(attn_type, layer, trace, *lengths), ids, marks.get(attn_type))

    run_with_trace(model, on_device, hook)
    if markers is not None:
        _read_as_statements(model, on_device, collector, markers[0], marks["encoder"])
    sentences = {
        number: (tuple(source[:-1]), tuple(target[1:])) for number, source, target in zip(batch.examples, *sides, strict=True)
    }
    asking = marks["encoder"].questions if marks else np.zeros(len(ids), np.bool_)
    collector.end_batch(sentences, ids[asking].tolist())


def _read_as_statements(model: Seq2Seq, batch: Batch, collector: Collector, marker: WordMarker, marks: Marks) -> None:
    """Runs the encoder on the questions of a batch again, with a full stop in place of each question mark."""
    index = np.maximum(marks.mark, 0)
    ends = np.array([marker.statement_end(int(token)) for token in batch.source[range(len(index)), index]], dtype=np.int64)
    chosen = np.flatnonzero((marks.mark >= 0) & marks.asking.any(1) & (ends >= 0))
    if not len(chosen):
        return
    source = batch.source[chosen].clone()
    source[range(len(chosen)), index[chosen]] = torch.from_numpy(ends[chosen]).to(source)
    examples = tuple(batch.examples[i] for i in chosen.tolist())
    statements = Batch(source, batch.target[chosen], batch.source_lengths[chosen], batch.target_lengths[chosen], examples)
    lengths = statements.source_lengths.cpu().numpy()

    def hook(attn_type: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        collector.add_contrast(layer_rows(attn_type, layer, trace, lengths, lengths), marks.select(chosen))

    run_with_trace(model, statements, hook, attn_types=("encoder",))


def run_with_trace(
    model: Seq2Seq,
    batch: Batch,
    hook: Callable[[str, int, MultiheadAttention, AttentionTrace], None],
    *,
    attn_types: Sequence[str] = (),
) -> None:
    """Runs a batch teacher-forced, without dropout; calls `hook` for every attention layer, or for those of `attn_types`."""
    with attention_hooks(model, hook, kinds=attn_types):
        mask = batch.source_mask
        memory = model.encode(batch.source, mask)
        if set(attn_types) != {"encoder"}:
            model.decode(batch.target[:, :-1], memory, mask)


def layer_rows(attn_type: str, layer: int, trace: AttentionTrace, source_lengths: Ints, target_lengths: Ints) -> LayerRows:
    """Returns the weights of a layer in the form that measures take. Lengths (B,) are those of what the model reads."""
    queries = source_lengths if attn_type == "encoder" else target_lengths
    keys = target_lengths if attn_type == "decoder" else source_lengths
    crow, col, weight = (part.cpu().numpy() for part in trace.support)
    sizes = trace.query.shape[1], trace.query.shape[2], trace.key.shape[2]
    return LayerRows.from_support(attn_type, layer, (crow, col, weight), *sizes, queries, keys, causal=trace.causal)
