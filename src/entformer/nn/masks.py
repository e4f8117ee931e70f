"""torch.nn.MultiheadAttention's masks and weights in the kernels' terms, and back. In: its masks, **True = ignore**.

Out: masks with **True = may attend**, as the kernels and scaled_dot_product_attention have it; dense weights from a support.
`extra` counts keys that every query sees (add_bias_kv, add_zero_attn): in front for the kernels, so that they lie before
the causal edge of any row, and at the end for torch.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Support

__all__ = ["Masks", "convert_masks", "dense_weights"]


class Masks(NamedTuple):
    """What may be attended (True) and what is added to the scores."""

    pairs: Tensor | None  # (B or 1, H or 1, Lq, Lk) boolean
    keys: Tensor | None  # (B, Lk) boolean
    bias: Tensor | None  # (B or 1, H or 1, Lq or 1, Lk)

    def one_mask(self) -> Tensor | None:
        """`pairs` and `bias` as the one attn_mask that `attention` takes."""
        if self.bias is None or self.pairs is None:
            return self.pairs if self.bias is None else self.bias
        return self.bias.masked_fill(~self.pairs, -torch.inf)

    def visible(self) -> Tensor | None:
        """`pairs` without what a bias of -inf hides."""
        if self.bias is None:
            return self.pairs
        seen = self.bias.detach() > -torch.inf
        return seen if self.pairs is None else seen & self.pairs


def convert_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, batch: int, heads: int, queries: int, keys: int, extra: int
) -> Masks:
    """attn_mask (Lq, Lk) or (B * H, Lq, Lk) and key_padding_mask (B, Lk) or (Lk,); `keys` does not count the extra ones."""
    pairs = key_mask = bias = None
    if attn_mask is not None:
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
        padding = key_padding_mask[None] if key_padding_mask.dim() == 1 else key_padding_mask
        if padding.shape != (batch, keys):
            raise ArgumentError(f"key_padding_mask has shape {tuple(padding.shape)}; it must be ({batch}, {keys}).")
        key_mask, added = _allowed_or_added(padding, "key_padding_mask", extra)
        if added is not None:
            added = added[:, None, None]
            bias = added if bias is None else bias + added
    return Masks(pairs, key_mask, bias)


def _allowed_or_added(mask: Tensor, name: str, extra: int) -> tuple[Tensor | None, Tensor | None]:
    """One of: a boolean mask, True = may attend, or what to add to the scores."""
    if mask.dtype == torch.bool:
        return _with_room(~mask, extra), None
    if not mask.is_floating_point():
        raise ArgumentError(f"{name} must be boolean (True = ignore) or floating point (added), not {mask.dtype}.")
    # nn.Transformer turns boolean masks into 0 and -inf. Back to boolean they need no dense path; reading them is cheap here.
    if mask.device.type == "cpu" and not mask.requires_grad and not torch.compiler.is_compiling():
        allowed = mask == 0.0
        if bool((allowed | (mask == -torch.inf)).all()):
            return _with_room(allowed, extra), None
    return None, _with_room(mask, extra)


def _with_room(mask: Tensor, extra: int) -> Tensor:
    """Room in front for the extra keys, which are allowed and get nothing added."""
    return F.pad(mask, (extra, 0), value=float(mask.dtype == torch.bool)) if extra else mask


def dense_weights(support: Support, shape: tuple[int, int, int, int], extra: int, average: bool) -> Tensor:
    """The weights (B, H, Lq, Lk), or their mean over heads (B, Lq, Lk); the extra keys go to the end."""
    batch, heads, queries, keys = shape
    row = torch.repeat_interleave(support.crow.diff())  # of each entry, in order (B, H, Lq)
    if average:
        row = row // (heads * queries) * queries + row % queries
    at = row * keys + (support.col - extra) % keys
    weight = support.weight / heads if average else support.weight
    dense = weight.new_zeros(batch * (1 if average else heads) * queries * keys).index_add_(0, at, weight)
    return dense.view((batch, queries, keys) if average else shape)
