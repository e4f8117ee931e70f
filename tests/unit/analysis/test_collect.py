"""Collecting in one pass: the same numbers as dense weights give, for every normalizer, whatever the batches."""

import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from entformer.analysis.collect import collect, layer_rows, run_with_trace
from entformer.analysis.collector import Collector
from entformer.analysis.density import density, entropy
from entformer.analysis.positional import positional_confidence
from entformer.analysis.rows import LayerRows
from entformer.data.batch import Batch
from entformer.data.batching import TokenBatches, collate
from entformer.data.store import TokenStore
from entformer.decoding.attention_record import record_attention
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import SubwordTokenizer

from .conftest import make_model

NORMALIZERS = ("softmax", "entmax15", "sparsemax", "entmax", "rela", "ssmax", "asentmax")


def batches(store: TokenStore, tokens: int = 4096) -> Iterator[Batch]:
    return TokenBatches(store, tokens=tokens, shuffle=False).epoch(0)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_numbers_are_those_of_single_sentences(normalizer: str, subwords: SubwordTokenizer, store: TokenStore) -> None:
    model = make_model(subwords.size, normalizer)
    table = collect(model, batches(store), subwords=subwords, languages=("en", "de"))
    records = [record_attention(model, *map(np.ndarray.tolist, pair)) for pair in store]
    for row in table:
        densities, entropies, previous, null, rows_seen = [], [], [], 0, 0
        for record in records:
            dense = record.head(row.attn_type, row.layer, row.head).dense()[None, None].astype(np.float64)
            rows = LayerRows.from_dense(row.attn_type, row.layer, dense, causal=row.attn_type == "decoder")
            densities += density(rows).ravel().tolist()
            entropies += entropy(rows).ravel().tolist()
            null += int((dense.sum(-1) == 0).sum())
            rows_seen += dense.shape[2]
            previous.append(positional_confidence(rows, -1).item())
        assert row.density == pytest.approx(np.mean(densities))
        assert row.null_rate == pytest.approx(null / rows_seen)
        assert sum(row.density_histogram) == len(records)  # a sentence counts once, however long it is
        if row.entropy is not None:
            assert row.entropy == pytest.approx(np.nanmean(entropies), rel=1e-4, abs=1e-6)
        if row.attn_type != "cross":
            assert row.positional["-1"] == pytest.approx(np.median(previous), abs=1e-3)
    assert table.sentences == len(store)
    assert table.source_tokens == sum(len(pair[0]) for pair in store)
    assert (normalizer == "rela") == any(row.null_rate > 0 for row in table)
    assert (normalizer == "rela") == all(row.alpha is None for row in table)


