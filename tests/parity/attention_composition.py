"""Attention with every feature as a dense composition in float64 that shares no code with entformer.

All scores at once, (B, H, Lq, Lk); entmax by bisection. For test_attention_features.py.
"""

import math
from typing import Any

import torch
from torch import Tensor


def entmax(s: Tensor, seen: Tensor, alpha: Tensor) -> Tensor:
    """alpha-entmax of every row over its `seen` entries: bisection, then one recorded Newton step with the right derivatives.

    Rows that see nothing are zero; alpha (..., 1, 1) is above 1.
    """
    e = alpha - 1.0
    s = torch.where(seen, s, 0.0)  # neither garbage nor -inf reaches a gradient

    def weights(c: Tensor) -> Tensor:
        base = 1.0 + e * (s - c)
        inside = seen & (base.detach() > 0.0)
        return torch.where(inside, torch.where(inside, base, 1.0).log().div(e).exp(), 0.0)

    with torch.no_grad():
        low = torch.where(seen, s, -math.inf).amax(-1, keepdim=True).clamp(min=-1e300)
        high = low + (1.0 / e).clamp(max=60.0)
        for _ in range(70):
            middle = 0.5 * (low + high)
            above = weights(middle).sum(-1, keepdim=True) > 1.0
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        c = 0.5 * (low + high)
        found = weights(c)
        slope = torch.where(found > 0.0, found / (1.0 + e * (s - c)), 0.0).sum(-1, keepdim=True)
        slope = torch.where(slope > 0.0, slope, 1.0)
    total = weights(c).sum(-1, keepdim=True)
    return weights(c + (total - total.detach()) / slope)


def see(how: dict[str, Any], queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Which keys a query may attend to by its position (Lq, Lk), and the distance of the two within their sequence."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if how["cu_seqlens_q"] is not None:
        cu_q, cu_k = how["cu_seqlens_q"].long(), how["cu_seqlens_k"].long()
        sequence_q, sequence_k = (torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff()) for cu in (cu_q, cu_k))
        seen = sequence_q[:, None] == sequence_k
        i, j = i - cu_q[sequence_q][:, None], j - cu_k[sequence_k]
    distance = i + how["causal_offset"] - j
    left, right = how["window"] or (None, None)
    if how["is_causal"]:
        seen = seen & (distance >= 0)
    if left is not None:
        seen = seen & (distance <= left)
    if right is not None:
        seen = seen & (-distance <= right)
    return seen, distance


def composition(q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Output and weights (B, H, Lq, Lk); alpha (B, H)."""
    batch, heads, queries, size = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    seen, distance = see(how, queries, keys)
    seen = seen.expand(batch, heads, queries, keys)
    mask, bias = how["attn_mask"], None
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = mask.detach() > torch.finfo(torch.float32).min, mask
    if mask is not None:
        seen = seen & mask
    if how["key_mask"] is not None:
        seen = seen & how["key_mask"][:, None, None]

    s = (1.0 / math.sqrt(size) if how["scale"] is None else how["scale"]) * (q @ k.mT)
    if how["softcap"] is not None:
        s = how["softcap"] * torch.tanh(s / how["softcap"])
    if bias is not None:
        s = s + torch.where(seen, bias, 0.0)
    if how["alibi_slopes"] is not None:
        s = s - how["alibi_slopes"].expand(batch, heads)[..., None, None] * distance.abs()

    if how["normalizer"] == "rela":
        weights = torch.where(seen, s.relu(), 0.0)
    elif how["normalizer"] == "sigmoid":
        count = seen.sum(-1, keepdim=True).clamp(min=1)
        shift = -count.log() if how["sigmoid_bias"] is None else how["sigmoid_bias"]
        weights = torch.where(seen, torch.sigmoid(s + shift), 0.0)
    else:
        if how["sinks"] is not None:  # one more key without value, also for rows that see no other
            sink = how["sinks"].expand(batch, heads)[..., None, None].expand(batch, heads, queries, 1)
            s, seen = torch.cat([s, sink], -1), torch.cat([seen, sink.detach() > -math.inf], -1)
        if (alpha == 1.0).all():
            top = torch.where(seen, s, -math.inf).detach().amax(-1, keepdim=True).clamp(min=-1e300)
            terms = torch.where(seen, (torch.where(seen, s, 0.0) - top).exp(), 0.0)
            weights = terms / terms.sum(-1, keepdim=True).clamp(min=1e-300)
        else:
            weights = entmax(s, seen, alpha[..., None, None])
        weights = weights[..., :keys]
    return weights @ v, weights
