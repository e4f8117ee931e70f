"""The attention function that Hugging Face models call: one call of one attention module, in the terms of `attention`.

    scores = softcap(scale_h * scaling * <q, k>) + scale_h * bias        scale_h: the head's own, 1 without a `SparseHeads`
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
from entformer.hf.heads import active_heads
from entformer.hf.masks import Mask, boundaries, recognized
from entformer.hf.names import DENSE, HEADS, SETTINGS
from entformer.kernels.attention.api import Attention, attention
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
FAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NO_SEED = torch.zeros((), dtype=torch.int64)  # of dropout


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attention module, reduced to what the scores and the output depend on."""

    query: Tensor  # (B, H, Lq, D)
    key: Tensor  # (B, Hkv, Lk, D)
    value: Tensor  # (B, Hkv, Lk, Dv)
    mask: Mask
    bias: Tensor | None  # added to the scores, broadcasts to (B, H, Lq, Lk)
    scaling: float
    softcap: float | None
    sinks: Tensor | None  # (H,): a further score of each row whose weight is dropped
    alpha: float | Tensor  # a number or (H,)
    scale: Tensor | None  # (H,)
    dropout: float = 0.0

    @property
    def visible(self) -> Tensor:
        """How many keys each query may attend to, broadcasts to (B, H, Lq)."""
        return self.mask.counts(self.query.shape[2], self.key.shape[2], self.query.device)

    @torch.no_grad()
    def support_size(self, alpha: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        """Returns how many keys have nonzero weight, (B, H, Lq), also for other alphas and scales (H,)."""
        narrow = self.value[..., :1]  # the output is not needed
        one = replace(self, value=narrow, dropout=0.0, scale=self.scale if scale is None else scale)
        found = (one if alpha is None else replace(one, alpha=alpha)).traced(support=False)
        if found.stats is None:
            raise ArgumentError("attention returned no statistics.")
        return found.stats.support_size

    def attend(self) -> Tensor:
        """Returns the output, (B, H, Lq, Dv)."""
        output: Any = self._next_token() if self._is_next_token else self._attention()
        found: Tensor = output
        return found

    def traced(self, *, support: bool = True) -> Attention:
        """Returns the output with the statistics of each row and the exact support; those of a sink are not included."""
        found: Any = self._attention(return_stats=True, return_support=support)
        traced: Attention = found
        return traced

    @property
    def _is_next_token(self) -> bool:
        """Whether one token is generated, by plain tensors on the CPU: checks take longer than attention itself."""
        plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling() and type(self.query) is Tensor
        usual = self.bias is None and self.mask.elements is None and self.mask.packed is None and isinstance(self.alpha, Tensor)
        fits = self.query.dtype == self.key.dtype == self.value.dtype in FAST_DTYPES and self.query.device.type == "cpu"
        return self.query.shape[2] == 1 and plain and usual and fits and self.key.shape[2] > 0 and self.dropout == 0.0

    def _next_token(self) -> Tensor:
        """Calls the operator behind `attention` with arguments that need no check."""
        batch, heads = self.query.shape[:2]
        query, sinks = (self.query if self.scale is None else _times(self.query, self.scale)), self.sinks
        if sinks is not None:
            sinks = (sinks.float() if self.scale is None else sinks.float() * self.scale).expand(batch, heads)
        keys = self.mask.keys if self.mask.keys is None else self.mask.keys.expand(batch, -1)
        alpha = torch.as_tensor(self.alpha, dtype=torch.float64).expand(batch, heads)
        tensors = (query, self.key, self.value, alpha, None, keys, None)
        how = ("entmax", self.scaling, False, 0, 0.0, NO_SEED, False)
        with torch._C._AutoDispatchBelowAutograd():
            output: Tensor = torch.ops.entformer.attention.default(*tensors, *how, sinks=sinks, softcap=self.softcap)[0]
        return output

    def _attention(self, **options: Any) -> Attention | Tensor:
        query, bias, sinks = self.query, self.bias, self.sinks
        if self.scale is not None:
            query = _times(query, self.scale)
            bias = None if bias is None else bias * self.scale.to(bias.dtype)[:, None, None]
            sinks = None if sinks is None else sinks * self.scale.to(sinks.dtype)
        mask = self.mask.elements
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        return attention(
            query,
            self.key,
            self.value,
            mask,
            dropout_p=self.dropout,
            scale=self.scaling,
            enable_gqa=query.shape[1] != self.key.shape[1],
            alpha=self.alpha,
            softcap=self.softcap,
            sinks=sinks,
            **self.mask.arguments(),
            **options,
        )

    def scores(self) -> tuple[Tensor, Tensor]:
        """Returns the scores (B, H, Lq, Lk [+ 1 first column for the sinks]) and the boolean mask over them."""
        heads, queries = self.query.shape[1:3]
        key = self.key.repeat_interleave(heads // self.key.shape[1], 1)
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        scale = torch.ones((), device=key.device) if self.scale is None else self.scale[:, None, None]
        scores = self.query.to(dtype) @ key.to(dtype).mT * (scale * self.scaling)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + scale * self.bias
        mask = self.mask.dense(queries, key.shape[2], key.device)
        if self.sinks is not None:
            column = scale * self.sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
            scores, mask = torch.cat((column, scores), -1), F.pad(mask, (1, 0), value=True)
        return scores, mask

    def weights(self) -> Tensor:
        """Returns the weights (B, H, Lq, Lk), with gradient; without those of the sinks."""
        scores, mask = self.scores()
        weights = entmax(scores, self.alpha, mask=mask, alpha_dim=1 if isinstance(self.alpha, Tensor) else None)
        return weights if self.sinks is None else weights[..., 1:]


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
    given, bias = _mask_and_bias(module, attention_mask, keys)
    packed = _packed(queries, keys, causal, position_ids, cu_seq_lens_q, cu_seq_lens_k)
    if given is not None:
        mask = recognized(given, None if packed is None else packed[0])  # a causal limit is in it
    elif packed is not None:
        mask = Mask(causal, packed=packed) if len(query) == 1 == packed[0].dim() else _separated(causal, *packed, queries, keys)
    else:
        mask = Mask(causal)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
        bias = bias[..., :keys]
    if given is None and causal and keys > queries:  # the first call with a static cache, whose later keys are not filled yet
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    alpha, scale = _alpha_and_scale(module)
    call = Call(
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
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
    owned = module._modules.get(HEADS)
    if owned is not None:
        heads = None if torch.is_grad_enabled() or torch.compiler.is_compiling() else active_heads(owned)
        alpha, scale = owned() if heads is None else heads.without_gradient()
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
    if given.shape[-1] != keys:  # else the same tensor, which is recognized again in the next layer
        given = given[..., :keys]
    if not given.is_floating_point():
        return given if given.dtype == torch.bool else given.bool(), None
    allowed = given > torch.finfo(given.dtype).min / 2
    bias = given.masked_fill(~allowed, 0.0)
    if not torch.compiler.is_compiling() and not given.requires_grad and not bool(bias.any()):
        return allowed, None
    return allowed, bias


def _packed(
    queries: int, keys: int, causal: bool, position_ids: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Returns where sequences packed into one row begin, of queries and keys, None if there is one only; see `boundaries`.

    Models build no mask from packed position ids in some cases (`use_cache=True`), and vision towers leave lengths to the
    attention function; without these boundaries, sequences would attend to each other.
    """
    if cu_q is not None and cu_k is not None:
        return cu_q, cu_k
    starts = None if not causal or torch.compiler.is_compiling() else boundaries(position_ids, queries, keys)
    return None if starts is None else (starts, starts)


def _separated(causal: bool, first: Tensor, second: Tensor, queries: int, keys: int) -> Mask:
    """Returns the mask of packed sequences as elements, for batches of several rows."""
    if first.dim() == 1:
        elements = Mask(packed=(first, second)).dense(queries, keys, first.device)
    else:
        elements = (first[:, :, None] == second[:, None, :])[:, None]
    return Mask(causal, elements=elements)