def test_batches_do_not_matter(model: Seq2Seq, store: TokenStore, subwords: SubwordTokenizer) -> None:
    one, many = (collect(model, batches(store, tokens), subwords=subwords, languages=("en", "de")) for tokens in (4096, 12))
    for a, b in zip(one.to_dict()["heads"], many.to_dict()["heads"], strict=True):
        for name, value in a.items():
            if isinstance(value, float):
                assert b[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for first, second in zip(one.layers, many.layers, strict=True):
        assert second.js_diversity_keys == pytest.approx(first.js_diversity_keys, rel=1e-4)
        assert second.js_diversity_heads == pytest.approx(first.js_diversity_heads, rel=1e-4)
        assert second.union_density == pytest.approx(first.union_density)


def test_heads_come_in_order_with_their_alphas(model: Seq2Seq, store: TokenStore) -> None:
    table = collect(model, batches(store))
    keys = [row.key for row in table]
    assert keys == [f"{kind}.{layer}.{head}" for kind in ("encoder", "decoder", "cross") for layer in (0, 1) for head in (0, 1)]
    assert table.head("cross", 1, 0).alpha == pytest.approx(float(model.alphas()["cross"][1, 0]))
    assert table.head("encoder", 0, 0).merging is None  # no vocabulary, no words
    assert table.head("decoder", 0, 0).positional.keys() == {"-1", "0"}
    assert table.head("cross", 0, 0).positional == {}
    with pytest.raises(ArgumentError, match="no encoder head"):
        table.head("encoder", 7, 0)


def test_the_model_is_left_as_it_was(model: Seq2Seq, store: TokenStore) -> None:
    model.train()
    collect(model, batches(store))
    assert model.training
    assert all(module.hook is None for _, _, module in model.attention_layers())


def test_examples_have_reasons_and_come_once(model: Seq2Seq, store: TokenStore, subwords: SubwordTokenizer) -> None:
    table = collect(model, batches(store), subwords=subwords, languages=("en", "de"), examples=5)
    assert len({example.id for example in table.examples}) == len(table.examples) == 5
    assert {"question", "longest"} <= {example.why for example in table.examples}
    for example in table.examples:
        assert [list(example.source), list(example.target)] == [side.tolist() for side in store[example.id]]


def test_varied_sparsity_is_found(store: TokenStore) -> None:
    """Three sentences of equal length: one sparse, one half dense, one dense; the pair is the first and the last."""
    weights = np.zeros((3, 1, 8, 8))
    weights[0, 0, :, 0] = 1.0
    weights[1, 0, :, :4] = 0.25
    weights[2] = 0.125
    collector = Collector(examples=2)
    collector.add(LayerRows.from_dense("encoder", 0, weights), [7, 8, 9])
    (pair,) = collector.table().varied
    assert (pair.sparse, pair.dense, pair.densities) == (7, 9, (0.125, 1.0))


def test_weights_of_any_model_are_taken() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(6), (2, 3, 6))
    collector = Collector()
    for layer in range(2):
        collector.add(LayerRows.from_dense("self", layer, weights))
    table = collector.table({("self", 0): [1.0, 1.0, 1.0]}, {"self": "softmax"})
    assert len(table) == 6
    assert table.head("self", 0, 0).density == 1.0
    assert table.head("self", 1, 0).alpha is None
    with pytest.raises(ArgumentError, match="had 3 heads"):
        collector.add(LayerRows.from_dense("self", 0, weights[:, :2]))
    with pytest.raises(ArgumentError, match="no batch"):
        Collector().table()


def test_memory_does_not_grow_with_the_data(model: Seq2Seq, store: TokenStore, subwords: SubwordTokenizer) -> None:
    """Peak memory of numpy and Python objects over 8 and 32 times the same sentences."""

    def peak(times: int) -> int:
        def again() -> Iterator[Batch]:
            for start in range(0, times * len(store), len(store)):
                if start % (8 * len(store)) == 0:
                    gc.collect()  # autograd's cycles would pass for growth
                batch = collate(store, np.arange(len(store)))
                ids = tuple(range(start, start + len(store)))
                yield Batch(batch.source, batch.target, batch.source_lengths, batch.target_lengths, ids)

        tracemalloc.start()
        collect(model, again(), subwords=subwords, languages=("en", "de"), examples=4)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)  # what is made once
    assert peak(32) < 1.15 * peak(8)


def test_only_the_kinds_asked_for_are_watched(model: Seq2Seq, store: TokenStore) -> None:
    seen = []

    def watch(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        seen.append((kind, layer))
        rows = layer_rows(kind, layer, trace, batch.source_lengths.numpy(), batch.target_lengths.numpy())
        assert rows.mass[rows.real[:, None].repeat(rows.heads, 1)] == pytest.approx(1.0, abs=1e-5)

    batch = next(batches(store))
    run_with_trace(model, batch, watch, attn_types=("cross",))
    assert seen == [("cross", 0), ("cross", 1)]


def test_attention_of_a_half_precision_model(subwords: SubwordTokenizer, store: TokenStore) -> None:
    table = collect(make_model(subwords.size).to(torch.bfloat16), batches(store))
    assert all(0 < row.density <= 1 for row in table)
