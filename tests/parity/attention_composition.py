"""Attention with every feature as a dense composition in float64 that shares no code with entformer.

Every batch entry, head, sequence and query on its own; entmax by bisection. For test_attention_features.py.
"""

import math
from typing import Any

import torch
from torch import Tensor

INF = math.inf


def entmax_row(s: Tensor, alpha: Tensor) -> Tensor:
    """alpha-entmax of one row: bisection, then one recorded Newton step, which has the right derivatives."""
    e = alpha - 1.0
    if float(e.detach()) == 0.0:
        return torch.softmax(s, -1)

    def weights(c: Tensor) -> Tensor:
        base = 1.0 + e * (s - c)
        inside = base.detach() > 0.0
        return torch.where(inside, torch.where(inside, base, 1.0).log().div(e).exp(), 0.0)

    with torch.no_grad():
        low, high = s.max(), s.max() + (1.0 / e).clamp(max=60.0)
        for _ in range(70):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if weights(middle).sum() > 1.0 else (low, middle)
        c = 0.5 * (low + high)
        inside = 1.0 + e * (s - c) > 0.0
        slope = torch.where(inside, weights(c) / torch.where(inside, 1.0 + e * (s - c), 1.0), 0.0).sum()
    total = weights(c).sum()
    return weights(c + (total - total.detach()) / slope)


def one_row(s: Tensor, seen: Tensor, how: dict[str, Any], alpha: Tensor, sink: Tensor | None) -> Tensor:
    """The weights of one query over its keys; `seen` says which of them it may attend to."""
    if not seen.any():
        return torch.zeros_like(s)
    visible = s[seen]
    if how["normalizer"] == "rela":
        found = visible.relu()
    elif how["normalizer"] == "sigmoid":
        bias = -math.log(visible.numel()) if how["sigmoid_bias"] is None else how["sigmoid_bias"]
        found = 1.0 / (1.0 + torch.exp(-(visible + bias)))
    elif sink is not None and float(sink.detach()) != -INF:
        found = entmax_row(torch.cat([visible, sink[None]]), alpha)[:-1]
    else:
        found = entmax_row(visible, alpha)
    return torch.zeros_like(s).masked_scatter(seen, found)


def composition(q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Output and weights (B, H, Lq, Lk), row by row; alpha (B, H)."""
    batch, heads, queries, size = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    scale = 1.0 / math.sqrt(size) if how["scale"] is None else how["scale"]
    left, right = how["window"] or (None, None)
    cu_q, cu_k = how["cu_seqlens_q"], how["cu_seqlens_k"]
    bounds = [(0, queries, 0, keys)]
    if cu_q is not None:
        bounds = [(*cu_q[n : n + 2].tolist(), *cu_k[n : n + 2].tolist()) for n in range(len(cu_q) - 1)]
    mask, bias = how["attn_mask"], None
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = mask.detach() > torch.finfo(torch.float32).min, mask
    outputs, matrices = [], []
    for b in range(batch):
        for h in range(heads):
            rows = []
            for first, last, first_key, last_key in bounds:
                for i in range(first, last):
                    at = i - first + how["causal_offset"]
                    j = torch.arange(last_key - first_key)
                    seen = torch.ones(len(j), dtype=torch.bool)
                    if how["is_causal"]:
                        seen = seen & (j <= at)
                    if left is not None:
                        seen = seen & (j >= at - left)
                    if right is not None:
                        seen = seen & (j <= at + right)
                    here = (b, h, i, slice(first_key, last_key))
                    if mask is not None:
                        seen = seen & mask.expand(batch, heads, queries, keys)[here]
                    if how["key_mask"] is not None:
                        seen = seen & how["key_mask"][b, first_key:last_key]
                    s = scale * (k[b, h // group, first_key:last_key] @ q[b, h, i])
                    if how["softcap"] is not None:
                        s = how["softcap"] * torch.tanh(s / how["softcap"])
                    if bias is not None:
                        s = s + torch.where(seen, bias.expand(batch, heads, queries, keys)[here], 0.0)
                    if how["alibi_slopes"] is not None:
                        s = s - how["alibi_slopes"].expand(batch, heads)[b, h] * (at - j).abs()
                    sink = None if how["sinks"] is None else how["sinks"].expand(batch, heads)[b, h]
                    found = one_row(s, seen, how, alpha[b, h], sink)
                    rows.append(torch.nn.functional.pad(found, (first_key, keys - last_key)))
            weights = torch.stack(rows) if rows else k.new_zeros(0, keys)
            matrices.append(weights)
            outputs.append(weights @ v[b, h // group])
    shape = (batch, heads, queries)
    return torch.stack(outputs).reshape(*shape, -1), torch.stack(matrices).reshape(*shape, keys)
