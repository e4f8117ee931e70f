"""Batches of about equally many tokens. In: a token store. Out: `Batch` after `Batch`, the same for equal (seed, epoch).

Pairs alike in both lengths are grouped (`buckets.py`) into batches of at most `tokens` padded tokens, and the batches are
shuffled. Pairs of equal lengths change places from epoch to epoch.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.data.batch import Batch
from entformer.data.buckets import group
from entformer.data.store import Side, TokenStore
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import BOS, EOS, PAD

Count = Literal["max", "source", "target"]
Places = NDArray[np.int64]


class TokenBatches:
    """Cuts a store into batches.

    `tokens` bounds the padded tokens of a batch, EOS counted: of its larger side with count="max", of one side with "source" or
    "target". A sentence longer than that is a batch of its own. With `world_size` processes each gets equally many batches.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        tokens: int = 8192,
        seed: int = 1,
        shuffle: bool = True,
        count: Count = "max",
        max_sentences: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if tokens < 1:
            raise ArgumentError(f"a batch of {tokens} tokens is empty; give 1 or more.")
        if max_sentences is not None and max_sentences < 1:
            raise ArgumentError(f"a batch of {max_sentences} sentences is empty; give 1 or more.")
        if count not in ("max", "source", "target"):
            raise ArgumentError(f"count is {count!r}; it is 'max', 'source' or 'target'.")
        if not 0 <= rank < world_size:
            raise ArgumentError(f"rank {rank} is not one of {world_size} processes; ranks are counted from 0.")
        if len(store) == 0:
            raise DataError(f"{store.name} is empty: there is not one pair to make a batch of.")
        if len(store) < world_size:
            raise DataError(f"{store.name} has {len(store)} pairs, too few for {world_size} processes.")
        self.store, self.tokens, self.seed, self.shuffle = store, tokens, seed, shuffle
        self.count, self.max_sentences, self.rank, self.world_size = count, max_sentences, rank, world_size
        self._source = store.source_lengths + 1  # (N,) with EOS
        self._target = store.target_lengths + 1
        self._planned: tuple[int, list[Places]] | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch for this process, without the first `start`, which cost nothing to skip."""
        if start < 0:
            raise ArgumentError(f"start is {start}; it is how many batches of the epoch are already done.")
        for places in self._plan(epoch)[self.rank :: self.world_size][start:]:
            yield collate(self.store, places)

    def batches_in(self, epoch: int) -> int:
        """How many batches an epoch has for this process; the same for all processes."""
        return len(self._plan(epoch)) // self.world_size

    def padding_share(self, epoch: int = 0) -> float:
        """The share of padding among all places of all batches, both sides together."""
        padded = real = 0
        for places in self._plan(epoch):
            for lengths in (self._source[places], self._target[places]):
                padded += len(places) * int(lengths.max())
                real += int(lengths.sum())
        return 1 - real / padded

    @property
    def oversized(self) -> int:
        """Pairs that are longer than `tokens` and so make a batch of their own."""
        return int((self._cost() > self.tokens).sum())

    def _cost(self) -> NDArray[np.int32]:
        """What a sentence adds to its batch before padding. (N,)"""
        if self.count == "max":
            return np.maximum(self._source, self._target)
        return self._source if self.count == "source" else self._target

    def _plan(self, epoch: int) -> list[Places]:
        """The examples of every batch of the epoch, for all processes. Kept until another epoch is asked for."""
        if self._planned is None or self._planned[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
            start = rng.permutation(len(self.store)) if rng is not None else np.arange(len(self.store))
            lengths = self._source[start], self._target[start], self._cost()[start]
            batches = [start[members] for members in group(*lengths, self.tokens, self.max_sentences)]
            batches = _even(batches, self.world_size)
            if rng is not None:
                batches = [batches[i] for i in rng.permutation(len(batches))]
            self._planned = (epoch, batches)
        return self._planned[1]


def _even(batches: list[Places], world_size: int) -> list[Places]:
    """As many batches as the processes can share evenly: those with most sentences are halved, none is left out."""
    batches = list(batches)
    while len(batches) % world_size:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = len(batches[largest]) // 2
        batches[largest : largest + 1] = [batches[largest][:half], batches[largest][half:]]
    return batches


def collate(store: TokenStore, places: Places) -> Batch:
    """The examples at `places` as one padded batch."""
    source, source_lengths = _padded(store.source, places, begin=None)
    target, target_lengths = _padded(store.target, places, begin=BOS)
    return Batch(source, target, source_lengths, target_lengths, tuple(places.tolist()))


def _padded(side: Side, places: Places, begin: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences with EOS behind and, if given, `begin` in front: (B, L) int64, and their lengths without `begin`."""
    starts = side.index[places]  # (B,)
    lengths = side.index[places + 1] - starts
    shift = 0 if begin is None else 1
    padded = np.full((len(places), int(lengths.max()) + 1 + shift), PAD, dtype=np.int64)
    if begin is not None:
        padded[:, 0] = begin
    # Token j of all tokens of the batch comes from starts[row] + (j - tokens before the row): one gather, no loop over rows.
    before = np.cumsum(lengths) - lengths
    where = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    inside = np.arange(padded.shape[1] - shift) < lengths[:, None]  # (B, L)
    padded[:, shift:][inside] = side.ids[where]
    padded[np.arange(len(places)), lengths + shift] = EOS
    return torch.from_numpy(padded), torch.from_numpy(lengths + 1)
