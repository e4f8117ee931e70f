"""The function `attention`: scaled_dot_product_attention with alpha-entmax weights."""

import math
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from entformer.errors import ImplUnavailable
from entformer.kernels import checks
from entformer.kernels.attention import arguments, ops, options, reference, sdpa
from entformer.kernels.attention.elementwise import ELEMENTWISE
from entformer.kernels.attention.plain import plain_attention
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl, dense_dtype, exporting_to_onnx, load_implementations, resolve, warn_once

IMPLEMENTATIONS = load_implementations("attention")
attention_scores = reference.scores  # for normalizers without a kernel (nn/dense.py)


class RowStats(NamedTuple):
    """Statistics of each row of attention, (..., H, Lq) each."""

    support_size: Tensor  # how many keys have nonzero weight, int32
    entropy: Tensor  # -sum p ln p
    logsumexp: (
        Tensor  # c with p = exp_e(score - c): logsumexp of the row at alpha = 1, its generalization else; NaN for rela, sigmoid
    )


class Support(NamedTuple):
    """The non-zero weights of all rows in compressed form: row r holds entries crow[r] to crow[r + 1]."""

    crow: Tensor  # (rows + 1,) int64, rows = B * H * Lq in order
    col: Tensor  # (nnz,) int32, the key
    weight: Tensor  # (nnz,), differentiable


