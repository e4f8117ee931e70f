"""The arguments of `attention`, checked and brought to the form the kernels take.

query, key, value     ->  q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, E), G dividing H
alpha, slopes, sinks  ->  (B, H)
attn_mask             ->  a boolean mask (B, H, Lq, Lk), True = may attend, or what is added to the scores, (B or 1, H or 1,
                          Lq or 1, Lk or 1), or neither
"""

import math
import warnings
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.kernels import checks
from entformer.kernels.attention.elementwise import ELEMENTWISE

if TYPE_CHECKING:  # imports torch.compile, which takes seconds
    from torch.nn.attention.bias import CausalBias

FUSED_NORMALIZERS = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0, "entmax": None, **dict.fromkeys(ELEMENTWISE, 1.0)}
FORM = "(..., heads, length, size)"
EXCLUDED = torch.finfo(torch.bfloat16).min  # a bias at or below it excludes the pair, in every implementation


class Inputs(NamedTuple):
    """Query, key and value in four dimensions, and the leading dimensions of the output."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, G, Lk, D)
    v: Tensor  # (B, G, Lk, E)
    lead: tuple[int, ...]  # (..., H); () when all inputs are matrices


class Features(NamedTuple):
    """What a call may have beside masks: the last arguments of every operator (ops.py), all optional."""

    bias: Tensor | None = None  # added to the scores, (B or 1, H or 1, Lq or 1, Lk or 1) float32; excludes from EXCLUDED down
    sinks: Tensor | None = None  # (B, H) float32: the score of one more key, which has no value
    cu_seqlens_q: Tensor | None = None  # (n + 1,) int32: where the queries of each of n packed sequences begin, and the end
    cu_seqlens_k: Tensor | None = None  # the same for keys
    window_left: int | None = None  # query i attends to keys j >= i + causal_offset - window_left
    window_right: int | None = None  # and j <= i + causal_offset + window_right
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap), before bias and ALiBi
    sigmoid_bias: float | None = None  # added to the scores of normalizer "sigmoid"; None: -log(number of keys of the row)


NO_FEATURES = Features()


class Call(NamedTuple):
    """The checked arguments of one call, in the order of the operators."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor
    attn_mask: Tensor | None
    key_mask: Tensor | None
    alibi_slopes: Tensor | None
    normalizer: str  # "entmax", or the operators' name of an elementwise one
    scale: float
    is_causal: bool
    causal_offset: int
    dropout_p: float
    dropout_seed: Tensor
    features: Features


