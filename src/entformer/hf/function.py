"""The attention function that Hugging Face models call: one call of one attention module, in the terms of `attention`.

    scores = scale_h * (softcap(scaling * <q, k>) + bias)        scale_h: the head's own, 1 without a `SparseHeads`
    output = entmax(scores over the keys that the mask allows, alpha_h) v

The interface passes whatever keywords a model has. Those that change the result are arguments here, those that do not are in
`IGNORED`, and any other that is not None raises an error: swallowing it could change what the model computes.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils import output_capturing

from entformer.errors import ArgumentError
from entformer.hf.names import DENSE, HEADS, SETTINGS
from entformer.kernels.attention.api import Attention, RowStats, Support, attention
from entformer.kernels.entmax.api import entmax

IGNORED = frozenset(
    (
        "cache_position",
        "deterministic",
        "encoder_attention_mask",  # already in attention_mask
        "encoder_hidden_states",
        "labels",
        "logits_to_keep",
        "max_length_k",  # with cu_seq_lens_k, which is used
        "max_length_q",
        "num_items_in_batch",  # of the Trainer, for the loss
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",  # key and value hold it
        "return_dict",
        "return_loss",
        "sliding_window",  # the mask function applies it
        "use_cache",
    )
)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attention module, reduced to what the scores and the output depend on."""

    query: Tensor  # (B, H, Lq, D)
    key: Tensor  # (B, Hkv, Lk, D)
    value: Tensor  # (B, Hkv, Lk, Dv)
    mask: Tensor | None  # boolean, broadcasts to (B, H, Lq, Lk), True = may attend
    bias: Tensor | None  # added to the scores, broadcasts to (B, H, Lq, Lk)
    causal: bool  # query i attends to keys j <= i
    scaling: float
    softcap: float | None
    sinks: Tensor | None  # (H,): a further score of each row whose weight is dropped
    alpha: float | Tensor  # a number or (H,)
    scale: Tensor | None  # (H,)
    dropout: float = 0.0

    @property
    def visible(self) -> Tensor:
        """How many keys each query may attend to, broadcasts to (B, H, Lq)."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        if self.mask is None:
            places = torch.arange(1, queries + 1, device=self.query.device)
            return (places.clamp_max(keys) if self.causal else torch.full_like(places, keys))[None, None]
        allowed = self.mask.expand(*self.mask.shape[:2], queries, keys)
        return (allowed.tril() if self.causal else allowed).sum(-1)

    @torch.no_grad()
    def support_size(self, alpha: Tensor | None = None) -> Tensor:
        """Returns how many keys have nonzero weight, (B, H, Lq), also for another alpha (H,)."""
        narrow = self.value[..., :1]  # the output is not needed
        one = replace(self, value=narrow, dropout=0.0, alpha=self.alpha if alpha is None else alpha)
        found = one.traced(support=False)
        if found.stats is None:
            raise ArgumentError("attention returned no statistics.")
        return found.stats.support_size

    @property
    def _caps_before_scaling(self) -> bool:
        """Whether a head's scale multiplies capped scores, which the fused kernel does not do."""
        return self.softcap is not None and self.scale is not None

    def attend(self) -> Tensor:
        """Returns the output, (B, H, Lq, Dv)."""
        if self._caps_before_scaling:
            return self._dense_output()
        output: Any = self._attention()
        found: Tensor = output
        return found

    def traced(self, *, support: bool = True) -> Attention:
        """Returns the output with the statistics of each row and the exact support; those of a sink are not included."""
        if self._caps_before_scaling:
            weights = self.weights().detach()
            return dense_trace(weights, self._dense_output())
        found: Any = self._attention(return_stats=True, return_support=support)
        traced: Attention = found
        return traced

    def _attention(self, **options: Any) -> Attention | Tensor:
        query, mask, bias, sinks = self.query, self.mask, self.bias, self.sinks
        if self.scale is not None:
            query = _times(query, self.scale)
            bias = None if bias is None else bias * self.scale.to(bias.dtype)[:, None, None]
            sinks = None if sinks is None else sinks * self.scale.to(sinks.dtype)
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        return attention(
            query,
            self.key,
            self.value,
            mask,
            dropout_p=self.dropout,
            is_causal=self.causal,
            scale=self.scaling,
            enable_gqa=query.shape[1] != self.key.shape[1],
            alpha=self.alpha,
            softcap=self.softcap,
            sinks=sinks,
            **options,
        )

    def scores(self) -> tuple[Tensor, Tensor | None]:
        """Returns the scores (B, H, Lq, Lk [+ 1 first column for the sinks]), scaled, and the mask over them."""
        heads, queries = self.query.shape[1:3]
        keys = self.key.shape[2]
        key = self.key.repeat_interleave(heads // self.key.shape[1], 1)
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        scores = self.query.to(dtype) @ key.to(dtype).mT * self.scaling
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias
        mask = self.mask
        if self.causal:
            triangle = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril()
            mask = triangle if mask is None else mask & triangle
        if self.sinks is not None:
            column = self.sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat((column, scores), -1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        return scores if self.scale is None else _times(scores, self.scale), mask

    def weights(self) -> Tensor:
        """Returns the weights (B, H, Lq, Lk), with gradient; without those of the sinks."""
        scores, mask = self.scores()
        weights = entmax(scores, self.alpha, mask=mask, alpha_dim=1 if isinstance(self.alpha, Tensor) else None)
        return weights if self.sinks is None else weights[..., 1:]

    def _dense_output(self) -> Tensor:
        weights = F.dropout(self.weights(), self.dropout).to(self.value.dtype)
        return weights @ self.value.repeat_interleave(weights.shape[1] // self.value.shape[1], 1)


def dense_trace(weights: Tensor, output: Tensor) -> Attention:
    """Returns what `attention` returns with statistics and support, from dense weights (B, H, Lq, Lk)."""
    flat = weights.reshape(-1, weights.shape[-1])
    row, col = flat.nonzero(as_tuple=True)
    size = (weights > 0).sum(-1)
    crow = F.pad(size.flatten().cumsum(0), (1, 0))
    entropy = torch.special.entr(weights).sum(-1)
    support = Support(crow, col.to(torch.int32), flat[row, col])
    return Attention(output, RowStats(size.to(torch.int32), entropy, torch.full_like(entropy, torch.nan)), support)


def _times(tensor: Tensor, per_head: Tensor) -> Tensor:
    """Multiplies heads (axis 1) by numbers, rounding once."""
    dtype = torch.promote_types(tensor.dtype, per_head.dtype)
    return (tensor.to(dtype) * per_head.to(dtype)[:, None, None]).to(tensor.dtype)


Listener = Callable[[nn.Module, Call, Tensor, dict[str, Any]], None]
_listener: ContextVar[Listener | None] = ContextVar("entformer_hf_listener", default=None)


def set_listener(listener: Listener | None) -> None:
    """Sets the listener of this thread until the next call, where a context cannot be entered and left in one function."""
    _listener.set(listener)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Calls `listener(module, call, output, keywords)` after every attention call in this context; output: (B, H, Lq, Dv)."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes attention for a Hugging Face module. This is the function that `register` registers.

    Returns:
        The output (B, Lq, H, Dv), and the weights (B, H, Lq, Lk) if attentions are requested, else None.

    Raises:
        ArgumentError: The model passes a keyword that this function does not support, or has unused saved alphas.
    """
    unknown = sorted(name for name, given in keywords.items() if given is not None and name not in IGNORED)
    if unknown:
        raise ArgumentError(f"{type(module).__name__} passes {', '.join(unknown)}, which entformer.hf does not support.")
    queries, keys = query.shape[2], key.shape[2]
    declared = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    causal = declared and queries > 1
    mask, bias = _mask_and_bias(module, attention_mask, keys)
    if mask is None and bias is None:
        mask = _packing_mask(queries, keys, causal, position_ids, cu_seq_lens_q, cu_seq_lens_k)
    if attention_mask is not None:
        causal = False  # it is in the mask
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
        bias = bias[..., :keys]
    if causal and keys > queries:  # the first call with a static cache, whose later keys are not filled yet
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    alpha, scale = _alpha_and_scale(module)
    call = Call(
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        causal=causal,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=softcap,
        sinks=s_aux,
        alpha=alpha,
        scale=scale,
        dropout=dropout,
    )
    output = call.attend()
    if not torch.compiler.is_compiling() and (listener := _listener.get()) is not None:
        listener(module, call, output, {**keywords, "is_causal": declared})
    wanted = bool(keywords.get("output_attentions")) or _attentions_requested()
    return output.transpose(1, 2).contiguous(), call.weights().to(query.dtype) if wanted else None


def _attentions_requested() -> bool:
    """Returns whether the running model collects attentions; not every model passes `output_attentions` on."""
    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


def _alpha_and_scale(module: nn.Module) -> tuple[float | Tensor, Tensor | None]:
    heads = module._modules.get(HEADS)
    if heads is not None:
        alpha, scale = heads()
        return alpha, scale
    if getattr(getattr(module, "config", None), SETTINGS, None) is not None and not hasattr(module, DENSE):
        raise ArgumentError(
            "the saved alphas and scales of this model were not loaded; load it with entformer.hf.load(path), or remove them "
            "with entformer.hf.densify(model)."
        )
    return 1.0, None


def _mask_and_bias(module: nn.Module, given: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """Separates which keys are allowed from what is added to the scores."""
    if given is None:
        return None, None
    if given.dim() == 2:
        given = given[:, None, None, :]
    if given.dim() != 4:
        raise ArgumentError(
            f"{type(module).__name__} passes an attention mask of {given.dim()} dimensions; expected 4: (batch, 1 or heads, "
            "queries, keys)."
        )
    given = given[..., :keys]
    if not given.is_floating_point():
        return given.bool(), None
    allowed = given > torch.finfo(given.dtype).min / 2
    bias = given.masked_fill(~allowed, 0.0)
    if not torch.compiler.is_compiling() and not given.requires_grad and not bool(bias.any()):
        return allowed, None
    return allowed, bias


def _packing_mask(
    queries: int, keys: int, causal: bool, position_ids: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None
) -> Tensor | None:
    """Returns the mask that separates sequences packed into one row, None if there is one only.

    Models build no mask from packed position ids in some cases (`use_cache=True`), and vision towers leave lengths to the
    attention function; without this mask, sequences would attend to each other.
    """
    if cu_q is not None and cu_k is not None:
        places = [torch.arange(size, device=cu.device) for size, cu in ((queries, cu_q), (keys, cu_k))]
        rows, columns = (torch.searchsorted(cu, place, right=True) for cu, place in zip((cu_q, cu_k), places, strict=True))
        return (rows[:, None] == columns[None, :])[None, None]
    packed = causal and queries == keys and position_ids is not None and position_ids.dim() == 2
    if not packed or position_ids is None or position_ids.shape[1] != queries or torch.compiler.is_compiling():
        return None
    starts = position_ids[:, 1:] <= position_ids[:, :-1]
    if not bool(starts.any()):
        return None
    sequence = F.pad(starts.cumsum(1), (1, 0))
    return (sequence[:, :, None] == sequence[:, None, :])[:, None]
