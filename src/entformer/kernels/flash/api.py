"""The door to attention. In: query, key, value as for scaled_dot_product_attention, and how scores become weights.

Here shapes and wishes are checked once and brought to the form the kernels take: four dimensions, alpha per (batch, head),
one boolean mask. Out: the output; on request the statistics of every row and the exact support.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels.flash import ops, reference
from entformer.kernels.impl import Impl, resolve
from entformer.kernels.rows import api as rows

NORMALIZERS = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0, "entmax": None, "rela": None}


class RowStats(NamedTuple):
    """What each row of attention did, (..., H, Lq) each."""

    support_size: Tensor  # how many keys have weight, int32
    entropy: Tensor  # -sum p ln p
    logsumexp: Tensor  # c with p = exp_e(score - c): logsumexp of the row at alpha = 1, else its generalisation; NaN for rela


class Support(NamedTuple):
    """The non-zero weights of all rows in compressed form: row r holds entries crow[r] to crow[r + 1]."""

    crow: Tensor  # (rows + 1,) int64, rows = B * H * Lq in order
    col: Tensor  # (nnz,) int32, the key
    weight: Tensor  # (nnz,)


class Attention(NamedTuple):
    """What `attention` returns when statistics or the support are asked for."""

    output: Tensor
    stats: RowStats | None
    support: Support | None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha: float | Tensor = 1.5,
    normalizer: str = "entmax",
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    causal_offset: int = 0,
    scale: float | None = None,
    enable_gqa: bool = False,
    alibi_slopes: Tensor | None = None,
    return_stats: bool = False,
    return_support: bool = False,
    impl: Impl = "auto",
) -> Tensor | Attention:
    """Attention whose weights are alpha-entmax of the scores: exact zeros, alpha learnable per head, no L x L matrix in memory.

    Arguments shared with `torch.nn.functional.scaled_dot_product_attention` mean what they mean there.

    Args:
        query, key, value: (..., H, L, E); with `enable_gqa`, key and value may have fewer heads.
        alpha: a number >= 1, a tensor (H,) or (B, H) or a scalar tensor; gradients flow to it.
        normalizer: "entmax" (reads `alpha`), "softmax", "entmax15", "sparsemax", or "rela" (weights max(score, 0)).
        attn_mask: boolean, True = may attend, or floating point, added to the scores (with gradient; takes the dense path).
        key_padding_mask: (B, Lk) boolean, True = may attend.
        is_causal: query i sees keys j <= i + causal_offset. With a cache of n earlier keys, causal_offset = n.
        alibi_slopes: (H,) or (B, H): adds -slope * |i + causal_offset - j| to the scores.
        return_stats, return_support: return an `Attention` with the statistics of each row, or the exact support as CSR.

    A query that may attend to nothing gives zeros and zero gradients.
    """
    if dropout_p < 0.0 or dropout_p >= 1.0:
        raise ArgumentError(f"dropout_p={dropout_p} must be at least 0 and below 1.")
    q, k, v = _four_dimensions(query, key, value, enable_gqa)
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    row_alpha = _alpha_per_head(alpha, normalizer, q)
    mask, bias = _masks(attn_mask, query, batch, heads, queries, keys)
    key_mask = _key_mask(key_padding_mask, batch, keys)
    slopes = None if alibi_slopes is None else _per_head(alibi_slopes, q, "alibi_slopes").to(torch.float32)
    scale = 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    seed = _draw_seed(dropout_p)

    why_dense = _why_dense(q, bias, slopes, keys)
    chosen = resolve(impl, q.device.type)
    if impl == "cpu" and why_dense:
        raise ImplUnavailable(f"impl='cpu' cannot serve this attention: {why_dense}; use impl='auto'.")
    rela = normalizer == "rela"
    if chosen == "cpu" and not why_dense:
        how = (scale, rela, is_causal, causal_offset)
        masks = (mask, key_mask, slopes)
        room = 6 * min(85, max(16, (keys + 1) // 2)) // 4 * 4 + 4  # bytes a row: half the keys, or 85, with weights
        out, state, count, entropy, _kept = ops.forward_with_gradient(
            q, k, v, row_alpha, *masks, *how, dropout_p, seed, return_stats, room
        )
        stats = RowStats(count, entropy, state.sum(-1)) if return_stats else None
        support = None
        if return_support:
            crow = torch.zeros(count.numel() + 1, dtype=torch.int64, device=q.device)
            torch.cumsum(count.flatten(), 0, out=crow[1:])
            with torch.no_grad():
                support = Support(crow, *ops.flash_support(q, k, row_alpha, *masks, state, crow, *how))
    else:
        exact = impl == "reference" or chosen == "reference"
        row_map = reference.rela if rela else partial(_entmax_rows, alpha=row_alpha, exact=exact)
        with torch.autocast(q.device.type, enabled=False):  # the dtype was settled above
            out, weights, scores = reference.attention(
                q,
                k,
                v,
                row_map,
                mask=mask,
                key_mask=key_mask,
                bias=bias,
                slopes=slopes,
                scale=scale,
                causal=is_causal,
                causal_offset=causal_offset,
                dropout=dropout_p,
                seed=seed,
                dtype=torch.float64 if (exact and q.device.type != "mps") or q.dtype == torch.float64 else torch.float32,
            )
        stats = _dense_stats(weights.detach(), scores.detach(), row_alpha) if return_stats else None
        support = _dense_support(weights.detach()) if return_support else None
    out = torch.reshape(out, (*query.shape[:-1], value.shape[-1]))
    if not (return_stats or return_support):
        return out
    if stats is not None:
        if rela:  # its weights are no exponential of anything
            stats = stats._replace(logsumexp=torch.full_like(stats.logsumexp, math.nan))
        stats = RowStats(*(t.reshape(query.shape[:-1]) for t in stats))
    return Attention(out, stats, support)


def _entmax_rows(scores: Tensor, alpha: Tensor, exact: bool) -> Tensor:
    return rows.entmax(scores, alpha[:, :, None, None], impl="reference" if exact else "auto")


def _why_dense(q: Tensor, bias: Tensor | None, slopes: Tensor | None, keys: int) -> str | None:
    """Why the fused kernel cannot serve, or None."""
    if bias is not None:
        return "a floating-point attn_mask needs the dense path"
    if slopes is not None and slopes.requires_grad:
        return "alibi_slopes that want a gradient need the dense path"
    if q.dtype == torch.float64:
        return "float64 is not fused"
    if keys == 0:
        return "there are no keys"
    if rows._forward_mode_active():
        return "forward-mode differentiation needs the dense path"
    return None


def _four_dimensions(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() < 2:
            raise ArgumentError(f"{name} must be a floating-point tensor (..., heads, length, size).")
        if t.device != query.device or t.dim() != query.dim():
            raise ArgumentError(f"query and {name} must agree in device and number of dimensions.")
    if query.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(query.device.type):
        narrow = torch.get_autocast_dtype(query.device.type)  # as scaled_dot_product_attention does
        query, key, value = (t if t.dtype == torch.float64 else t.to(narrow) for t in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        raise ArgumentError(f"query, key and value must have one dtype, not {query.dtype}, {key.dtype} and {value.dtype}.")
    q, k, v = (_with_batch(t) for t in (query, key, value))
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ArgumentError(
            f"shapes do not fit: query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}."
        )
    if q.shape[1] != k.shape[1] and not (enable_gqa and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0):
        advice = "the first must be a multiple of the second" if enable_gqa else "set enable_gqa=True to share key heads"
        raise ArgumentError(f"query has {q.shape[1]} heads and key {k.shape[1]}: {advice}.")
    return q, k, v


def _with_batch(t: Tensor) -> Tensor:
    """(L, E), (H, L, E) or (..., H, L, E) -> (B, H, L, E)."""
    if t.dim() < 4:
        return t[(None,) * (4 - t.dim())]
    return t.flatten(0, -4)


def _per_head(values: Tensor, q: Tensor, name: str) -> Tensor:
    batch, heads = q.shape[:2]
    if not isinstance(values, Tensor):
        raise ArgumentError(f"{name} must be a tensor, one value per head, not {type(values).__name__}.")
    if (
        values.dim() > 2
        or (values.dim() >= 1 and values.shape[-1] not in (1, heads))
        or (values.dim() == 2 and values.shape[0] not in (1, batch))
    ):
        raise ArgumentError(
            f"{name} must have shape ({heads},) or ({batch}, {heads}), one value per head; it has {tuple(values.shape)}."
        )
    return values.to(q.device).expand(batch, heads)


def _alpha_per_head(alpha: float | Tensor, normalizer: str, q: Tensor) -> Tensor:
    if normalizer not in NORMALIZERS:
        raise ArgumentError(f"normalizer={normalizer!r} is not known; choose one of {', '.join(NORMALIZERS)}.")
    fixed = 1.0 if normalizer == "rela" else NORMALIZERS[normalizer]
    dtype = torch.float64 if q.device.type != "mps" else torch.float32
    if fixed is not None:
        return torch.full(q.shape[:2], fixed, dtype=dtype, device=q.device)
    if not isinstance(alpha, Tensor):
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 1.0 <= alpha < math.inf:
            raise ArgumentError(f"alpha={alpha} must be a finite number of at least 1 in attention; 1 is softmax.")
        return torch.full(q.shape[:2], float(alpha), dtype=dtype, device=q.device)
    if not alpha.is_floating_point():
        raise ArgumentError(f"alpha must be a floating-point tensor or a number, not {alpha.dtype}.")
    if _surely_below_one(alpha):
        raise ArgumentError(
            f"alpha must be at least 1 in attention, the smallest given is {float(alpha.detach().min()):g}; use 1 + sigmoid(a)."
        )
    return _per_head(alpha, q, "alpha").to(dtype)


def _surely_below_one(alpha: Tensor) -> bool:
    """Looked at only where that is possible and cheap: not while tracing, not under vmap, not on a GPU it would stall."""
    if torch.compiler.is_compiling() or alpha.device.type != "cpu":
        return False
    try:
        return bool((alpha < 1.0).any())
    except RuntimeError:  # a batched tensor of torch.func.vmap has no single truth value
        return False


def _masks(
    attn_mask: Tensor | None, query: Tensor, batch: int, heads: int, queries: int, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """attn_mask as (boolean mask, additive bias), each (B, H, Lq, Lk), expanded, or None."""
    if attn_mask is None:
        return None, None
    if not isinstance(attn_mask, Tensor):
        raise ArgumentError(f"attn_mask must be a tensor, not {type(attn_mask).__name__}.")
    full = (*query.shape[:-2], queries, keys)
    try:
        expanded = attn_mask.expand(full)
    except RuntimeError:
        raise ArgumentError(f"attn_mask of shape {tuple(attn_mask.shape)} does not broadcast to {full}.") from None
    expanded = expanded if len(full) == 4 else expanded.reshape(batch, heads, queries, keys)
    if attn_mask.dtype == torch.bool:
        return expanded, None
    if not attn_mask.is_floating_point():
        raise ArgumentError(f"attn_mask must be boolean (True = may attend) or floating point (added), not {attn_mask.dtype}.")
    return None, expanded


def _key_mask(mask: Tensor | None, batch: int, keys: int) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ArgumentError("key_padding_mask must be boolean, True = may attend.")
    if mask.shape not in ((batch, keys), (1, keys), (keys,)):
        raise ArgumentError(f"key_padding_mask must have shape ({batch}, {keys}), not {tuple(mask.shape)}.")
    return mask.expand(batch, keys)


def _draw_seed(dropout_p: float) -> Tensor:
    """A fresh number from torch's generator, so that torch.manual_seed makes dropout repeatable."""
    if dropout_p == 0.0:
        return torch.zeros((), dtype=torch.int64)
    return torch.randint(2**62, (), dtype=torch.int64)


