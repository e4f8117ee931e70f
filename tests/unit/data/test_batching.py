"""Batches: every pair once an epoch, within the bound, the same for equal (seed, epoch), little padding, even shares."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entformer.data.batch import Batch
from entformer.data.batching import TokenBatches
from entformer.data.corpus import ParallelCorpus, ParallelText
from entformer.data.filters import PreprocessConfig
from entformer.data.prep import prepare
from entformer.data.store import TokenStore
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import BOS, EOS, PAD


def store_of(lengths: list[tuple[int, int]]) -> TokenStore:
    return TokenStore.from_examples([([10 + i] * source, [20 + i] * target) for i, (source, target) in enumerate(lengths)])


def natural(count: int, seed: int = 0) -> TokenStore:
    """Lengths as Multi30k has them: about 14 subwords, both sides alike."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(8, 1.8, count), 2, 60).astype(int)
    target = np.clip(source * rng.normal(1.0, 0.15, count), 2, 60).astype(int)
    return store_of(list(zip(source.tolist(), target.tolist(), strict=True)))


def same(first: Batch, second: Batch) -> bool:
    return (
        first.examples == second.examples
        and torch.equal(first.source, second.source)
        and torch.equal(first.target, second.target)
    )


def test_a_batch_is_what_it_says() -> None:
    store = TokenStore.from_examples([([5, 6, 7], [8]), ([], [9, 10])])
    (batch,) = TokenBatches(store, tokens=100, shuffle=False).epoch(0)
    order = list(batch.examples)
    rows = {0: ([5, 6, 7, EOS], [BOS, 8, EOS, PAD]), 1: ([EOS, PAD, PAD, PAD], [BOS, 9, 10, EOS])}
    assert batch.source.tolist() == [rows[i][0] for i in order]
    assert batch.target.tolist() == [rows[i][1] for i in order]
    assert batch.source_lengths.tolist() == [{0: 4, 1: 1}[i] for i in order]
    assert batch.target_lengths.tolist() == [{0: 2, 1: 3}[i] for i in order]
    assert batch.num_labels == 5
    assert torch.equal(batch.source_mask, batch.source != PAD)
    assert batch.source.dtype == batch.target.dtype == batch.target_lengths.dtype == torch.int64


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=80),
    st.integers(1, 200),
    st.one_of(st.none(), st.integers(1, 7)),
)
@settings(max_examples=100, deadline=None)
def test_every_pair_comes_once_and_batches_stay_within_the_bound(
    lengths: list[tuple[int, int]], tokens: int, most: int | None
) -> None:
    batches = TokenBatches(store_of(lengths), tokens=tokens, max_sentences=most)
    seen = []
    for batch in batches.epoch(3):
        rows, source = batch.source.shape
        assert rows == 1 or rows * max(source, batch.target.shape[1] - 1) <= tokens
        assert most is None or rows <= most
        for row, example in enumerate(batch.examples):
            assert int(batch.source_lengths[row]) == lengths[example][0] + 1
            assert batch.source[row].tolist() == [10 + example] * lengths[example][0] + [EOS] + [PAD] * (
                source - lengths[example][0] - 1
            )
        seen += batch.examples
    assert sorted(seen) == list(range(len(lengths)))


def test_batches_are_the_same_for_equal_seed_and_epoch_and_differ_otherwise() -> None:
    store = natural(500)
    first, again = (list(TokenBatches(store, tokens=512, seed=7).epoch(2)) for _ in range(2))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    for other in (TokenBatches(store, tokens=512, seed=8).epoch(2), TokenBatches(store, tokens=512, seed=7).epoch(3)):
        assert [batch.examples for batch in other] != [batch.examples for batch in first]


def test_start_goes_on_exactly_where_it_was() -> None:
    store = natural(500)
    whole = list(TokenBatches(store, tokens=512).epoch(1))
    for start in (0, 1, len(whole) - 1, len(whole)):
        rest = list(TokenBatches(store, tokens=512).epoch(1, start))
        assert len(rest) == len(whole) - start
        assert all(same(a, b) for a, b in zip(rest, whole[start:], strict=True))


def test_shuffled_batches_are_not_in_the_order_of_length() -> None:
    widths = [batch.source.shape[1] for batch in TokenBatches(natural(2000), tokens=512).epoch(0)]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.4
    fixed = [[batch.examples for batch in TokenBatches(natural(500), tokens=512, shuffle=False).epoch(e)] for e in (0, 1)]
    assert fixed[0] == fixed[1]


def test_little_padding_and_full_batches() -> None:
    store = natural(29_000)
    batches = TokenBatches(store, tokens=4096)
    assert batches.padding_share(0) < 0.04
    needed = int(np.maximum(store.source_lengths, store.target_lengths).sum() + len(store)) / 4096
    assert batches.batches_in(0) < 1.3 * needed


DATA = Path(os.environ.get("ENTFORMER_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "multi30k" / "tok"


@pytest.mark.skipif(not DATA.is_dir(), reason="Multi30k is not here; ENTFORMER_DATA names the folder of data")
def test_less_than_five_percent_padding_on_multi30k(tmp_path: Path) -> None:
    train = ParallelText(*(DATA / f"train.lc.norm.tok.{language}.gz" for language in ("en", "de")))
    report = prepare(ParallelCorpus("en", "de", (train,)), tmp_path / "out", PreprocessConfig(vocab_size=10000))
    assert report.kept == 29000
    assert report.padding_share < 0.05


def test_a_sentence_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    batches = TokenBatches(store_of([(500, 3), (4, 5), (3, 600), (5, 5)]), tokens=64)
    shapes = sorted((len(batch.examples), max(batch.source.shape[1], batch.target.shape[1] - 1)) for batch in batches.epoch(0))
    assert shapes == [(1, 501), (1, 601), (2, 6)]
    assert TokenBatches(store_of([(30, 30)] * 5), tokens=1).batches_in(0) == 5  # never an empty iterator


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_every_process_gets_equally_many_batches_and_every_pair_goes_to_one(world_size: int) -> None:
    store = natural(203)
    shares = [TokenBatches(store, tokens=512, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({share.batches_in(5) for share in shares}) == 1
    given = [example for share in shares for batch in share.epoch(5) for example in batch.examples]
    assert sorted(given) == list(range(203))
    assert [len(list(share.epoch(5))) for share in shares] == [shares[0].batches_in(5)] * world_size


def test_wrong_arguments_are_named() -> None:
    store = store_of([(2, 2)] * 3)
    for arguments, sentence in [
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"max_sentences": 0}, "max_sentences must be at least 1"),
        ({"rank": 2, "world_size": 2}, "rank must be between 0 and 1, got 2"),
    ]:
        with pytest.raises(ArgumentError, match=sentence):
            TokenBatches(store, **arguments)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has 3 pairs, too few for 4 batches in a step"):
        TokenBatches(store, world_size=4)
    with pytest.raises(DataError, match="is empty; training needs at least one pair"):
        TokenBatches(TokenStore.from_examples([]))
    with pytest.raises(ArgumentError, match="start must be at least 0, got -1"):
        next(TokenBatches(store).epoch(0, -1))


def test_a_batch_moves_to_a_device() -> None:
    (batch,) = TokenBatches(store_of([(2, 3)])).epoch(0)
    assert same(batch.to("cpu"), batch)