def four_dimensions(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> Inputs:
    """Checks the inputs and broadcasts batch, heads and rank as scaled_dot_product_attention does."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        checks.check_strided_float(name, t, FORM)
        if t.dim() < 2:
            raise ArgumentError(f"{name} must be a floating-point tensor {FORM}; it has shape {tuple(t.shape)}.")
        if t.device != query.device:
            raise ArgumentError(f"query is on {query.device} and {name} on {t.device}; move one of them.")
    device = query.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        narrow = torch.get_autocast_dtype(device)  # as scaled_dot_product_attention does
        query, key, value = (t if t.dtype == torch.float64 else t.to(narrow) for t in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        raise ArgumentError(f"query, key and value must have one dtype, not {query.dtype}, {key.dtype} and {value.dtype}.")
    shapes = of_query, of_key, of_value = query.shape, key.shape, value.shape
    if of_key[-2] != of_value[-2] or of_query[-1] != of_key[-1]:
        raise ArgumentError(f"shapes do not fit: {_listed(*shapes)}; {_difference(*shapes)}.")
    lead = of_query[:2]
    if len(of_query) == len(of_key) == len(of_value) == 4 and lead == of_key[:2] == of_value[:2]:
        return Inputs(query, key, value, tuple(lead))
    q, k, v = (t[None] if t.dim() == 2 else t for t in (query, key, value))  # (..., H, L, E)
    heads, k, v = _share_heads(q, k, v, enable_gqa, _listed(*shapes))
    batch = q.shape[:-3]
    if not batch == k.shape[:-3] == v.shape[:-3]:
        try:
            batch = torch.broadcast_shapes(batch, k.shape[:-3], v.shape[:-3])
        except RuntimeError:
            raise ArgumentError(f"shapes do not fit: {_listed(*shapes)}; they differ in batch size.") from None
        k, v = (t.expand(*batch, *t.shape[-3:]) for t in (k, v))
    if q.shape[:-2] != (*batch, heads):
        q = q.expand(*batch, heads, *q.shape[-2:])
    matrices = max(query.dim(), key.dim(), value.dim()) == 2
    return Inputs(_with_batch(q), _with_batch(k), _with_batch(v), () if matrices else (*batch, heads))


def _listed(query: torch.Size, key: torch.Size, value: torch.Size) -> str:
    return f"query {tuple(query)}, key {tuple(key)}, value {tuple(value)}"


def _difference(query: torch.Size, key: torch.Size, value: torch.Size) -> str:
    """Which sizes must be equal and are not: those of query and key, or the lengths of key and value."""
    if query[-1] != key[-1]:
        return f"query and key must have the same size in the last dimension, not {query[-1]} and {key[-1]}"
    return f"key and value must have the same length, dimension -2, not {key[-2]} and {value[-2]}"


def _share_heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool, given: str) -> tuple[int, Tensor, Tensor]:
    """The number of heads, and key and value with one number of heads that divides it."""
    heads, of_k, of_v = q.shape[-3], k.shape[-3], v.shape[-3]
    if heads == of_k == of_v:
        return heads, k, v
    if enable_gqa:
        for name, shared in (("key", of_k), ("value", of_v)):
            if shared == 0 or heads % shared != 0:
                raise ArgumentError(f"query has {heads} heads and {name} {shared}: the first must be a multiple of the second.")
        if of_k != of_v:
            k, v = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (k, v))
        return heads, k, v
    most = max((n for n in (heads, of_k, of_v) if n != 1), default=1)
    if any(n not in (1, most) for n in (heads, of_k, of_v)):
        if of_k != of_v:
            raise ArgumentError(f"shapes do not fit: {given}; key and value must have equally many heads.")
        multiple = of_k > 0 and heads % of_k == 0
        advice = "set enable_gqa=True to share key heads" if multiple else "they must have equally many heads"
        if not multiple and q.shape[-2] == k.shape[-2]:  # as if heads and length were swapped
            advice += "; the layout is (batch, heads, length, size)"
        raise ArgumentError(f"query has {heads} heads and key {of_k}: {advice}.")
    if of_k != of_v:
        k, v = (t.expand(*t.shape[:-3], most, *t.shape[-2:]) for t in (k, v))
    return most, k, v


def _with_batch(t: Tensor) -> Tensor:
    """(H, L, E) or (..., H, L, E) -> (B, H, L, E)."""
    return t[None] if t.dim() == 3 else t if t.dim() == 4 else t.flatten(0, -4)


def per_head(values: Tensor, q: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """A tensor (), (H,) or (B, H) as (B, H) of a dtype."""
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
    if values.is_meta and not q.is_meta:
        raise ArgumentError(f"{name} is on meta but the query is on {q.device}; move one of them.")
    return values.to(q.device, dtype).expand(batch, heads)


def new_rows(like: Tensor, size: int) -> Tensor:
    """An uninitialized tensor (B, H, L, size) in the memory order of `like`, (B, H, L, any).

    That is (B, L, H, size) where heads lie side by side, as models have them, so that merging heads copies nothing.
    csrc/checks.h::make_rows is the same.
    """
    batch, heads, length = like.shape[:3]
    if like.stride(1) < like.stride(2):
        return like.new_empty((batch, length, heads, size)).transpose(1, 2)
    return like.new_empty((batch, heads, length, size))


def alpha_of(normalizer: str, alpha: float | Tensor, device: torch.device) -> float | Tensor:
    """The alpha in use: a number, or the tensor given; ArgumentError where it cannot be one."""
    if normalizer not in FUSED_NORMALIZERS:
        raise ArgumentError(f"normalizer={normalizer!r} is not known; choose one of {', '.join(FUSED_NORMALIZERS)}.")
    fixed = FUSED_NORMALIZERS[normalizer]
    if fixed is not None:
        return fixed
    if isinstance(alpha, Tensor):
        checks.check_alpha_tensor(alpha, device, least=1.0)
        return alpha
    number = checks.check_real("alpha", alpha, one_of_many=True)
    if not 1.0 <= number < math.inf:
        raise ArgumentError(f"alpha={alpha} must be a finite number of at least 1 in attention; 1 is softmax.")
    return number


def alpha_per_head(alpha: float | Tensor, q: Tensor) -> Tensor:
    """alpha (B, H) in float64 (float32 on a device without it)."""
    dtype = torch.float64 if q.device.type != "mps" else torch.float32
    if not isinstance(alpha, Tensor):
        return constant(tuple(q.shape[:2]), alpha, dtype, q.device)
    return per_head(alpha, q, "alpha", dtype)


def with_alpha_per_head(call: Call) -> Call:
    """The call of an operator with alpha (B, H) in float64, from one of the forms that operators take."""
    return call._replace(alpha=alpha_per_head(call.alpha, call.query))


def constant(shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of one value, which nobody may write to: kept for later calls where no mode (fake tensors) is active."""
    kept = device.type == "cpu" and checks.runs_once() and torch._C._len_torch_dispatch_stack() == 0
    return (_kept_constant if kept else torch.full)(shape, value, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _kept_constant(shape: tuple[int, ...], value: float, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # autograd could not save a tensor of inference mode in a later call
        return torch.full(shape, value, dtype=dtype, device=device)


@cache
def no_dropout() -> Tensor:
    """The seed of a call on the CPU that drops nothing."""
    return constant((), 0, torch.int64, torch.device("cpu"))


def is_causal_bias(attn_mask: Any) -> TypeGuard["CausalBias"]:
    """Whether it is a mask of `torch.nn.attention.bias`.

    Such a mask is a tensor subclass without elements: read as a plain tensor it would be memory that nobody wrote.
    """
    if attn_mask is None or type(attn_mask) is Tensor or not hasattr(attn_mask, "variant"):
        return False
    from torch.nn.attention.bias import CausalBias

    return isinstance(attn_mask, CausalBias)


def causal_bias(
    attn_mask: Any, query: Tensor, key: Tensor, is_causal: bool, causal_offset: int, *, packed: bool = False
) -> int | None:
    """The causal offset that a mask of `torch.nn.attention.bias` stands for; None for any other mask."""
    if not is_causal_bias(attn_mask):
        return None
    if is_causal or causal_offset != 0:
        raise ArgumentError("attn_mask is already causal: leave out is_causal and causal_offset, or the mask.")
    if packed:
        raise ArgumentError("attn_mask is causal for one sequence; with packed ones use is_causal, which counts in each.")
    return causal_bias_offset(attn_mask, query.shape[-2], key.shape[-2])


def causal_bias_offset(bias: "CausalBias", queries: int, keys: int) -> int:
    """The causal offset of a mask of `torch.nn.attention.bias`."""
    if (bias.seq_len_q, bias.seq_len_kv) != (queries, keys):
        made_for = f"{bias.seq_len_q} queries and {bias.seq_len_kv} keys"
        raise ArgumentError(f"attn_mask was made for {made_for}, but there are {queries} and {keys}.")
    return keys - queries if bias.variant.name == "LOWER_RIGHT" else 0


def mask_and_bias(attn_mask: Tensor | None, lead: tuple[int, ...], q: Tensor, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """attn_mask as a boolean mask (B, H, Lq, Lk), expanded, or as an additive bias, not expanded; None each if it is not that.

    A float mask of zeros and -inf is turned into a boolean one, which is read faster. The lowest number of a dtype stands for
    -inf, as models write it.
    """
    if attn_mask is None:
        return None, None
    if not isinstance(attn_mask, Tensor):
        number = isinstance(attn_mask, int | float) and not isinstance(attn_mask, bool)
        advice = f"; alpha is a keyword argument: alpha={attn_mask}" if number else checks.as_tensor("attn_mask", attn_mask)
        raise ArgumentError(f"attn_mask must be a tensor, not {type(attn_mask).__name__}{advice}.")
    if attn_mask.is_nested or attn_mask.layout != torch.strided:
        raise ArgumentError(f"attn_mask must be a dense tensor, not {attn_mask.layout}; convert it with .to_dense().")
    if attn_mask.device != q.device:
        raise ArgumentError(f"attn_mask is on {attn_mask.device} but the query is on {q.device}; move one of them.")
    if attn_mask.dtype == torch.bool:
        return _expanded(attn_mask, lead, q, keys), None
    if attn_mask.dtype not in checks.DTYPES:
        raise ArgumentError(f"attn_mask must be boolean (True = may attend) or floating point (added), not {attn_mask.dtype}.")
    half = torch.float16 in (attn_mask.dtype, q.dtype)
    lowest = torch.finfo(torch.float16 if half else torch.bfloat16).min
    maybe_boolean = not attn_mask.requires_grad and not _first_row_adds(attn_mask, lowest)
    hidden = attn_mask.detach() <= lowest if half or maybe_boolean else None
    if hidden is not None and maybe_boolean and _is_zero_where_not(hidden, attn_mask):
        return _expanded(~hidden, lead, q, keys), None
    bias = attn_mask.masked_fill(hidden, -math.inf) if half and hidden is not None else attn_mask
    return None, _not_expanded(bias, lead, q, keys).to(q.dtype if q.dtype == torch.float64 else torch.float32)


def _first_row_adds(mask: Tensor, lowest: float) -> bool:
    """Whether the first row shows a number that is neither zero nor at most `lowest`: a look at all would take far longer."""
    if mask.dim() == 0 or 0 in mask.shape:
        return False
    row = mask.detach()[(0,) * (mask.dim() - 1)]
    return checks.any_true((row != 0.0) & (row > lowest))


def _is_zero_where_not(hidden: Tensor, mask: Tensor) -> bool:
    """Whether all elements outside `hidden` are zero, as far as that can be read."""
    if not checks.values_are_readable(mask) or torch.autograd.forward_ad._current_level >= 0:
        return False
    try:
        return bool(hidden.count_nonzero() == mask.count_nonzero())  # hidden elements are not zero, so none is left
    except RuntimeError:  # a batched tensor of torch.func.vmap and a fake tensor have no value
        return False


def _expanded(mask: Tensor, lead: tuple[int, ...], q: Tensor, keys: int) -> Tensor:
    """`mask` as (B, H, Lq, Lk)."""
    batch, heads, queries, _ = q.shape
    full = (*lead, queries, keys)
    try:
        expanded = mask.expand(full)
    except RuntimeError:
        raise ArgumentError(f"attn_mask of shape {tuple(mask.shape)} does not broadcast to {full}.") from None
    return expanded if len(full) == 4 else expanded.reshape(batch, heads, queries, keys)


def _not_expanded(bias: Tensor, lead: tuple[int, ...], q: Tensor, keys: int) -> Tensor:
    """`bias` in four dimensions, each 1 where it is broadcast, so that its gradient is no larger than the bias."""
    _expanded(bias, lead, q, keys)  # raises if it does not fit
    bias = bias[(None,) * (max(len(lead) + 2, 4) - bias.dim())]
    if bias.dim() == 4:
        return bias
    batch = bias.shape[:-3]
    if batch != lead[:-1] and batch != (1,) * len(batch):
        bias = bias.expand(*lead[:-1], *bias.shape[-3:])
    return bias.flatten(0, -4)


def key_mask_of(key_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
    """The mask of keys (B, Lk), under its name or its old one."""
    name = "key_mask"
    if key_padding_mask is not None:
        if key_mask is not None:
            raise ArgumentError("key_mask and key_padding_mask are one argument under two names; give key_mask alone.")
        if not torch.compiler.is_compiling():
            warnings.warn(
                "attention(key_padding_mask=...) is now key_mask=...: True = may attend, the opposite of "
                "torch.nn.MultiheadAttention's key_padding_mask. Use key_mask; the old name will be removed.",
                FutureWarning,
                stacklevel=3,
            )
        name, key_mask = "key_padding_mask", key_padding_mask
    if key_mask is None:
        return None
    batch = q.shape[0]
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        raise ArgumentError(f"{name} must be a boolean tensor, True = may attend.")
    if key_mask.shape not in ((batch, keys), (1, keys), (keys,)):
        raise ArgumentError(f"{name} must have shape ({batch}, {keys}), not {tuple(key_mask.shape)}.")
    if key_mask.device != q.device:
        raise ArgumentError(f"{name} is on {key_mask.device} but the query is on {q.device}; move one of them.")
    return key_mask.expand(batch, keys)


def scale_of(scale: float | None, size: int) -> float:
    """What the products are multiplied by; 1/sqrt(size) by default."""
    if scale is None:
        return 1.0 / math.sqrt(max(size, 1))
    if isinstance(scale, Tensor):
        raise ArgumentError(
            "scale must be a number, not a tensor, which would get no gradient; for a learned scale pass "
            "attention(query * scale, key, value, scale=1.0)."
        )
    return checks.check_real("scale", scale)


def laid_out_like(query: Tensor, out: Tensor) -> Tensor:
    """`out` in the memory order of a (B, L, H, E) query seen as (B, H, L, E), so that merging its heads copies nothing."""
    inside = query.dim() == 4 and query.stride(1) < query.stride(2)
    if inside and out.stride(1) >= out.stride(2) and query.shape[:3] == out.shape[:3]:
        return out.transpose(1, 2).contiguous().transpose(1, 2)
    return out
