"""Multi-head attention with the face of torch.nn.MultiheadAttention. In: query, key, value. Out: (output, weights or None).

    q, k, v = linear maps of the inputs, split into H heads              parameters and state_dict keys are torch's
    q, k    = turned by their places                                     rotary positions only (positions.py)
    q       = factor(x, n) q                                             ssmax and asentmax only (scaling.py)
    heads   = weights(q k^T / sqrt(head size) + bias) v                  fused, see kernels/flash; bias: ALiBi and NAPE only
    output  = W_o norm(concatenated heads) + b_o                         norm: ReLA only (rela.py)

MASKS HERE HAVE THE SENSE OF torch.nn.MultiheadAttention: **True = ignore this key.** Everywhere else in entformer, as in
scaled_dot_product_attention, True = may attend. A floating-point mask is added to the scores.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.kernels.flash.api import Attention, attention
from entformer.kernels.impl import Impl
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.cache import KeyValueCache
from entformer.nn.dense import mapped_attention
from entformer.nn.inputs import check_inputs
from entformer.nn.masks import Masks, dense_weights, masks_of_torch
from entformer.nn.normalizers import alpha_of, normalizer_fn_of, normalizer_of
from entformer.nn.positions import Positions, Rotary, slopes_of
from entformer.nn.rela import chosen_output_norm, output_norm_of
from entformer.nn.scaling import row_length, scale_queries, scaling_of
from entformer.nn.sdpa import softmax_attention
from entformer.nn.watch import Watched, Watcher
from entformer.nn.window import HeadPart, WindowedCache, attend_in_parts

__all__ = ["MultiheadAttention"]


class MultiheadAttention(nn.Module):
    """torch.nn.MultiheadAttention whose heads may be sparse, each with its own learned alpha.

    The positional arguments, `forward` and the state_dict keys are torch's. With `normalizer="softmax"` its state dicts load
    strictly and outputs agree; other normalisers may own more parameters (`alpha.pre_alpha`, `norm.*`, `scaling.*`), so use
    `from_torch`, or `load_state_dict(..., strict=False)`, which reports exactly these as missing.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype: as in torch.
        normalizer: "entmax", "softmax", "rela", "asentmax", ... or "module:Name" of your own; see `nn/normalizers.py`.
        alpha: "learned" or a number >= 1, for "entmax" and "asentmax". None: learned for "entmax", 1.5 for "asentmax".
            A `LearnedAlpha` is shared with other layers: whoever made it registers it, this module only uses it.
        alpha_tied: learn one alpha per "head", or one for the "layer".
        alpha_init: "random", or the alpha to start from, strictly between 1 and 2.
        normalizer_options: of the normalizers that have some, such as {"k": 4} for "topk".
        output_norm: "none", "rms", "gated" or "init" (`nn/rela.py`); None: "gated" for "rela" and its kind, else none.
        output_norm_per_head: for each head alone. `rela_norm` and `rela_per_head` are the former names of the two.
        scaling: a name of `nn/scaling.py` or a module (x, n) -> factors of the queries; None: what the normaliser brings.
        positions: "none", "rotary", "alibi", or "nape", which scales its heads without ALiBi alone; or a `Positions`.
        backend: "sdpa" computes softmax by torch's scaled_dot_product_attention, for comparison; "entformer" by our kernel.
        impl: as in `entformer.attention`.

    A `watcher` that is set is handed the exact support, the statistics, queries, keys and masks of every call (`Watched`).
    `alpha_override`, (H,), stands in for alpha while it is set; `models/override.py` sets it for a while and clears it.
    """

    watcher: Watcher | None
    alpha_override: Tensor | None
    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

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
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ArgumentError(f"embed_dim={embed_dim} must be a positive multiple of num_heads={num_heads}.")
        if not 0.0 <= dropout < 1.0:
            raise ArgumentError(f"dropout={dropout} must be at least 0 and below 1.")
        if alpha_tied not in ("head", "layer"):
            raise ArgumentError(f'alpha_tied={alpha_tied!r} is not known; choose "head" or "layer".')
        kind = (places := Positions.of(positions)).kind
        traits = normalizer_of(normalizer)
        placed = normalizer if traits.uses_positions and kind == "none" else kind  # who needs to know where keys stand
        if placed != "none" and (add_bias_kv or add_zero_attn):
            raise ArgumentError(f"{placed!r} cannot go with add_bias_kv or add_zero_attn: such keys have no place.")
        if backend not in ("entformer", "sdpa"):
            raise ArgumentError(f'backend={backend!r} is not known; choose "entformer" or "sdpa".')
        if backend == "sdpa" and (normalizer not in ("softmax", "ssmax") or kind in ("alibi", "nape")):
            raise ArgumentError('backend="sdpa" computes softmax without ALiBi only; use backend="entformer".')
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.add_zero_attn = add_zero_attn
        self.normalizer, self._placed = normalizer, placed
        self.backend = backend
        self.impl: Impl = impl
        self.watcher = self.alpha_override = None
        # torch.nn.TransformerEncoderLayer reads this to see whether it may skip our forward and compute softmax by itself.
        self._qkv_same_embed_dim = False

        place: dict[str, Any] = {"device": device, "dtype": dtype}
        packed = self.kdim == embed_dim and self.vdim == embed_dim
        shapes = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if packed else None,
            "q_proj_weight": None if packed else (embed_dim, embed_dim),
            "k_proj_weight": None if packed else (embed_dim, self.kdim),
            "v_proj_weight": None if packed else (embed_dim, self.vdim),
            "in_proj_bias": (3 * embed_dim,) if bias else None,
            "bias_k": (1, 1, embed_dim) if add_bias_kv else None,
            "bias_v": (1, 1, embed_dim) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape, **place)))
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **place)
        self._reset_projections()

        self.alpha: LearnedAlpha | float | None
        if isinstance(alpha, LearnedAlpha):
            self.__dict__["alpha"] = alpha_of(traits, alpha, num_heads)  # used, not registered
        else:
            self.alpha = alpha_of(traits, alpha, num_heads, tied=alpha_tied == "layer", init=alpha_init)
        chosen = chosen_output_norm(normalizer, traits.needs_output_norm, output_norm, rela_norm)
        self.norm = output_norm_of(chosen, embed_dim, num_heads, output_norm_per_head or rela_per_head)
        self.row_map = normalizer_fn_of(traits, num_heads, normalizer_options)
        scaling = traits.scaling if scaling is None else scaling
        self.scaling = scaling_of(scaling, embed_dim, num_heads) if isinstance(scaling, str) else scaling
        self.positions = kind
        self.rotary = Rotary(self.head_dim, places.base) if kind == "rotary" else None
        self.register_buffer("slopes", slopes_of(places, num_heads), persistent=False)  # (H,) or None
        self.slopes: Tensor | None
        for own in self.children():
            if own is not self.out_proj:
                own.to(device=device, dtype=dtype)
        if self.slopes is not None:
            self.slopes = self.slopes.to(device)

    def reset_parameters(self) -> None:
        """Start again: projections as torch does, then what the normaliser owns."""
        self.out_proj.reset_parameters()
        self._reset_projections()
        for own in self.children():
            if own is not self.out_proj and callable(reset := getattr(own, "reset_parameters", None)):
                reset()

    def _reset_projections(self) -> None:
        """torch's starting values, drawn in its order: one seed gives both modules the same weights."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> Self:
        """A copy of a torch module with our options: `MultiheadAttention.from_torch(layer.self_attn, normalizer="entmax")`."""
        ours = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            module.out_proj.weight.device,
            module.out_proj.weight.dtype,
            **options,
        )
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                ours.get_parameter(name).copy_(parameter).requires_grad_(parameter.requires_grad)
        return ours.train(module.training)

    @property
    def alphas(self) -> Tensor | None:
        """The alpha of each head now, (H,); None for ReLA and others that have none."""
        if self.alpha_override is not None:
            return self.alpha_override
        if isinstance(self.alpha, LearnedAlpha):
            return self.alpha.alpha
        return None if self.alpha is None else torch.full((self.num_heads,), self.alpha, device=self.out_proj.weight.device)

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
    ) -> tuple[Tensor, Tensor | None]:
        """Attend. Without `need_weights` nothing of size Lq x Lk is stored; set it False unless you read the weights.

        Args:
            query, key, value: (Lq, B, E) and (Lk, B, E), (B, L, E) with `batch_first`, (L, E) for one sequence.
            key_padding_mask: (B, Lk) or (Lk,). **True = ignore this key**; floating point is added to the scores.
            need_weights: return the weights too, as numbers: before dropout, and no gradient flows through them.
            attn_mask: (Lq, Lk) or (B * H, Lq, Lk). **True = ignore**; floating point is added (and takes the dense path,
                unless it holds nothing but 0 and -inf).
            average_attn_weights: weights (B, Lq, Lk), the mean of the heads, instead of (B, H, Lq, Lk).
            is_causal: query i sees keys j <= i. As in torch this says what `attn_mask` is, which is then not looked at;
                unlike torch, `attn_mask` may be left out.
            cache: the keys and values of earlier tokens. `key` and `value` are appended to it, queries see all it holds
                (masks must be as long), and with `is_causal` query i is at position i + its length before. With key and
                value None, attend to what it holds: a memory projected once. A `WindowedCache` forgets keys that can have
                no weight; it serves causal self-attention, without weights, watchers or `attn_mask`.

        A query that may attend to nothing gets zeros before the output map, where torch gives NaN.
        """
        sizes = (self.embed_dim, self.kdim, self.vdim)
        batched = check_inputs(query, key, value, is_causal, sizes=sizes, positions=self._placed, batch_first=self.batch_first)
        x = self._batch_first(query)  # (B, Lq, E)
        q, k, v = self._project(x, query, key, value)  # (B, H, L, head size)
        offset = 0 if cache is None else cache.length
        if self.rotary is not None and k is not None:
            q, k = self.rotary(q, offset), self.rotary(k, offset)
        parts: list[HeadPart] | None = None
        if isinstance(cache, WindowedCache):
            looked_at = need_weights or self.watcher is not None
            if k is None or v is None or not is_causal or looked_at or self.alpha_override is not None:
                raise ArgumentError("a WindowedCache serves causal self-attention without weights, watchers and overrides.")
            parts = cache.append(k, v)
        elif cache is not None:
            k, v = cache.views() if k is None or v is None else cache.append(k, v)
        if k is None or v is None:
            raise ArgumentError("key and value may be None only with a cache that holds a memory.")
        extra = (self.bias_k is not None) + self.add_zero_attn
        if extra:  # at the front, where causal rows of any offset see them
            k, v = self._with_extra_keys(k, v)
            offset += extra
        batch, heads, queries, _ = q.shape
        keys = k.shape[2] if parts is None else offset + k.shape[2]
        sizes_of_masks = {"batch": batch, "heads": heads, "queries": queries, "keys": keys - extra, "extra": extra}
        masks = masks_of_torch(None if is_causal else attn_mask, key_padding_mask, **sizes_of_masks)
        if self.scaling is not None:
            sight = {"causal_offset": offset if is_causal else None, "key_mask": masks.keys, "mask": masks.visible()}
            length = row_length(queries, keys, device=q.device, **sight)  # type: ignore[arg-type]
            q = scale_queries(q, self.scaling(x, length), self.slopes if self.positions == "nape" else None)
        weights = None
        if parts is not None:
            out = attend_in_parts(q, parts, lambda some, part: self._attend_part(some, part, masks))
        else:
            found = self._attend(q, k, v, masks, is_causal, offset, need_weights or self.watcher is not None)
            out = found.output
            if found.support is not None:
                if self.watcher is not None and found.stats is not None:
                    self.watcher(Watched(found.support, found.stats, q.detach(), k.detach(), masks, is_causal, offset))
                if need_weights:
                    shape = (batch, heads, queries, keys)
                    weights = dense_weights(found.support, shape, extra, average_attn_weights).to(q.dtype)
        joined = out.transpose(1, 2).flatten(2)  # (B, Lq, E)
        result = self.out_proj(joined if self.norm is None else self.norm(joined))
        if not batched:
            return result[0], None if weights is None else weights[0]
        return result if self.batch_first else result.transpose(0, 1), weights

    def _batch_first(self, t: Tensor) -> Tensor:
        """(B, L, size) of an input in any layout."""
        return t[None] if t.dim() == 2 else t if self.batch_first else t.transpose(0, 1)

    def _project(
        self, x: Tensor, query: Tensor, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Heads of q, k and v, (B, H, L, head size); one product where inputs are one tensor and weights are packed."""
        size, packed, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if packed is not None and query is key and key is value:
            q, k, v = F.linear(x, packed, bias).chunk(3, -1)
            return self._heads(q), self._heads(k), self._heads(v)
        weight = self.q_proj_weight if packed is None else packed[:size]
        q = self._heads(F.linear(x, weight, None if bias is None else bias[:size]))  # type: ignore[arg-type]  # one is there
        if key is None or value is None:
            return q, None, None
        return q, *self._project_memory(key, value)

    def _project_memory(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        size, packed, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if packed is not None and key is value:
            k, v = F.linear(self._batch_first(key), packed[size:], None if bias is None else bias[size:]).chunk(2, -1)
        else:
            w_k, w_v = (self.k_proj_weight, self.v_proj_weight) if packed is None else packed[size:].chunk(2)
            b_k, b_v = (None, None) if bias is None else bias[size:].chunk(2)
            k = F.linear(self._batch_first(key), w_k, b_k)  # type: ignore[arg-type]  # either packed or all weights are there
            v = F.linear(self._batch_first(value), w_v, b_v)  # type: ignore[arg-type]
        return self._heads(k), self._heads(v)

    def memory_cache(self, memory: Tensor) -> KeyValueCache:
        """The keys and values of a memory, projected once: call forward with key and value None and this cache."""
        k, v = self._project_memory(memory, memory)
        cache = KeyValueCache(max(k.shape[2], 1))
        cache.append(k, v)
        return cache

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masks: Masks,
        causal: bool,
        offset: int,
        watched: bool,
        some: Tensor | None = None,
    ) -> Attention:
        """Attention of all heads, or of the heads `some`, by whichever way computes this normaliser."""
        dropout = self.dropout if self.training else 0.0
        slopes = self.slopes if self.slopes is None or some is None else self.slopes[some]
        if self.row_map is not None:
            how: dict[str, Any] = {"is_causal": causal, "offset": offset, "slopes": slopes}
            return mapped_attention(q, k, v, self.row_map, masks, dropout=dropout, watched=watched, **how)
        override = self.alpha_override
        if self.backend == "sdpa" and not watched and override is None:
            return Attention(softmax_attention(q, k, v, masks, offset if causal else None, dropout), None, None)
        alpha: Any = self.alpha if override is None else override  # a number, or (H,)
        alpha = alpha() if isinstance(alpha, LearnedAlpha) else 1.5 if alpha is None else alpha
        found = attention(
            q,
            k,
            v,
            alpha=alpha[some] if isinstance(alpha, Tensor) and some is not None else alpha,
            normalizer=(normalizer_of(self.normalizer).kernel or self.normalizer) if override is None else "entmax",
            attn_mask=masks.one_mask(),
            key_padding_mask=masks.keys,
            dropout_p=dropout,
            is_causal=causal,
            causal_offset=offset,
            alibi_slopes=slopes,
            return_stats=watched and self.watcher is not None,
            return_support=watched,
            impl=self.impl,
        )
        return found if isinstance(found, Attention) else Attention(found, None, None)

    def _attend_part(self, q: Tensor, part: HeadPart, masks: Masks) -> Tensor:
        """Causal attention of some heads to the end of the past."""
        seen = part.keys.shape[2]
        last = Masks(None, None if masks.keys is None else masks.keys[:, -seen:], None)
        return self._attend(q, part.keys, part.values, last, True, seen - q.shape[2], False, part.heads).output

    def _heads(self, t: Tensor) -> Tensor:
        """(B, L, E) -> (B, H, L, head size), a view."""
        heads: Tensor = t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        return heads

    def _with_extra_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned key and value (add_bias_kv) and the zero ones (add_zero_attn), before the others."""
        parts: list[list[Tensor]] = [[], []]
        for part, learned, t in zip(parts, (self.bias_k, self.bias_v), (k, v), strict=True):
            if learned is not None:
                part.append(self._heads(learned).to(t.dtype).expand(t.shape[0], -1, -1, -1))
            if self.add_zero_attn:
                part.append(t.new_zeros((*t.shape[:2], 1, t.shape[3])))
            part.append(t)
        return torch.cat(parts[0], 2), torch.cat(parts[1], 2)

    def extra_repr(self) -> str:
        alpha = "" if self.alpha is None or isinstance(self.alpha, LearnedAlpha) else f", alpha={self.alpha}"
        return f"{self.embed_dim}, {self.num_heads}, normalizer={self.normalizer}{alpha}, batch_first={self.batch_first}"
