"""The finite window of sparse ALiBi heads, and a decode cache that holds only the window.

Let x = g * u + b be the input of the layer, |u| <= sqrt(d) after any RMSNorm or LayerNorm. With A = W_q diag(g),
K = W_k diag(g) and c = W_q b + b_q, the scores of one query differ between two keys, before ALiBi, by at most

    spread = (2 d |A^T K| + 2 sqrt(d) |K^T c|) / sqrt(head size)                       |.| the spectral norm

A key has weight only if its score is above the largest minus 1 / (alpha - 1), and the query's own key has distance 0. So the
weight of a key at distance n is exactly zero once slope * n >= spread + 1 / (alpha - 1) (Vasylenko et al. 2025, proposition 6).
This holds for all later queries, so the key can be dropped without changing the output. ReLA's weights are zero once
slope * n >= the largest score. Softmax has no window, nor has a head whose queries are scaled by the length.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.cache import CacheMark, KeyValueCache
from entformer.nn.execution_mode import normal_tensors
from entformer.nn.normalizer_functions import NormalizerFn

__all__ = ["HeadGroup", "WindowedCache", "alibi_windows", "attention_by_group"]


class _Attention(Protocol):
    """The attributes used of a MultiheadAttention, whose module imports this one."""

    num_heads: int
    head_dim: int
    positions: str
    scaling: nn.Module | None
    normalizer_fn: NormalizerFn | None
    alpha: LearnedAlpha | float | None
    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None

    @property
    def slopes(self) -> Tensor | None: ...


def alibi_windows(attention: _Attention, gain: Tensor, shift: Tensor | None = None) -> list[int | None]:
    """Returns for each head how many keys, the query's own included, can have nonzero weight; None: no bound is proven.

    Args:
        attention: a `MultiheadAttention` for self-attention.
        gain, shift: g and b above, (d,): weight and bias of the RMSNorm or LayerNorm before the layer.
    """
    nothing: list[int | None] = [None] * attention.num_heads
    scaled = attention.scaling is not None and attention.positions != "nape"  # NAPE does not scale its ALiBi heads
    if attention.slopes is None or attention.in_proj_weight is None or attention.normalizer_fn is not None or scaled:
        return nothing
    with torch.no_grad():
        spreads, largest = _cached_score_bounds(attention, gain, shift)
        alphas = attention.alpha() if isinstance(attention.alpha, LearnedAlpha) else attention.alpha
        if alphas is None:  # ReLA
            reach = largest
        else:
            e = torch.as_tensor(alphas, dtype=torch.float64, device=spreads.device).expand(attention.num_heads) - 1.0
            reach = spreads + 1.0 / e  # inf for softmax
    windows = nothing
    for head, slope in enumerate(attention.slopes.tolist()):
        if slope > 0.0 and math.isfinite(far := float(reach[head]) * (1.0 + 1e-5) / slope):  # float32 rounds the scores
            windows[head] = math.ceil(far) + 1
    return windows


_bounds: WeakKeyDictionary[Any, tuple[list[Tensor], tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def _cached_score_bounds(attention: _Attention, gain: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """`_score_bounds`, computed once while the parameters stay the same."""
    read = (attention.in_proj_weight, attention.in_proj_bias, gain, shift)
    with normal_tensors():
        now = [_fingerprint(t.detach()) for t in read if t is not None]
        found = _bounds.get(attention)
        if found is None or len(found[0]) != len(now) or not all(map(torch.equal, found[0], now)):
            doubles = gain.detach().double(), None if shift is None else shift.detach().double()
            found = now, _score_bounds(attention, *doubles)
            _bounds[attention] = found
    return found[1]


def _fingerprint(t: Tensor) -> Tensor:
    """Returns a checksum of each row: a version counter misses what is written through `.data`."""
    ramp = torch.arange(1, t.shape[-1] + 1, dtype=torch.float32, device=t.device).cos()
    return t.float() @ ramp if t.dim() == 2 else t.float() * ramp


def _score_bounds(attention: _Attention, gain: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns bounds per head, (H,): of the difference of two scores of one query, and of a score."""
    weight = attention.in_proj_weight
    if weight is None:
        raise ArgumentError("a window needs the packed projections of self-attention.")
    size, heads = gain.numel(), attention.num_heads
    w_q, w_k, _ = weight.detach().double().chunk(3)
    c_q, c_k = torch.zeros_like(gain), torch.zeros_like(gain)
    if attention.in_proj_bias is not None:
        c_q, c_k, _ = attention.in_proj_bias.detach().double().chunk(3)
    if shift is not None:
        c_q, c_k = c_q + w_q @ shift, c_k + w_k @ shift
    a, k = ((w * gain).unflatten(0, (heads, -1)) for w in (w_q, w_k))  # (H, head size, d)
    c_q, c_k = (c.unflatten(0, (heads, -1))[..., None] for c in (c_q, c_k))  # (H, head size, 1)
    # a^T k = Q (R_a R_k^T) Q', so its norm is that of a matrix of the head's size; the d x d one takes ten times as long.
    r_a, r_k = (torch.linalg.qr(t.mT, mode="r").R for t in (a, k))  # (H, head size, head size)
    both = torch.linalg.matrix_norm(r_a @ r_k.mT, ord=2) * size
    of_query = torch.linalg.vector_norm(k.mT @ c_q, dim=(-2, -1)) * math.sqrt(size)
    of_key = torch.linalg.vector_norm(a.mT @ c_k, dim=(-2, -1)) * math.sqrt(size)
    constant = (c_q * c_k).sum((-2, -1)).abs()
    scale = 1.0 / math.sqrt(attention.head_dim)
    return 2.0 * (both + of_query) * scale, (both + of_query + of_key + constant) * scale


