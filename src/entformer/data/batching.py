"""Batches of about equally many tokens, deterministic in (seed, epoch).

Pairs of similar lengths are grouped (`buckets.py`) into batches of at most `tokens` padded tokens, and the batches
are shuffled. Pairs of equal lengths are permuted in each epoch.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.data.batch import Batch
from entformer.data.buckets import group
from entformer.data.store import Side, TokenStore
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import BOS, EOS, PAD

Indices = NDArray[np.int64]


class TokenBatches:
    """Splits a store into batches.

    Args:
        store: The token ids.
        tokens: Padded tokens of a batch at most on either side, EOS included. A longer sentence is a batch of its own.
        seed: Seed of the shuffling.
        shuffle: Whether to shuffle.
        max_sentences: Sentences of a batch at most.
        rank, world_size: This process and the number of processes; each gets the same number of batches.
        per_step: Batches of all processes in one step, by default one of each; an epoch has a multiple of them.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        tokens: int = 8192,
        seed: int = 1,
        shuffle: bool = True,
        max_sentences: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        per_step: int | None = None,
    ) -> None:
        if tokens < 1:
            raise ArgumentError(f"tokens must be at least 1, got {tokens}.")
        if max_sentences is not None and max_sentences < 1:
            raise ArgumentError(f"max_sentences must be at least 1, got {max_sentences}.")
        if not 0 <= rank < world_size:
            raise ArgumentError(f"rank must be between 0 and {world_size - 1}, got {rank}.")
        if len(store) == 0:
            raise DataError(f"{store.name} is empty; training needs at least one pair.")
        per_step = world_size if per_step is None else per_step
        if len(store) < per_step:
            raise DataError(f"{store.name} has {len(store)} pairs, too few for {per_step} batches in a step.")
        self.store, self.tokens, self.seed, self.shuffle = store, tokens, seed, shuffle
        self.max_sentences, self.rank, self.world_size, self.per_step = max_sentences, rank, world_size, per_step
        self._source = store.source_lengths + 1  # (N,) with EOS
        self._target = store.target_lengths + 1
        self._planned: tuple[int, list[Indices]] | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch for this process, skipping the first `start`."""
        if start < 0:
            raise ArgumentError(f"start must be at least 0, got {start}.")
        for indices in self._plan(epoch)[self.rank :: self.world_size][start:]:
            yield collate(self.store, indices)

    def batches_in(self, epoch: int) -> int:
        """Returns the number of batches of an epoch for this process; the same for all processes."""
        return len(self._plan(epoch)) // self.world_size

    def padding_share(self, epoch: int = 0) -> float:
        """Returns the fraction of padding in all batches, both sides together."""
        padded = real = 0
        for indices in self._plan(epoch):
            for lengths in (self._source[indices], self._target[indices]):
                padded += len(indices) * int(lengths.max())
                real += int(lengths.sum())
        return 1 - real / padded

    def _plan(self, epoch: int) -> list[Indices]:
        """Returns the examples of every batch of the epoch for all processes, cached for one epoch."""
        if self._planned is None or self._planned[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
            start = rng.permutation(len(self.store)) if rng is not None else np.arange(len(self.store))
            lengths = self._source[start], self._target[start]
            batches = [start[members] for members in group(*lengths, self.tokens, self.max_sentences)]
            batches = _even(batches, self.per_step)
            if rng is not None:
                batches = [batches[i] for i in rng.permutation(len(batches))]
            self._planned = (epoch, batches)
        return self._planned[1]


def _even(batches: list[Indices], divisor: int) -> list[Indices]:
    """Splits the batches with most sentences until their number is a multiple of `divisor`."""
    batches = list(batches)
    while len(batches) % divisor:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = len(batches[largest]) // 2
        batches[largest : largest + 1] = [batches[largest][:half], batches[largest][half:]]
    return batches


def collate(store: TokenStore, indices: Indices) -> Batch:
    """Returns the examples at `indices` as one padded batch."""
    source, source_lengths = _padded(store.source, indices, begin=None)
    target, target_lengths = _padded(store.target, indices, begin=BOS)
    return Batch(source, target, source_lengths, target_lengths, tuple(indices.tolist()))


def _padded(side: Side, indices: Indices, begin: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns sentences with EOS and, if given, `begin` in front: (B, L) int64, and their lengths without `begin`."""
    starts = side.index[indices]  # (B,)
    lengths = side.index[indices + 1] - starts
    shift = 0 if begin is None else 1
    padded = np.full((len(indices), int(lengths.max()) + 1 + shift), PAD, dtype=np.int64)
    if begin is not None:
        padded[:, 0] = begin
    # Token j of the batch comes from starts[row] + (j - tokens before the row): one gather, no loop over rows.
    before = np.cumsum(lengths) - lengths
    where = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    inside = np.arange(padded.shape[1] - shift) < lengths[:, None]  # (B, L)
    padded[:, shift:][inside] = side.ids[where]
    padded[np.arange(len(indices)), lengths + shift] = EOS
    return torch.from_numpy(padded), torch.from_numpy(lengths + 1)
