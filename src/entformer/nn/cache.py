"""Caches of keys and values for decoding: of all tokens, or of each head's window only.

Buffers grow by doubling, so appending L tokens one by one copies O(L) in all, not O(L^2). A call that raises leaves the
cache unchanged: `append` checks before it writes, and `mark` and `restore` undo earlier writes of the same call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.nn.execution_mode import normal_tensors

__all__ = ["HeadGroup", "KeyValueCache", "WindowedCache", "check_batch_index", "unchanged_on_error"]

SHORT = 512  # tokens of a window


def check_batch_index(index: Tensor, batch: int) -> None:
    """Raises unless `index` is a vector of batch positions. Values are read on the CPU only, where that is cheap."""
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise ArgumentError("index must be a vector of batch positions (int32 or int64).")
    if index.device.type == "cpu" and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
        raise ArgumentError(f"index holds {index.tolist()}; batch positions must be from 0 to {batch - 1}.")


@contextmanager
def unchanged_on_error(cache: Any) -> Iterator[None]:
    """Restores the cache, or the state of several caches, if the body raises."""
    mark = cache.mark()
    try:
        yield
    except BaseException:
        cache.restore(mark)
        raise


class CacheMark(NamedTuple):
    """State of a cache: appending writes only after `length`, so these references are enough."""

    keys: Tensor | None
    values: Tensor | None
    length: int


class KeyValueCache:
    """One layer's keys and values: batch B, key heads G, length L, head sizes D and E.

    It stores no gradients: decode under `torch.no_grad()` or `torch.inference_mode()`.

    Args:
        capacity: initial capacity in tokens.
    """

    def __init__(self, capacity: int = 16) -> None:
        if capacity < 1:
            raise ArgumentError(f"capacity={capacity} must be at least 1.")
        self._capacity = capacity
        self._length = 0
        self._keys: Tensor | None = None  # (B, G, capacity, D); only the first `length` are written
        self._values: Tensor | None = None  # (B, G, capacity, E)

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self._length

    def __len__(self) -> int:
        return self._length

    @property
    def batch(self) -> int | None:
        """Number of sequences; None before the first token."""
        return None if self._keys is None else self._keys.shape[0]

    @property
    def bytes(self) -> int:
        """Memory of the buffers, unused capacity included."""
        return sum(t.numel() * t.element_size() for t in (self._keys, self._values) if t is not None)

    def views(self) -> tuple[Tensor, Tensor]:
        """Returns all keys (B, G, L, D) and values (B, G, L, E), valid until the next `reorder` or `append`."""
        if self._keys is None or self._values is None:
            raise ArgumentError("the cache is empty; append keys and values first.")
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends n tokens, k (B, G, n, D) and v (B, G, n, E), and returns the views of all."""
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ArgumentError(f"keys {tuple(k.shape)} and values {tuple(v.shape)} must be (B, heads, length, size) alike.")
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ArgumentError("a KeyValueCache keeps no gradients; decode under torch.no_grad().")
        for buffer, new in ((self._keys, k), (self._values, v)):
            self._check(buffer, new)
        length = self._length + k.shape[2]
        keys, values = self._with_capacity(self._keys, k, length), self._with_capacity(self._values, v, length)
        keys[:, :, self._length : length] = k
        values[:, :, self._length : length] = v
        self._keys, self._values, self._length = keys, values, length
        return self.views()

    def reorder(self, index: Tensor) -> None:
        """Replaces batch entry b by entry index[b], as in beam search. The batch size may change."""
        if self._keys is None or self._values is None:
            raise ArgumentError("the cache is empty; there is nothing to reorder.")
        check_batch_index(index, self._keys.shape[0])
        with normal_tensors():
            self._keys, self._values = self._keys.index_select(0, index), self._values.index_select(0, index)

    def crop(self, length: int) -> None:
        """Drops all tokens after the first `length`: for speculative decoding, or to continue from an earlier token."""
        if not 0 <= length <= self._length:
            raise ArgumentError(f"cannot crop to length={length}; the cache holds {self._length} tokens.")
        self._length = length
        if length == 0:
            self._keys = self._values = None  # another batch may come

    def mark(self) -> CacheMark:
        """Returns what `restore` needs to undo every later `append`."""
        return CacheMark(self._keys, self._values, self._length)

    def restore(self, mark: CacheMark) -> None:
        """Restores the cache to the state of `mark`."""
        self._keys, self._values, self._length = mark

    def _check(self, buffer: Tensor | None, new: Tensor) -> None:
        """Raises unless `new` can be appended to `buffer`."""
        if buffer is None:
            return
        if buffer.shape[:2] != new.shape[:2] or buffer.shape[3] != new.shape[3]:
            raise ArgumentError(
                f"new tokens {tuple(new.shape)} do not fit the cache's batch, heads and size {tuple(buffer.shape)}."
            )
        if buffer.dtype != new.dtype or buffer.device != new.device:
            raise ArgumentError(f"new tokens are {new.dtype} on {new.device}, the cache {buffer.dtype} on {buffer.device}.")

    def _with_capacity(self, buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
        """Returns `buffer`, or a larger one that starts with its contents."""
        if buffer is not None and length <= buffer.shape[2]:
            return buffer
        capacity = max(self._capacity, length) if buffer is None else max(length, 2 * buffer.shape[2])
        with normal_tensors():  # a buffer begun in inference mode can be written to outside of it
            larger = new.new_empty((*new.shape[:2], capacity, new.shape[3]))
        if buffer is not None:
            larger[:, :, : self._length] = buffer[:, :, : self._length]
        return larger


class HeadGroup(NamedTuple):
    """Heads that share a buffer, and the keys and values they still hold."""

    heads: Tensor | slice  # which G heads
    keys: Tensor  # (B, G, n, D), the last n tokens
    values: Tensor  # (B, G, n, E)


class WindowedCache:
    """A `KeyValueCache` in which each head holds little more than its window, for causal self-attention.

    Heads whose windows differ by a factor of two or less share a buffer, and so do all whose windows are short: another kernel
    call takes longer than reading their keys.

    Args:
        windows: keys each head needs, the query's own included, as `alibi_windows` returns them; None: all of them.
    """

    def __init__(self, windows: list[int | None]) -> None:
        self.windows = windows
        self._length = 0
        self._groups: list[tuple[Tensor | slice, KeyValueCache]] = []
        unbounded = [head for head, window in enumerate(windows) if window is None]
        if unbounded:
            self._groups.append((_index(unbounded), KeyValueCache()))
        rest = sorted((window, head) for head, window in enumerate(windows) if window is not None)
        while rest:
            largest = rest[-1][0]
            together = [head for window, head in rest if 2 * window >= largest or largest <= SHORT]
            rest = rest[: -len(together)]
            self._groups.append((_index(sorted(together)), _Tail(largest)))

    @property
    def length(self) -> int:
        """Number of tokens appended so far, dropped ones included."""
        return self._length

    @property
    def batch(self) -> int | None:
        """Number of sequences; None before the first token."""
        return self._groups[0][1].batch

    @property
    def bytes(self) -> int:
        """Memory of all buffers."""
        return sum(buffer.bytes for _, buffer in self._groups)

    def append(self, k: Tensor, v: Tensor) -> list[HeadGroup]:
        """Appends n tokens, k (B, H, n, D) and v (B, H, n, E). Returns the keys and values in reach, per group of heads."""
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3] or k.shape[1] != len(self.windows):
            raise ArgumentError(
                f"keys {tuple(k.shape)} and values {tuple(v.shape)} must be (B, {len(self.windows)}, length, size) alike."
            )
        groups = []
        with unchanged_on_error(self):  # some groups may have accepted the tokens before one does not
            for heads, buffer in self._groups:
                index = heads if isinstance(heads, slice) else heads.to(k.device)
                groups.append(HeadGroup(index, *buffer.append(k[:, index], v[:, index])))
        self._length += k.shape[2]
        return groups

    def reorder(self, index: Tensor) -> None:
        """Replaces batch entry b by entry index[b]. The batch size may change."""
        if not self._length:
            raise ArgumentError("the cache is empty; there is nothing to reorder.")
        for _, buffer in self._groups:  # all have one batch size, so the first raises for all
            if buffer.batch is not None:
                buffer.reorder(index)

    def crop(self, length: int) -> None:
        """Drops all tokens after the first `length`. Only the last few can be, since keys before a window are gone."""
        if not 0 <= length <= self._length:
            raise ArgumentError(f"cannot crop to length={length}; the cache has had {self._length} tokens.")
        dropped = self._length - length
        tails = [buffer for _, buffer in self._groups if isinstance(buffer, _Tail)]
        if any(tail.length - dropped < min(tail.keep, length) for tail in tails):
            raise ArgumentError(
                f"cannot crop from {self._length} to {length} tokens: heads with a window no longer hold the keys before; "
                "decode with windowed=False (a KeyValueCache) to crop this far."
            )
        for _, buffer in self._groups:
            buffer.crop(buffer.length - dropped)
        self._length = length

    def mark(self) -> tuple[int, list[Any]]:
        """Returns what `restore` needs to undo every later `append`."""
        return self._length, [buffer.mark() for _, buffer in self._groups]

    def restore(self, mark: tuple[int, list[Any]]) -> None:
        """Restores the cache to the state of `mark`."""
        self._length, marks = mark
        for (_, buffer), state in zip(self._groups, marks, strict=True):
            buffer.restore(state)


def _index(heads: list[int]) -> Tensor | slice:
    """Returns an index of sorted heads; a slice, which copies nothing, where they are neighbors."""
    if heads[-1] - heads[0] == len(heads) - 1:
        return slice(heads[0], heads[-1] + 1)
    return torch.tensor(heads, device="cpu")


class _Tail(KeyValueCache):
    """The last `window` - 1 keys and values; the next token completes the window."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.keep = window - 1

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[2]
        if self._length == 0 and new > self.keep:  # a long prompt: only its end is copied
            super().append(k[:, :, new - self.keep :], v[:, :, new - self.keep :])
            return k, v
        keys, values = super().append(k, v)
        seen = min(self._length, self.keep + new)
        keys, values = (t[:, :, self._length - seen :] for t in (keys, values))
        limit = 2 * max(self.keep, 1) + 64
        if self._length >= limit:  # dropping in bulk costs O(1) copies a token
            self._keys, self._values, self._length, self._capacity = None, None, 0, limit
            super().append(keys[:, :, seen - self.keep :], values[:, :, seen - self.keep :])
        return keys, values
