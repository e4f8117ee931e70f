"""Softmax attention by torch's own kernel, the baseline ours is compared with. In: heads and masks, True = may attend."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from entformer.nn.masks import Masks

__all__ = ["softmax_attention"]


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, masks: Masks, causal_offset: int | None = None, dropout: float = 0.0
) -> Tensor:
    """q (B, H, Lq, D), k and v (B, H, Lk, D) -> (B, H, Lq, D). Query i sees keys j <= i + causal_offset; None: all."""
    mask = masks.one_mask()
    if masks.keys is not None:
        keys = masks.keys[:, None, None, :]
        mask = keys if mask is None else mask & keys if mask.dtype == torch.bool else mask.masked_fill(~keys, -torch.inf)
    if causal_offset is not None and (mask is not None or causal_offset != 0):
        # A lone query that follows all cached keys sees them all.
        if q.shape[2] > 1 or causal_offset + 1 < k.shape[2]:
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(causal_offset)
            mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)
        causal_offset = None
    dtype = q.dtype
    if dtype == torch.bfloat16 and q.device.type == "cpu" and torch.is_grad_enabled() and q.requires_grad:
        q, k, v = q.float(), k.float(), v.float()  # torch's backward pass of short bfloat16 rows takes five times as long
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal_offset is not None)
    return out.to(dtype)
