"""Multi-head attention with the interface of torch.nn.MultiheadAttention.

    q, k, v = linear maps of the inputs, split into H heads              parameters and state_dict keys are torch's
    q, k    = rotated by their positions                                 rotary positions only (positions.py)
    q       = factor(x, n) q                                             ssmax and asentmax only (scaling.py)
    heads   = weights(q k^T / sqrt(head size) + bias) v                  fused, see kernels/attention; bias: ALiBi and NAPE only
    output  = W_o norm(concatenated heads) + b_o                         norm: ReLA only (rela.py)

`attn_mask` and `key_padding_mask` are those of torch.nn.MultiheadAttention: **True = ignore this key.** Everywhere else in
entformer, as in scaled_dot_product_attention, True = may attend.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.attention.elementwise import ELEMENTWISE
from entformer.kernels.checks import as_tensor
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.cache import HeadGroup, KeyValueCache, WindowedCache, unchanged_on_error
from entformer.nn.dense import attention_weights, dense_attention, sdpa_attention
from entformer.nn.execution_mode import is_plain, traced_as_leaf
from entformer.nn.hooks import AttentionHook, AttentionTrace
from entformer.nn.interop import TorchAttention, from_nested, to_nested
from entformer.nn.masks import Masks, ScoreTerms, convert_masks, dense_weights, packed_mask, sequence_starts
from entformer.nn.normalizers import get_normalizer, make_normalizer_fn, resolve_alpha
from entformer.nn.positions import Positions, Rotary, get_slopes
from entformer.nn.rela import make_output_norm, resolve_output_norm
from entformer.nn.scaling import make_scaling, row_length, scale_queries

__all__ = ["MultiheadAttention"]


class MultiheadAttention(TorchAttention):
    """torch.nn.MultiheadAttention whose heads may be sparse, each with its own learned alpha.

    The positional arguments, `forward` and the state_dict keys are torch's, and so are the outputs with `normalizer="softmax"`.
    Other normalizers may own more parameters (`alpha.*`, `norm.*`, `scaling.*`). A state dict of torch's module loads
    strictly all the same: these keep their values if nothing else is missing. `from_torch` copies one module, `convert`
    replaces every torch.nn.MultiheadAttention inside a model.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype: as in torch.
        normalizer: "entmax", "softmax", "rela", "asentmax", ... or "module:Name" of your own; see `nn/normalizers.py`.
        alpha: "learned" or a number >= 1, for "entmax" and "asentmax". None: learned for "entmax", 1.5 for "asentmax".
            A `LearnedAlpha` is shared with other layers: the module that created it registers it, this one does not.
        alpha_tied: learn one alpha per "head", or one for the "layer".
        alpha_init: "random", or the alpha to start from, between 1 and 2.
        alpha_parametrization: "projected", which needs `project_alphas` after every optimizer step, or the published "sigmoid".
        normalizer_options: of the normalizers that have some, such as {"k": 4} for "topk".
        output_norm: "none", "rms", "gated" or "init" (`nn/rela.py`); None: "gated" for "rela" and its kind, else none.
        output_norm_per_head: for each head alone. `rela_norm` and `rela_per_head` are the former names of the two.
        scaling: a name of `nn/scaling.py` or a module (x, n) -> factors of the queries; None: the normalizer's own.
        positions: "none", "rotary", "alibi", or "nape", which scales its heads without ALiBi alone; or a `Positions`.
        backend: "sdpa" computes softmax by torch's scaled_dot_product_attention, for comparison; "entformer" by our kernel.
        impl: as in `entformer.attention`.

    A function set as `hook` is called with the exact support, statistics, queries, keys and masks of every call
    (`AttentionTrace`). `alpha_override`, (H,), replaces alpha while it is set; see `models/override.py`.
    """

    hook: AttentionHook | None
    alpha_override: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        normalizer: str = "entmax",
        alpha: float | str | LearnedAlpha | None = None,
        alpha_tied: str = "head",
        alpha_init: float | str = "random",
        alpha_parametrization: str = "projected",
        normalizer_options: Mapping[str, Any] | None = None,
        output_norm: str | None = None,
        output_norm_per_head: bool = False,
        rela_norm: str | None = None,
        rela_per_head: bool = False,
        scaling: nn.Module | str | None = None,
        positions: str | Positions = "none",
        backend: str = "entformer",
        impl: Impl = "auto",
    ) -> None:
        for name, size in (("embed_dim", embed_dim), ("num_heads", num_heads)):
            if not hasattr(size, "__index__"):
                raise ArgumentError(f"{name} must be an integer, not {type(size).__name__}.")
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ArgumentError(f"embed_dim={embed_dim} must be a positive multiple of num_heads={num_heads}.")
        if not 0.0 <= dropout < 1.0:
            raise ArgumentError(f"dropout={dropout} must be at least 0 and below 1.")
        if alpha_tied not in ("head", "layer"):
            raise ArgumentError(f'alpha_tied={alpha_tied!r} is not known; choose "head" or "layer".')
        kind = (encoding := Positions.of(positions)).kind
        traits = get_normalizer(normalizer)
        placed = normalizer if traits.uses_positions and kind == "none" else kind  # what depends on positions of keys
        if placed != "none" and (add_bias_kv or add_zero_attn):
            raise ArgumentError(f"{placed!r} cannot go with add_bias_kv or add_zero_attn: such keys have no position.")
        if backend not in ("entformer", "sdpa"):
            raise ArgumentError(f'backend={backend!r} is not known; choose "entformer" or "sdpa".')
        if backend == "sdpa" and (normalizer not in ("softmax", "ssmax") or kind in ("alibi", "nape")):
            raise ArgumentError('backend="sdpa" computes softmax without ALiBi only; use backend="entformer".')
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.normalizer, self._placed = normalizer, placed
        self._kernel = traits.kernel or normalizer
        self.backend = backend
        self.impl: Impl = impl
        self.hook = self.alpha_override = None

        self.alpha: LearnedAlpha | float | None
        options = {"tied": alpha_tied == "layer", "init": alpha_init, "parametrization": alpha_parametrization}
        resolved = resolve_alpha(traits, alpha, num_heads, options)
        if isinstance(alpha, LearnedAlpha):
            self.__dict__["alpha"] = resolved  # used, not registered
        else:
            self.alpha = resolved
        chosen = resolve_output_norm(normalizer, traits.needs_output_norm, output_norm, rela_norm)
        self.norm = make_output_norm(chosen, embed_dim, num_heads, output_norm_per_head or rela_per_head)
        self.normalizer_fn = make_normalizer_fn(traits, num_heads, normalizer_options)
        scaling = traits.scaling if scaling is None else scaling
        self.scaling = make_scaling(scaling, embed_dim, num_heads) if isinstance(scaling, str) else scaling
        self.positions = kind
        self._encoding = encoding
        self.rotary = Rotary(self.head_dim, encoding.base) if kind == "rotary" else None
        for own in self.children():
            if own is not self.out_proj:
                own.to(device=device, dtype=dtype)

    @property
    def slopes(self) -> Tensor | None:
        """The ALiBi slopes of the heads, (H,) in float32; None without ALiBi and NAPE."""
        slopes = self._slopes(next(self.parameters()))
        return None if slopes is None else slopes.clone()

    def _slopes(self, like: Tensor) -> Tensor | None:
        return get_slopes(self._encoding, self.num_heads, like)

    @property
    def alphas(self) -> Tensor | None:
        """The current alpha of each head, (H,); None for ReLA and others that have none."""
        if self.alpha_override is not None:
            return self.alpha_override
        if isinstance(self.alpha, LearnedAlpha):
            return self.alpha.alpha
        return None if self.alpha is None else torch.full((self.num_heads,), self.alpha, device=next(self.parameters()).device)

    @traced_as_leaf
    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KeyValueCache | WindowedCache | None = None,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention. Without `need_weights` nothing of size Lq x Lk is stored, so set it False unless you need them.

        Args:
            query, key, value: (Lq, B, E) and (Lk, B, E), (B, L, E) with `batch_first`, (L, E) for one sequence.
            key_padding_mask: (B, Lk) or (Lk,). **True = ignore this key**; floating point is added to the scores.
            need_weights: return the weights too, before dropout (torch's are after it). Where gradients are enabled they are
                differentiable, so they can be supervised; they then take memory for all Lq x Lk pairs until backward.
            attn_mask: (Lq, Lk) or (B * H, Lq, Lk). **True = ignore**; floating point is added (a little slower,
                unless it holds nothing but 0 and -inf).
            average_attn_weights: weights (B, Lq, Lk), the mean of the heads, instead of (B, H, Lq, Lk).
            is_causal: query i attends to keys j <= i. As in torch this is a hint what `attn_mask` is, which is then not read;
                unlike torch, this module needs no `attn_mask` with it.
            cache: the keys and values of earlier tokens. `key` and `value` are appended to it, queries attend to all it holds
                (masks must be as long), and with `is_causal` query i is at position i + its length before. With key and
                value None, attend to what it holds: a memory projected once. A `WindowedCache` forgets keys that can have
                no weight; it supports causal self-attention, without weights, hooks or `attn_mask`.
            mask, key_mask: (B or 1, H or 1, Lq or 1, Lk) and (B, Lk), boolean, **True = may attend**, as in
                `entformer.attention`.
            cu_seqlens: (n + 1,) int32: the one row of causal self-attention holds n packed sequences, of which each attends
                to itself only (see `entformer.attention`). Not with a cache or another mask.

        Returns:
            The output in the layout of `query`, and the weights or None. A query that may attend to nothing gets zeros before
            the output projection, where torch gives NaN. Nested tensors (B, lengths, size), as nn.TransformerEncoder makes of
            padded batches, give a nested output. If a call raises, `cache` is unchanged.
        """
        for name, given in (("query", query), ("key", key), ("value", value)):
            if given is not None and not hasattr(given, "is_nested"):
                raise ArgumentError(f"{name} must be a tensor, not {type(given).__name__}{as_tensor(name, given)}.")
        if query.is_nested:
            unmasked = attn_mask is None and key_padding_mask is None and mask is None and key_mask is None and cache is None
            padded, key_mask = from_nested(query, key, value, self.batch_first, unmasked)
            result, weights = MultiheadAttention.forward(
                self, *padded, None, need_weights, None, average_attn_weights, is_causal, key_mask=key_mask
            )
            return to_nested(result, query), weights
        self._check_inputs(query, key, value, is_causal, self._placed)
        if cu_seqlens is not None and (self.normalizer_fn is not None or self.backend == "sdpa" or need_weights):
            mask, is_causal = packed_mask(cu_seqlens, query.shape[1]), False  # these take masks only
            cu_seqlens = None
        x = self._batch_first(query)  # (B, Lq, E)
        q, k, v = self._project(x, query, key, value)  # (B, H, L, head size)
        past = 0 if cache is None else cache.length
        if self.rotary is not None and k is not None:
            q, k = self.rotary(q, past), self.rotary(k, past)
        observed = need_weights or self.hook is not None or self.alpha_override is not None
        if isinstance(cache, WindowedCache) and (k is None or not is_causal or observed):
            raise ArgumentError(
                "WindowedCache supports causal self-attention only. Set need_weights=False and remove the attention hook and "
                "alpha overrides."
            )
        extra = (self.bias_k is not None) + self.add_zero_attn
        batch, heads, queries, _ = q.shape
        keys = past + extra + (0 if k is None else k.shape[2])
        masks = convert_masks(
            None if is_causal else attn_mask,
            key_padding_mask,
            mask=mask,
            key_mask=key_mask,
            batch=batch,
            heads=heads,
            queries=queries,
            keys=keys - extra,
            extra=extra,
        )
        terms = ScoreTerms(masks, self._slopes(q), is_causal, past + extra, cu_seqlens)
        if self.scaling is not None:
            offset = terms.offset if is_causal else None
            length = row_length(queries, keys, causal_offset=offset, key_mask=masks.keys, mask=masks.visible(), device=q.device)
            if cu_seqlens is not None:
                length = length - sequence_starts(cu_seqlens, queries)
            q = scale_queries(q, self.scaling(x, length), terms.slopes if self.positions == "nape" else None)
        weights = None
        with nullcontext() if cache is None else unchanged_on_error(cache):
            if isinstance(cache, WindowedCache) and k is not None and v is not None:
                out = torch.empty_like(q)
                for group in cache.append(k, v):
                    out[:, group.heads] = self._attend_group(q[:, group.heads], group, terms)
            else:
                if isinstance(cache, KeyValueCache):
                    k, v = cache.views() if k is None or v is None else cache.append(k, v)
                if k is None or v is None:
                    raise ArgumentError("key and value may be None only with a cache that holds a memory.")
                k, v = self._with_extra_keys(k, v) if extra else (k, v)  # in front, before the causal limit of every row
                found = self._attend(q, k, v, terms, need_weights)
                out = found.output
                if need_weights:
                    weights = self._weights(found, q, k, terms, average_attn_weights, extra)
            joined = out.transpose(1, 2).flatten(2)  # (B, Lq, E)
            result = self.out_proj(joined if self.norm is None else self.norm(joined))
        if query.dim() == 2:
            return result[0], None if weights is None else weights[0]
        return result if self.batch_first else result.transpose(0, 1), weights

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        terms: ScoreTerms,
        need_weights: bool = False,
        heads: Tensor | slice | None = None,
    ) -> Attention:
        """Computes attention of all heads, or of some `heads` whose slopes `terms` has, and calls the hook."""
        dropout = self.dropout if self.training else 0.0
        trace = self.hook is not None or (need_weights and not self._needs_dense_weights(q, k, terms.masks))
        if self.normalizer_fn is not None:
            found = dense_attention(q, k, v, self.normalizer_fn, terms, dropout=dropout, trace=trace)
        elif self.backend == "sdpa" and not trace and self.alpha_override is None:
            found = Attention(sdpa_attention(q, k, v, terms, dropout), None, None)
        else:
            alpha = self._alpha()
            output = attention(
                q,
                k,
                v,
                alpha=alpha[heads] if isinstance(alpha, Tensor) and heads is not None else alpha,
                normalizer=self._kernel if self.alpha_override is None else "entmax",
                attn_mask=terms.masks.one_mask(),
                key_mask=terms.masks.keys,
                dropout_p=dropout,
                is_causal=terms.causal,
                causal_offset=terms.offset,
                alibi_slopes=terms.slopes,
                cu_seqlens_q=terms.cu_seqlens,
                cu_seqlens_k=terms.cu_seqlens,
                return_stats=trace and self.hook is not None,
                return_support=trace,
                impl=self.impl,
            )
            found = output if isinstance(output, Attention) else Attention(output, None, None)
        if self.hook is not None and found.support is not None and found.stats is not None:
            call = (q.detach(), k.detach(), terms.masks, terms.causal, terms.offset)
            support = found.support._replace(weight=found.support.weight.detach())
            alphas = self.alphas
            self.hook(AttentionTrace(support, found.stats, *call, None if alphas is None else alphas.detach().clone()))
        return found

    def _alpha(self) -> float | Tensor:
        """Returns alpha as `attention` takes it: a number, or (H,)."""
        alpha = self.alpha if self.alpha_override is None else self.alpha_override
        return alpha() if isinstance(alpha, LearnedAlpha) else 1.5 if alpha is None else alpha

    def _needs_dense_weights(self, q: Tensor, k: Tensor, masks: Masks) -> bool:
        """Whether weights come from the dense computation: a support has no gradient, and its size depends on values."""
        bias, learned = masks.bias, isinstance(self.alpha, LearnedAlpha) or self.normalizer_fn is not None
        needs_grad = q.requires_grad or k.requires_grad or learned or (bias is not None and bias.requires_grad)
        return (torch.is_grad_enabled() and needs_grad) or not is_plain(q)

    def _weights(self, found: Attention, q: Tensor, k: Tensor, terms: ScoreTerms, average: bool, extra: int) -> Tensor:
        """Returns the weights (B, Lq, Lk), or (B, H, Lq, Lk); extra keys at the end, as torch has them."""
        if found.support is not None and not self._needs_dense_weights(q, k, terms.masks):
            shape = (*q.shape[:3], k.shape[2])
            return dense_weights(found.support, shape, extra, average).to(q.dtype)
        normalizer_fn = self.normalizer_fn
        if normalizer_fn is None and self.alpha_override is None and self._kernel in ELEMENTWISE:
            normalizer_fn = ELEMENTWISE[self._kernel].weights
        elif normalizer_fn is None:
            alpha = self._alpha()
            alpha_dim = 1 if isinstance(alpha, Tensor) else None
            normalizer_fn = lambda scores: entmax(scores, alpha, alpha_dim=alpha_dim)  # noqa: E731
        weights = attention_weights(q, k, normalizer_fn, terms).to(q.dtype)
        weights = weights.roll(-extra, -1) if extra else weights
        return weights.mean(1) if average else weights

    def _attend_group(self, q: Tensor, group: HeadGroup, terms: ScoreTerms) -> Tensor:
        """Computes causal attention of a group of heads to the keys it still holds."""
        held = group.keys.shape[2]
        masks = Masks(None, None if terms.masks.keys is None else terms.masks.keys[:, -held:], None)
        slopes = None if terms.slopes is None else terms.slopes[group.heads]
        own = ScoreTerms(masks, slopes, True, held - q.shape[2])
        return self._attend(q, group.keys, group.values, own, heads=group.heads).output

    def extra_repr(self) -> str:
        alpha = "" if self.alpha is None or isinstance(self.alpha, LearnedAlpha) else f", alpha={self.alpha}"
        return f"{self.embed_dim}, {self.num_heads}, normalizer={self.normalizer}{alpha}, batch_first={self.batch_first}"