def _dense_stats(weights: Tensor, scores: Tensor, alpha: Tensor) -> RowStats:
    if weights.shape[-1] == 0:
        nothing = torch.zeros(weights.shape[:-1], device=weights.device)
        return RowStats(nothing.to(torch.int32), nothing, nothing - math.inf)
    entropy = -torch.where(weights > 0, weights * weights.clamp(min=1e-300).log(), 0.0).sum(-1)
    best, at = weights.max(-1)
    e = alpha[:, :, None] - 1.0
    log_best = best.clamp(min=1e-300).log()
    deformed_log = torch.where(e.abs() < 1e-12, log_best, torch.expm1(e * log_best) / torch.where(e.abs() < 1e-12, 1.0, e))
    return RowStats(
        (weights > 0).sum(-1, dtype=torch.int32),
        entropy.to(torch.float32),
        (scores.gather(-1, at[..., None]).squeeze(-1) - deformed_log).to(torch.float32),
    )


def _dense_support(weights: Tensor) -> Support:
    flat = weights.flatten(0, -2)
    inside = flat > 0
    crow = torch.zeros(flat.shape[0] + 1, dtype=torch.int64, device=flat.device)
    torch.cumsum(inside.sum(-1), 0, out=crow[1:])
    return Support(crow, inside.nonzero()[:, 1].to(torch.int32), flat[inside].to(torch.float32))