class HeadGroup(NamedTuple):
    """Heads that share a buffer, and the keys and values they still hold."""

    heads: Tensor  # (G,) which heads
    keys: Tensor  # (B, G, n, D), the last n tokens
    values: Tensor  # (B, G, n, E)


class WindowedCache:
    """A `KeyValueCache` in which each head holds little more than its window, for causal self-attention.

    Heads whose windows differ by a factor of two or less share a buffer, so that a decoding step is a few kernel calls.

    Args:
        windows: from `alibi_windows`.
    """

    def __init__(self, windows: list[int | None]) -> None:
        self.windows = windows
        self._length = 0
        self._groups: list[tuple[Tensor, _Tail | KeyValueCache]] = []
        unbounded = [head for head, window in enumerate(windows) if window is None]
        if unbounded:
            self._groups.append((torch.tensor(unbounded, device="cpu"), KeyValueCache()))
        rest = sorted((window, head) for head, window in enumerate(windows) if window is not None)
        while rest:
            largest = rest[-1][0]
            together = [head for window, head in rest if 2 * window >= largest]
            rest = rest[: -len(together)]
            self._groups.append((torch.tensor(sorted(together), device="cpu"), _Tail(largest)))

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
        mark, groups = self.mark(), []
        try:
            for heads, buffer in self._groups:
                index = heads.to(k.device)
                groups.append(HeadGroup(index, *buffer.append(k[:, index], v[:, index])))
        except BaseException:  # some groups have accepted the tokens, one has not
            self.restore(mark)
            raise
        self._length += k.shape[2]
        return groups

    def reorder(self, index: Tensor) -> None:
        """Replaces batch entry b by entry index[b]. The batch size may change."""
        if not self._length:
            raise ArgumentError("the cache is empty; there is nothing to reorder.")
        for _, buffer in self._groups:  # all have one batch size, so the first raises for all
            buffer.reorder(index)

    def crop(self, length: int) -> None:
        """Drops all tokens after the first `length`. Only the last few can be, since keys before a window are gone."""
        if not 0 <= length <= self._length:
            raise ArgumentError(f"cannot crop to length={length}; the cache has had {self._length} tokens.")
        dropped = self._length - length
        if not all(buffer.can_drop(dropped, length) for _, buffer in self._groups if isinstance(buffer, _Tail)):
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


class _Tail:
    """The last `window` - 1 keys and values; the next token completes the window."""

    def __init__(self, window: int) -> None:
        self._keep = window - 1
        self._cache = KeyValueCache()

    @property
    def bytes(self) -> int:
        return self._cache.bytes

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return self._cache.length

    @property
    def batch(self) -> int | None:
        return self._cache.batch

    def can_drop(self, dropped: int, left: int) -> bool:
        """Whether without the last `dropped` tokens it still holds the window of the token after the first `left`."""
        return self._cache.length - dropped >= min(self._keep, left)

    def crop(self, length: int) -> None:
        self._cache.crop(length)

    def mark(self) -> tuple[KeyValueCache, CacheMark]:
        return self._cache, self._cache.mark()

    def restore(self, mark: tuple[KeyValueCache, CacheMark]) -> None:
        self._cache = mark[0]
        self._cache.restore(mark[1])

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self._cache.length == 0 and k.shape[2] > self._keep:  # a long prompt: only its end is copied
            self._cache.append(k[:, :, k.shape[2] - self._keep :], v[:, :, k.shape[2] - self._keep :])
            return k, v
        keys, values = self._cache.append(k, v)
        seen = min(self._cache.length, self._keep + k.shape[2])
        keys, values = keys[:, :, -seen:], values[:, :, -seen:]
        if self._cache.length >= 2 * max(self._keep, 1) + 64:  # dropping in bulk costs O(1) copies a token
            shorter = KeyValueCache(2 * max(self._keep, 1) + 64)
            if self._keep:
                shorter.append(keys[:, :, -self._keep :], values[:, :, -self._keep :])
            self._cache = shorter
        return keys, values

    def reorder(self, index: Tensor) -> None:
        if self._cache.length:
            self._cache.reorder(index)


def attention_by_group(q: Tensor, groups: list[HeadGroup], attend: Callable[[Tensor, HeadGroup], Tensor]) -> Tensor:
    """Computes attention of q (B, H, Lq, D) group by group; `attend` computes one, (B, G, Lq, E)."""
    out = q.new_empty((*q.shape[:3], groups[0].values.shape[3]))
    for group in groups:
        out[:, group.heads] = attend(q[:, group.heads], group)
    return out
