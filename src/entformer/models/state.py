"""What decoding remembers between two tokens: caches, kept in step as beams are reordered, cropped, or a call is refused."""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.nn.cache import KeyValueCache, check_batch_index, unchanged_on_error
from entformer.nn.window import WindowedCache

__all__ = ["DecoderState", "LMState"]


class LMState:
    """What a decoder-only model remembers: per layer the keys and values so far, and which of the tokens fed were padding."""

    def __init__(self, caches: list[KeyValueCache] | list[WindowedCache], mask: Tensor | None = None) -> None:
        self.caches = caches
        self.mask = mask  # (B, length) True = a token; None: all are

    @property
    def length(self) -> int:
        """How many tokens each row has been fed, padding included."""
        return self.caches[0].length

    @property
    def batch(self) -> int | None:
        """How many rows; None before the first token."""
        return self.caches[0].batch

    @property
    def bytes(self) -> int:
        """Memory of all caches."""
        return sum(cache.bytes for cache in self.caches)

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was. Rows may be repeated or dropped: the batch takes the size of index."""
        if self.batch is None:
            raise ArgumentError("the state is empty; feed a token before rows are reordered.")
        check_batch_index(index, self.batch)
        for cache in self.caches:
            cache.reorder(index)
        self.mask = None if self.mask is None else self.mask.index_select(0, index)

    def crop(self, length: int) -> None:
        """Forget all tokens after the first `length`, padding included. Heads with a window can go back a little only."""
        with unchanged_on_error(self):  # layers were fed the same, but one may hold less of it than another
            for cache in self.caches:
                cache.crop(length)
        self.mask = None if self.mask is None or length == 0 else self.mask[:, :length]

    def mark(self) -> tuple[list[Any], Tensor | None]:
        """What `restore` needs to make the state what it is now, whatever is fed to it later."""
        return [cache.mark() for cache in self.caches], self.mask

    def restore(self, mark: tuple[list[Any], Tensor | None]) -> None:
        """Make the state what it was when `mark` was taken."""
        marks, self.mask = mark
        caches: list[Any] = [*self.caches]  # of either class
        for cache, its in zip(caches, marks, strict=True):
            cache.restore(its)


class DecoderState:
    """Rows of a decoding batch: per layer the keys and values of the memory and of the tokens so far.

    Args:
        memories: one cache per decoder layer, made by `MultiheadAttention.memory_cache`.
        ignored: (B, S), True = padding of the source; None if there is none.
    """

    def __init__(self, memories: list[KeyValueCache], ignored: Tensor | None) -> None:
        self.memories = memories
        self.caches = [KeyValueCache() for _ in memories]
        self.ignored = ignored
        keys, _ = memories[0].views()
        self._source = torch.arange(keys.shape[0], device=keys.device)  # (B,): which source each row translates

    @property
    def batch(self) -> int:
        """How many rows."""
        return self._source.shape[0]

    @property
    def length(self) -> int:
        """How many tokens each row has been fed."""
        return self.caches[0].length

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was. Rows may be repeated or dropped: the batch takes the size of index.

        Beams that change places within one source leave the memories, the larger part, where they are.
        """
        check_batch_index(index, self.batch)
        source = self._source.index_select(0, index)
        if not torch.equal(source, self._source):
            for memory in self.memories:
                memory.reorder(index)
            self.ignored = None if self.ignored is None else self.ignored.index_select(0, index)
            self._source = source
        for cache in self.caches:
            if cache.length:
                cache.reorder(index)

    select = reorder

    def mark(self) -> list[Any]:
        """What `restore` needs to make the state what it is now, whatever is fed to it later."""
        return [cache.mark() for cache in self.caches]

    def restore(self, mark: list[Any]) -> None:
        """Make the state what it was when `mark` was taken."""
        for cache, its in zip(self.caches, mark, strict=True):
            cache.restore(its)
