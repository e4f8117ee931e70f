"""Attention without the fused kernel: dense, for normalizers that have none, and softmax by torch's own kernel.

    weights = normalizer_fn(scale q k^T + bias - slope |i + offset - j|)       scores and weights (B, H, Lq, Lk)

The normalizer function receives -inf where a key may not be attended. Weights it returns there are set to zero; rows without
keys give zeros. NaN or infinity in a masked key or value has no effect. A function with the attribute `uses_positions` receives
i + offset - j, (rows, Lk), as a second argument. Where no gradient is needed queries are processed in blocks, so that a long
sequence needs memory for a block of rows, not for L x L.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.kernels import finite
from entformer.kernels.attention.api import Attention, RowStats, Support, attention_scores
from entformer.kernels.attention.arguments import Call, Features
from entformer.nn.masks import ScoreTerms
from entformer.nn.normalizer_functions import NormalizerFn

__all__ = ["attention_weights", "dense_attention", "masked_scores", "sdpa_attention"]

BLOCK = 1 << 24  # scores in memory at a time where no gradient is needed


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    normalizer_fn: NormalizerFn,
    terms: ScoreTerms,
    *,
    dropout: float = 0.0,
    trace: bool = False,
) -> Attention:
    """Computes attention; with `trace` the row statistics and the support too (`logsumexp` is NaN)."""
    batch, heads, queries, _ = q.shape
    free = not torch.compiler.is_compiling()  # a compiled graph has all rows in one block, whatever their number
    free = free and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
    rows = max(1, BLOCK // max(batch * heads * k.shape[2], 1)) if free else queries
    outputs, traced = [], []
    for start in range(0, max(queries, 1), rows) if free else (0,):
        end = min(start + rows, queries)
        weights = attention_weights(q[:, :, start:end], k, normalizer_fn, terms.rows(start, end))
        outputs.append(finite.weighted_sum(F.dropout(weights, dropout), v.to(weights.dtype)).to(v.dtype))
        if trace:
            traced.append(weights.detach())
    out = torch.cat(outputs, 2)
    if not trace:
        return Attention(out, None, None)
    weights = torch.cat(traced, 2)
    count = (weights != 0.0).sum(-1, dtype=torch.int32)
    crow = F.pad(count.flatten().cumsum(0), (1, 0))
    support = Support(crow, weights.nonzero()[:, -1].to(torch.int32), weights[weights != 0.0])
    entropy = torch.special.entr(weights.clamp(min=0.0)).sum(-1)
    return Attention(out, RowStats(count, entropy, torch.full_like(entropy, math.nan)), support)


def masked_scores(q: Tensor, k: Tensor, terms: ScoreTerms) -> tuple[Tensor, Tensor]:
    """Returns scores (B, H, Lq, Lk) of at least float32, -inf where a key may not be attended, and i + offset - j, (Lq, Lk)."""
    call = Call(
        query=q,
        key=k,
        value=k,  # not read, as alpha and dropout are not
        alpha=q.detach(),
        attn_mask=terms.masks.pairs,
        key_mask=terms.masks.keys,
        alibi_slopes=None if terms.slopes is None else terms.slopes[None],
        normalizer="entmax",
        scale=1.0 / math.sqrt(max(q.shape[-1], 1)),
        is_causal=terms.causal,
        causal_offset=terms.offset,
        dropout_p=0.0,
        dropout_seed=q.detach(),
        features=Features(bias=terms.masks.bias),
    )
    found = attention_scores(call, torch.promote_types(q.dtype, torch.float32))
    return found.masked, found.distance


def attention_weights(q: Tensor, k: Tensor, normalizer_fn: NormalizerFn, terms: ScoreTerms) -> Tensor:
    """Computes the weights (B, H, Lq, Lk) in at least float32, differentiable in q, k, the bias and the normalizer function."""
    has_autocast = torch.amp.is_autocast_available(q.device.type)
    with torch.autocast(q.device.type, enabled=False) if has_autocast else nullcontext():
        scores, distance = masked_scores(q, k, terms)
        allowed = scores.detach() != -math.inf
        # A row without keys is passed as zeros, so that the function's gradient there is not NaN.
        given = [scores.masked_fill(~allowed.any(-1, keepdim=True), 0.0)]
        if getattr(normalizer_fn, "uses_positions", False):
            given.append(distance)
        weights = normalizer_fn(*given)
        if not isinstance(weights, Tensor) or weights.shape != scores.shape:
            found = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ArgumentError(f"the normalizer must return weights of its scores' shape {tuple(scores.shape)}, not {found}.")
        return weights.masked_fill(~allowed, 0.0)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, terms: ScoreTerms, dropout: float = 0.0) -> Tensor:
    """Computes softmax attention by torch's scaled_dot_product_attention, the baseline of the benchmarks."""
    mask, allowed = terms.masks.one_mask(), terms.masks.keys
    allowed = None if allowed is None else allowed[:, None, None, :]
    is_causal = terms.causal and mask is None and allowed is None and terms.offset == 0
    # A lone query that follows all cached keys attends to them all.
    if terms.causal and not is_causal and (q.shape[2] > 1 or terms.offset + 1 < k.shape[2]):
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(terms.offset)
        allowed = seen if allowed is None else allowed & seen
    if allowed is not None:
        mask = (
            allowed if mask is None else mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)
        )
    dtype = q.dtype
    if dtype == torch.bfloat16 and q.device.type == "cpu" and torch.is_grad_enabled() and q.requires_grad:
        q, k, v = q.float(), k.float(), v.float()  # torch's backward pass of short bfloat16 rows takes five times as long
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal)
    return out.to(dtype)
