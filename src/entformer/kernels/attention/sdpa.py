"""Softmax attention by torch's own kernel, for calls that it computes as `attention` defines them and faster than ours.

At alpha = 1 no weight is zero, so there is nothing for our kernel to skip. Measured on AVX2 with one thread, forward and
backward, ours takes 1.1 to 1.3 times as long, but 0.7 to 0.85 with a causal mask and 128 to 1024 queries.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.kernels import checks
from entformer.kernels.attention.arguments import Call

MIN_QUERIES = 4  # below, our kernel reads the keys in place
CAUSAL_LENGTHS = (128, 1024)  # ours is faster between them


def suits(call: Call, alpha: float | Tensor) -> bool:
    """Whether torch's kernel is to run: softmax of finite float32 tensors, or on a GPU, with no mask or a causal one alone."""
    q, k, v = call.query, call.key, call.value
    if call.normalizer != "entmax" or isinstance(alpha, Tensor) or alpha != 1.0 or call.dropout_p > 0.0:
        return False
    if any(t is not None for t in (call.attn_mask, call.key_mask, call.alibi_slopes, *call.features)):
        return False
    if q.device.type == "cuda":  # FlashAttention, always faster; a look at values would stall the device
        same = q.shape[1] == k.shape[1] and 0 not in q.shape and not checks.transform_active()
        return same and not (call.is_causal and call.causal_offset != 0)
    if q.shape[1] != k.shape[1] or (call.is_causal and call.causal_offset != 0):
        return False
    return checks.values_are_readable(q) and not checks.transform_active() and suits_plain(q, k, v, call.is_causal)


def suits_plain(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> bool:
    """The same for a call on the CPU whose tensors (B, H, L, D) can be read, with no other options."""
    if q.dtype != torch.float32 or q.shape[3] != v.shape[3] or 0 in q.shape:
        return False
    queries, (low, high) = q.shape[2], CAUSAL_LENGTHS
    if queries < MIN_QUERIES or (is_causal and low <= queries <= high):
        return False
    # NaN and infinity must stay where they are seen, which a product by zero does not respect.
    try:
        return all(math.isfinite(t.detach().sum().item()) for t in (q, k, v))
    except RuntimeError:  # a fake tensor
        return True


def softmax_attention(call: Call) -> Tensor:
    """Computes the output of a call that `suits`."""
    q, k, v = call.query, call.key, call.value
    with torch.autocast(q.device.type, enabled=False) if torch.is_autocast_enabled(q.device.type) else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, is_causal=call.is_causal, scale=call.scale)
