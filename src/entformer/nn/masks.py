"""Masks of attention: torch.nn.MultiheadAttention's, where True = ignore, converted to **True = may attend**.

`extra` counts keys that every query attends to (add_bias_kv, add_zero_attn): in front inside entformer, so that they lie before
the causal limit of any row, and at the end in the weights that torch's callers get.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Support
from entformer.kernels.attention.arguments import causal_bias_offset, is_causal_bias

__all__ = ["Masks", "ScoreTerms", "convert_masks", "dense_weights", "packed_mask", "sequence_starts"]


class Masks(NamedTuple):
    """Which keys may be attended (True), and what is added to the scores."""

    pairs: Tensor | None  # (B or 1, H or 1, Lq, Lk) boolean
    keys: Tensor | None  # (B, Lk) boolean
    bias: Tensor | None  # (B or 1, H or 1, Lq or 1, Lk)

    def one_mask(self) -> Tensor | None:
        """Returns `pairs` and `bias` as the one attn_mask that `attention` takes."""
        if self.bias is None or self.pairs is None:
            return self.pairs if self.bias is None else self.bias
        return self.bias.masked_fill(~self.pairs, -torch.inf)

    def visible(self) -> Tensor | None:
        """Returns `pairs` without what a bias of -inf excludes."""
        if self.bias is None:
            return self.pairs
        seen = self.bias.detach() > -torch.inf
        return seen if self.pairs is None else seen & self.pairs


class ScoreTerms(NamedTuple):
    """What the scores depend on besides queries and keys. Query i is at position i + offset, key j at j."""

    masks: Masks
    slopes: Tensor | None = None  # (H,) of ALiBi
    causal: bool = False
    offset: int = 0
    cu_seqlens: Tensor | None = None  # (n + 1,) int32: where each of n packed sequences begins, and the end

    def rows(self, start: int, end: int) -> "ScoreTerms":
        """Returns the terms of queries start to end."""
        pairs, keys, bias = self.masks
        pairs, bias = (t if t is None or t.shape[2] == 1 else t[:, :, start:end] for t in (pairs, bias))
        return self._replace(masks=Masks(pairs, keys, bias), offset=self.offset + start)


def convert_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    extra: int,
) -> Masks:
    """Converts the masks that `MultiheadAttention.forward` takes.

    Args:
        attn_mask: (Lq, Lk) or (B * H, Lq, Lk), True = ignore, or floating point; or a mask of torch.nn.attention.bias.
        key_padding_mask: (B, Lk) or (Lk,), True = ignore, or floating point.
        mask: broadcasts to (B, H, Lq, Lk), boolean, True = may attend.
        key_mask: (B, Lk), boolean, True = may attend.
        keys: number of keys without the extra ones.
    """
    pairs = padding = bias = None
    if attn_mask is not None:
        if is_causal_bias(attn_mask):
            offset = causal_bias_offset(attn_mask, queries, keys)
            attn_mask = torch.ones(queries, keys, dtype=torch.bool, device=attn_mask.device).triu(offset + 1)
        if attn_mask.shape == (queries, keys):
            attn_mask = attn_mask[None, None]
        elif attn_mask.shape == (batch * heads, queries, keys):
            attn_mask = attn_mask.unflatten(0, (batch, heads))
        else:
            raise ArgumentError(
                f"attn_mask has shape {tuple(attn_mask.shape)}; it must be ({queries}, {keys}) or "
                f"({batch * heads}, {queries}, {keys})."
            )
        pairs, bias = _allowed_or_added(attn_mask, "attn_mask", extra)
    if key_padding_mask is not None:
        given = key_padding_mask[None] if key_padding_mask.dim() == 1 else key_padding_mask
        if given.shape != (batch, keys):
            raise ArgumentError(f"key_padding_mask has shape {tuple(given.shape)}; it must be ({batch}, {keys}).")
        padding, added = _allowed_or_added(given, "key_padding_mask", extra)
        if added is not None:
            added = added[:, None, None]
            bias = added if bias is None else bias + added
    if mask is not None:
        _check_boolean(mask, "mask", 4, keys)
        pairs = _pad(mask, extra) if pairs is None else pairs & _pad(mask, extra)
    if key_mask is not None:
        _check_boolean(key_mask, "key_mask", 2, keys)
        padding = _pad(key_mask, extra) if padding is None else padding & _pad(key_mask, extra)
    return Masks(pairs, padding, bias)


def _check_boolean(mask: Tensor, name: str, dimensions: int, keys: int) -> None:
    if mask.dtype != torch.bool or mask.dim() != dimensions or mask.shape[-1] != keys:
        raise ArgumentError(
            f"{name} must be boolean (True = may attend) with {dimensions} dimensions and {keys} keys in the last, not "
            f"{mask.dtype} of shape {tuple(mask.shape)}."
        )


def _allowed_or_added(mask: Tensor, name: str, extra: int) -> tuple[Tensor | None, Tensor | None]:
    """One of: a boolean mask, True = may attend, or what to add to the scores."""
    if mask.dtype == torch.bool:
        return _pad(~mask, extra), None
    if not mask.is_floating_point():
        raise ArgumentError(f"{name} must be boolean (True = ignore) or floating point (added), not {mask.dtype}.")
    # nn.Transformer converts boolean masks to 0 and -inf. As booleans they need no dense path; reading them is cheap here.
    if mask.device.type == "cpu" and not mask.requires_grad and not torch.compiler.is_compiling():
        allowed = mask == 0.0
        if bool((allowed | (mask == -torch.inf)).all()):
            return _pad(allowed, extra), None
    return None, _pad(mask, extra)


def _pad(mask: Tensor, extra: int) -> Tensor:
    """Adds the extra keys in front: allowed, with nothing added."""
    return F.pad(mask, (extra, 0), value=float(mask.dtype == torch.bool)) if extra else mask


def sequence_starts(cu_seqlens: Tensor, length: int) -> Tensor:
    """Returns for each of `length` packed tokens where its sequence begins, (length,)."""
    position = torch.arange(length, device=cu_seqlens.device)
    starts: Tensor = cu_seqlens[torch.searchsorted(cu_seqlens, position, right=True) - 1]
    return starts


def packed_mask(cu_seqlens: Tensor, length: int) -> Tensor:
    """Returns which keys each query of packed sequences may attend to: earlier ones of its own sequence, (1, 1, L, L)."""
    starts = sequence_starts(cu_seqlens, length)
    return (starts[:, None] == starts[None, :]).tril()[None, None]


def dense_weights(support: Support, shape: tuple[int, int, int, int], extra: int, average: bool) -> Tensor:
    """Returns the weights (B, H, Lq, Lk), or their mean over heads (B, Lq, Lk); the extra keys are moved to the end."""
    batch, heads, queries, keys = shape
    row = torch.repeat_interleave(support.crow.diff())  # of each entry, in order (B, H, Lq)
    if average:
        row = row // (heads * queries) * queries + row % queries
    index = row * keys + (support.col - extra) % keys
    weight = support.weight / heads if average else support.weight
    dense = weight.new_zeros(batch * (1 if average else heads) * queries * keys).index_add_(0, index, weight)
    return dense.view((batch, queries, keys) if average else shape)