class Attention(NamedTuple):
    """The result of `attention` with `return_stats` or `return_support`."""

    output: Tensor
    stats: RowStats | None
    support: Support | None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alpha: float | Tensor = 1.5,
    normalizer: str = "entmax",
    key_mask: Tensor | None = None,
    causal_offset: int = 0,
    alibi_slopes: Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    sigmoid_bias: float | None = None,
    return_stats: bool = False,
    return_support: bool = False,
    impl: Impl = "auto",
    key_padding_mask: Tensor | None = None,
) -> Tensor | Attention:
    """Computes attention with alpha-entmax weights: exact zeros, alpha learnable per head, no L x L matrix in memory.

    The first eight arguments are those of `torch.nn.functional.scaled_dot_product_attention`, in its order, and mean what
    they mean there: batch, heads and rank are broadcast, and the output has the memory layout of the query.

    Args:
        query, key, value: (..., H, L, E), float16, bfloat16, float32 or float64.
        attn_mask: boolean, True = may attend; or floating point, added to the scores, with a gradient of its own shape; or
            `torch.nn.attention.bias.causal_upper_left` / `causal_lower_right`. Elements of a float mask that are -inf or
            the lowest number of a dtype (`torch.finfo(dtype).min`) exclude the pair; a float mask of nothing but those and
            zeros is as fast as a boolean one.
        dropout_p: probability that a weight is dropped, from 0 to 1. There is no training flag: pass 0 in evaluation.
        is_causal: query i attends to keys j <= i + causal_offset. Unlike there, it may be combined with a mask.
        scale: a number; 1 / sqrt(E) by default. For a learned scale multiply the query and pass 1.0.
        enable_gqa: key and value may have fewer heads, which groups of query heads share.
        alpha: a number >= 1, a tensor (H,) or (B, H) or a scalar tensor; gradients flow to it.
        normalizer: "entmax" (reads `alpha`), "softmax", "entmax15", "sparsemax", "rela" (weights max(score, 0)) or "sigmoid"
            (weights sigmoid(score + sigmoid_bias)).
        key_mask: (B, Lk) or (Lk,) boolean, True = may attend.
        causal_offset: with a cache of n earlier keys, causal_offset = n.
        alibi_slopes: (H,) or (B, H): adds -slope * |i + causal_offset - j| to the scores.
        window: (left, right): query i attends to keys i + causal_offset - left <= j <= i + causal_offset + right only. None
            for a side is unlimited. With `is_causal`, right is 0 at most.
        softcap: scaled scores s become softcap * tanh(s / softcap), before attn_mask and ALiBi are added.
        sinks: (H,) or (B, H): the score of one more key per head, which takes its part of the weights and has no value. It is
            neither scaled nor capped; gradients flow to it. Zeros with alpha = 1 give softmax1.
        cu_seqlens_q, cu_seqlens_k: (n + 1,) int32: query (1, H, total, E), key and value hold n sequences one after the
            other; sequence s is [cu_seqlens[s], cu_seqlens[s + 1]). Queries attend to keys of their own sequence, and positions
            begin at 0 in each.
        sigmoid_bias: for "sigmoid"; -log(number of keys that the query may attend to) by default.
        return_stats, return_support: return an `Attention` with the statistics of each row, or the exact support as CSR, whose
            weights are differentiable.
        impl: "auto", "reference", "cpu" or "triton".
        key_padding_mask: the old name of `key_mask`. Here True = may attend, the opposite of
            `torch.nn.MultiheadAttention`'s argument of this name, so it emits a FutureWarning.

    Returns:
        The output (..., H, Lq, Ev), or an `Attention`. A query that may attend to nothing gets zeros and zero gradients.

    Raises:
        ArgumentError: for arguments that do not fit.
        ImplUnavailable: where `impl` names an implementation that does not support the call.
    """
    if (  # one by one: a loop takes longer than the kernels of a short sentence
        attn_mask is None
        and key_padding_mask is None
        and alibi_slopes is None
        and window is None
        and softcap is None
        and sinks is None
        and cu_seqlens_q is None
        and cu_seqlens_k is None
        and sigmoid_bias is None
        and type(dropout_p) is float
        and dropout_p == 0.0
        and type(causal_offset) is int
        and causal_offset == 0
        and normalizer == "entmax"
        and impl == "auto"
        and not (return_stats or return_support or has_torch_function((query, key, value, alpha)))
    ):
        output = plain_attention(query, key, value, is_causal, scale, alpha, key_mask)
        if output is not None:
            return output
    offset = arguments.causal_bias(attn_mask, query, key, is_causal, causal_offset, packed=cu_seqlens_q is not None)
    if offset is not None:
        attn_mask, is_causal, causal_offset = None, True, offset
    tensors = (query, key, value, attn_mask, key_mask, key_padding_mask, alpha, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k)
    if has_torch_function(tensors):  # torch.fx proxies, tensor subclasses
        return handle_torch_function(
            attention,
            tensors,
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            alpha=alpha,
            normalizer=normalizer,
            key_mask=key_mask,
            causal_offset=causal_offset,
            alibi_slopes=alibi_slopes,
            window=window,
            softcap=softcap,
            sinks=sinks,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            sigmoid_bias=sigmoid_bias,
            return_stats=return_stats,
            return_support=return_support,
            impl=impl,
            key_padding_mask=key_padding_mask,
        )
    dropout_p = checks.check_probability("dropout_p", dropout_p)
    causal_offset = checks.check_offset("causal_offset", causal_offset)
    q, k, v, lead = arguments.four_dimensions(query, key, value, enable_gqa)
    keys = k.shape[2]
    used_alpha = arguments.alpha_of(normalizer, alpha, q.device)
    # ops.EagerAttention gives `used_alpha` its gradient: the conversion need not be differentiable.
    values = used_alpha.detach() if isinstance(used_alpha, Tensor) and checks.runs_once() else used_alpha
    row_alpha = arguments.alpha_per_head(values, q)
    mask, bias = arguments.mask_and_bias(attn_mask, lead, q, keys)
    allowed_keys = arguments.key_mask_of(key_mask, key_padding_mask, q, keys)
    slopes = None if alibi_slopes is None else arguments.per_head(alibi_slopes, q, "alibi_slopes", torch.float32)
    features = arguments.Features(
        bias,
        options.sinks_of(sinks, q, normalizer),
        *options.packed_lengths(cu_seqlens_q, cu_seqlens_k, q, k),
        *options.window_of(window),
        options.softcap_of(softcap),
        options.sigmoid_bias_of(sigmoid_bias, normalizer),
    )
    drop_all = dropout_p == 1.0
    dropout_p = 0.0 if drop_all else dropout_p
    call = arguments.Call(
        q,
        k,
        v,
        row_alpha,
        mask,
        allowed_keys,
        slopes,
        ELEMENTWISE[normalizer].operator if normalizer in ELEMENTWISE else "entmax",
        arguments.scale_of(scale, q.shape[-1]),
        is_causal,
        causal_offset,
        dropout_p,
        _draw_seed(dropout_p, q.device),
        features,
    )
    chosen = resolve(impl, q.device.type)
    unsupported = None if chosen == "reference" else IMPLEMENTATIONS[chosen].unsupported(call)
    if impl == chosen and unsupported:
        raise ImplUnavailable(f"impl={impl!r} does not support {unsupported}; use impl='auto', which materializes the scores.")
    support = None
    if return_support:
        _check_support_can_be_sized(q, k)
    fused = chosen != "reference" and not unsupported and not exporting_to_onnx()
    if fused and impl == "auto" and not (return_stats or return_support) and sdpa.suits(call, used_alpha):
        out = sdpa.softmax_attention(call)
    elif fused:
        call = IMPLEMENTATIONS[chosen].specialized(call, used_alpha)
        out, row_max, threshold, support_size, entropy, _reserve = ops.attention_with_gradient(call, used_alpha, return_stats)
        if return_support:
            crow = F.pad(support_size.flatten().cumsum(0), (1, 0))
            learned = arguments.alpha_per_head(used_alpha, q)
            inputs = (q, k, learned, *call[4:7], row_max, threshold, crow, *call[7:11], *features)  # masks as in the call above
            support = Support(crow, *ops.support_with_gradient(*inputs))
    else:
        if unsupported and keys > 0:
            message = f"entformer.attention materializes the scores (L x L): the fused kernel does not support {unsupported}."
            warn_once(message, stacklevel=3)
        exact = impl == "reference"
        if normalizer in ELEMENTWISE:
            normalizer_fn = partial(ELEMENTWISE[normalizer].weights, bias=features.sigmoid_bias)
        else:
            normalizer_fn = partial(_entmax, alpha=used_alpha, q=q, impl="reference" if exact else "auto")
        has_autocast = torch.amp.is_autocast_available(q.device.type)
        with torch.autocast(q.device.type, enabled=False) if has_autocast else nullcontext():  # the dtype was chosen above
            dense = reference.dense_attention(call, normalizer_fn, dense_dtype(q.dtype, q.device.type, exact=exact))
        out = dense.output
        if return_stats:
            with torch.no_grad():
                row_max, threshold, support_size, entropy = reference.row_state(call, dense)
        support = Support(*reference.to_csr(dense.weights)) if return_support else None
    if drop_all:
        out = torch.where(torch.zeros((), dtype=torch.bool, device=out.device), out, 0.0)  # zeros that have a gradient
    if len(lead) != 2:
        out = torch.reshape(out, (*lead, *out.shape[-2:]))
    out = arguments.laid_out_like(query, out)
    if not (return_stats or return_support):
        return out
    stats = None
    if return_stats:
        logsumexp = (row_max + threshold).to(torch.float32)
        if normalizer in ELEMENTWISE:  # their weights are no exponentials of anything
            logsumexp = torch.full_like(logsumexp, math.nan)
        stats = RowStats(*(t.reshape(out.shape[:-1]) for t in (support_size, entropy, logsumexp)))
    return Attention(out, stats, support)


def _entmax(scores: Tensor, alpha: float | Tensor, q: Tensor, impl: Impl) -> Tensor:
    """A number is passed on as one: exporters specialize on it."""
    rows = alpha if isinstance(alpha, float) else arguments.alpha_per_head(alpha, q)[:, :, None, None]
    return entmax(scores, rows, impl=impl)


def _check_support_can_be_sized(q: Tensor, k: Tensor) -> None:
    """The number of nonzero weights depends on values, which neither vmap nor a meta tensor has."""
    if q.is_meta or checks.batched_by_vmap(q, k):
        where = "a meta tensor" if q.is_meta else "torch.func.vmap"
        raise ImplUnavailable(
            f"the support has no fixed size under {where}: use return_support=False (need_weights=False in a module)."
        )


def _draw_seed(dropout_p: float, device: torch.device) -> Tensor:
    """A fresh number from torch's generator, so that torch.manual_seed makes dropout repeatable."""
    if dropout_p == 0.0:
        return arguments.constant((), 0, torch.int64, device)
    return torch.randint(2**62, (), dtype=torch.int64, device=device)
