"""Batches from the thread are those of the epochs, in order, each with its place; errors arrive; the thread ends."""

import threading
from collections.abc import Iterator

import pytest

from entformer.data.batch import Batch
from entformer.data.batching import TokenBatches
from entformer.data.store import TokenStore
from entformer.training.prefetch import BatchPrefetcher


def batches() -> TokenBatches:
    return TokenBatches(TokenStore.from_examples([([i], [i]) for i in range(4, 24)]), tokens=8)


def test_stream_equals_the_epochs_and_goes_on_from_any_place() -> None:
    source = batches()
    expected = [batch.examples for epoch in (0, 1, 2) for batch in source.epoch(epoch)]
    per_epoch = source.batches_in(0)
    with BatchPrefetcher(batches(), epoch=0, position=0) as stream:
        prefetched = [stream.take() for _ in range(2 * per_epoch + 1)]
    assert [one.batch.examples for one in prefetched] == expected[: 2 * per_epoch + 1]
    assert [(one.epoch, one.position) for one in prefetched[per_epoch - 2 : per_epoch + 1]] == [
        (0, per_epoch - 1),
        (1, 0),
        (1, 1),
    ]
    for at in (3, per_epoch - 1, per_epoch):
        with BatchPrefetcher(batches(), epoch=prefetched[at].epoch, position=prefetched[at].position) as stream:
            assert stream.take().batch.examples == expected[at + 1]


def test_an_error_while_making_a_batch_reaches_the_trainer() -> None:
    class Broken(TokenBatches):
        def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
            raise OSError("the disk is gone")

    with (
        BatchPrefetcher(Broken(TokenStore.from_examples([([5], [5])]), tokens=8), epoch=0, position=0) as stream,
        pytest.raises(OSError, match="the disk is gone"),
    ):
        stream.take()


def test_the_thread_ends_with_the_block() -> None:
    with BatchPrefetcher(batches(), epoch=0, position=0) as stream:
        stream.take()
    assert not any(thread.name == "batches" for thread in threading.enumerate())
