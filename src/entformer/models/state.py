"""State of decoding between two steps: the caches of all layers, reordered, cropped and restored together."""

from typing import Any

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.nn.cache import KeyValueCache, WindowedCache, check_batch_index, unchanged_on_error

__all__ = ["DecoderState", "LMState"]


class LMState:
    """State of a decoder-only model: per layer the keys and values so far, and which tokens were padding."""

    def __init__(self, caches: list[KeyValueCache] | list[WindowedCache], mask: Tensor | None = None) -> None:
        self.caches = caches
        self.mask = mask  # (B, length) True = a token; None: all are

    @property
    def length(self) -> int:
        """Number of tokens of each row so far, padding included."""
        return self.caches[0].length

    @property
    def batch(self) -> int | None:
        """Number of rows; None before the first token."""
        return self.caches[0].batch

    @property
    def bytes(self) -> int:
        """Memory of all caches."""
        return sum(cache.bytes for cache in self.caches)

    def reorder(self, index: Tensor) -> None:
        """Replaces row b by row index[b]. Rows may be repeated or dropped: the batch takes the size of index."""
        if self.batch is None:
            raise ArgumentError("the state is empty; there is nothing to reorder.")
        check_batch_index(index, self.batch)
        for cache in self.caches:
            cache.reorder(index)
        self.mask = None if self.mask is None else self.mask.index_select(0, index)

    def crop(self, length: int) -> None:
        """Drops all tokens after the first `length`, padding included. Heads with a window can drop only the last few."""
        with unchanged_on_error(self):  # layers may hold different numbers of keys
            for cache in self.caches:
                cache.crop(length)
        self.mask = None if self.mask is None or length == 0 else self.mask[:, :length]

    def mark(self) -> tuple[list[Any], Tensor | None]:
        """Returns what `restore` needs to undo all later steps."""
        return [cache.mark() for cache in self.caches], self.mask

    def restore(self, mark: tuple[list[Any], Tensor | None]) -> None:
        """Restores the state of `mark`."""
        marks, self.mask = mark
        caches: list[Any] = [*self.caches]  # of either class
        for cache, saved in zip(caches, marks, strict=True):
            cache.restore(saved)


class DecoderState:
    """State of an encoder-decoder model: per layer the keys and values of the memory and of the tokens so far.

    Args:
        memories: one cache per decoder layer, made by `MultiheadAttention.memory_cache`.
        source_mask: (B, S), True = a token of the source; None if there is no padding.
    """

    def __init__(self, memories: list[KeyValueCache], source_mask: Tensor | None) -> None:
        self.memories = memories
        self.caches = [KeyValueCache() for _ in memories]
        self.source_mask = source_mask
        keys, _ = memories[0].views()
        self._source = torch.arange(keys.shape[0], device=keys.device)  # (B,): which source each row translates

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._source.shape[0]

    @property
    def length(self) -> int:
        """Number of tokens of each row so far."""
        return self.caches[0].length

    def reorder(self, index: Tensor) -> None:
        """Replaces row b by row index[b]. Rows may be repeated or dropped: the batch takes the size of index.

        Memories, the larger part, are not copied if rows are exchanged within one source only.
        """
        check_batch_index(index, self.batch)
        source = self._source.index_select(0, index)
        if not torch.equal(source, self._source):
            for memory in self.memories:
                memory.reorder(index)
            self.source_mask = None if self.source_mask is None else self.source_mask.index_select(0, index)
            self._source = source
        for cache in self.caches:
            if cache.length:
                cache.reorder(index)

    def mark(self) -> list[Any]:
        """Returns what `restore` needs to undo all later steps."""
        return [cache.mark() for cache in self.caches]

    def restore(self, mark: list[Any]) -> None:
        """Restores the state of `mark`."""
        for cache, saved in zip(self.caches, mark, strict=True):
            cache.restore(saved)
