"""Keys and values of the tokens seen so far, for decoding. In: new keys and values. Out: views of all of them, (B, G, L, D).

Buffers grow by doubling, so appending L tokens one by one copies O(L) in all, not O(L^2).
"""

import torch
from torch import Tensor

from entformer.errors import ArgumentError

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """One layer's keys and values: batch B, key heads G, length L, head sizes D and E.

    It holds numbers, not gradients: decode under `torch.no_grad()` or `torch.inference_mode()`.

    Args:
        capacity: room for so many tokens from the start.
    """

    def __init__(self, capacity: int = 16) -> None:
        if capacity < 1:
            raise ArgumentError(f"capacity={capacity} must be at least 1.")
        self._capacity = capacity
        self._length = 0
        self._keys: Tensor | None = None  # (B, G, capacity, D); only the first `length` places are written
        self._values: Tensor | None = None  # (B, G, capacity, E)

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return self._length

    def __len__(self) -> int:
        return self._length

    @property
    def bytes(self) -> int:
        """Memory of the buffers, room for tokens to come included."""
        return sum(t.numel() * t.element_size() for t in (self._keys, self._values) if t is not None)

    def views(self) -> tuple[Tensor, Tensor]:
        """All keys (B, G, L, D) and values (B, G, L, E). The next `reorder` or growth leaves them behind."""
        if self._keys is None or self._values is None:
            raise ArgumentError("the cache is empty; append keys and values first.")
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add n tokens, k (B, G, n, D) and v (B, G, n, E), and give the views of all."""
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ArgumentError(f"keys {tuple(k.shape)} and values {tuple(v.shape)} must be (B, heads, length, size) alike.")
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ArgumentError("a KeyValueCache keeps no gradients; decode under torch.no_grad().")
        length = self._length + k.shape[2]
        self._keys = self._with_room(self._keys, k, length)
        self._values = self._with_room(self._values, v, length)
        self._keys[:, :, self._length : length] = k
        self._values[:, :, self._length : length] = v
        self._length = length
        return self.views()

    def reorder(self, index: Tensor) -> None:
        """Beam search: batch entry b becomes what entry index[b] was. The batch may change its size."""
        if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ArgumentError("index must be a vector of batch positions (int32 or int64).")
        if self._keys is None or self._values is None:
            raise ArgumentError("the cache is empty; there is nothing to reorder.")
        self._keys = self._keys.index_select(0, index)
        self._values = self._values.index_select(0, index)

    def _with_room(self, buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
        """`buffer`, or a larger one that starts with its contents."""
        if buffer is None:
            self._capacity = max(self._capacity, length)
            return new.new_empty((*new.shape[:2], self._capacity, new.shape[3]))
        if buffer.shape[:2] != new.shape[:2] or buffer.shape[3] != new.shape[3]:
            raise ArgumentError(
                f"new tokens {tuple(new.shape)} do not fit the cache's batch, heads and size {tuple(buffer.shape)}."
            )
        if buffer.dtype != new.dtype or buffer.device != new.device:
            raise ArgumentError(f"new tokens are {new.dtype} on {new.device}, the cache {buffer.dtype} on {buffer.device}.")
        if length <= buffer.shape[2]:
            return buffer
        self._capacity = max(length, 2 * buffer.shape[2])
        larger = buffer.new_empty((*buffer.shape[:2], self._capacity, buffer.shape[3]))
        larger[:, :, : self._length] = buffer[:, :, : self._length]
        return larger
