"""What a decoder remembers between two tokens. In: projected memories. Out: caches, kept in step as beams are reordered."""

import torch
from torch import Tensor

from entformer.nn.cache import KeyValueCache

__all__ = ["DecoderState"]


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
