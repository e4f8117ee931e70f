"""Reads attention weights in any form: one panel per layer, with the heads as sparse rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.decoding.records import AttentionRecord
from entformer.decoding.sparse_rows import SparseRows
from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Attention, Support
from entformer.widget.tokens import Names, name_tokens

FORMS = (
    "weights must be an array (heads, queries, keys) or (layers, heads, queries, keys), a list of layers, the output of a "
    "model called with output_attentions=True, the result of ef.attention(..., return_support=True), or a record"
)
MODEL_OUTPUTS = {
    "attentions": "",
    "encoder_attentions": "encoder ",
    "decoder_attentions": "decoder ",
    "cross_attentions": "cross ",
}


@dataclass(frozen=True, eq=False)
class Panel:
    """The heads of one layer."""

    name: str
    heads: tuple[SparseRows, ...]
    queries: Names
    keys: Names
    causal: bool = False  # query i sees the keys up to i
    alphas: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Reading:
    """How to read the weights: the arguments of `show` that are not the weights."""

    tokens: Names | None
    key_tokens: Names | None
    is_causal: bool | None
    key_mask: NDArray[np.bool_] | None
    batch: int


def read_panels(weights: Any, how: Reading) -> list[Panel]:
    """Returns the layers of `weights`, which may have any of the forms that `show` lists."""
    if isinstance(weights, AttentionRecord):
        return _record_panels(weights)
    if any(hasattr(weights, name) for name in MODEL_OUTPUTS):
        return _model_panels(weights, how)
    if isinstance(weights, Attention | Support):
        return [_panel("layer 0", _support_heads(weights, how), how)]
    if isinstance(weights, Mapping):
        return [_panel(str(name), _layer_heads(layer, how, str(name)), how) for name, layer in weights.items()]
    if isinstance(weights, list | tuple) and weights and not isinstance(weights[0], list | tuple | int | float):
        layers: Sequence[Any] = weights
    elif isinstance(weights, list | tuple) and weights and isinstance(weights[0], Attention | Support):
        layers = weights
    else:
        array = _array(weights, "weights")
        layers = list(array) if array.ndim in (4, 5) else [array]
    return [_panel(f"layer {i}", _layer_heads(layer, how, f"layer {i}"), how) for i, layer in enumerate(layers)]


def _model_panels(output: Any, how: Reading) -> list[Panel]:
    """Reads the output of a Hugging Face model. Decoder and cross attention of a translation have tokens of their own."""
    found = {name: layers for name in MODEL_OUTPUTS if (layers := getattr(output, name, None)) is not None}
    if not found:
        raise ArgumentError(
            "the output of the model has no attention weights; load it with attn_implementation='eager' and call it with "
            "output_attentions=True."
        )
    panels = []
    for name, layers in found.items():
        sides = {
            "attentions": how,
            "encoder_attentions": replace(how, tokens=how.key_tokens or how.tokens, key_tokens=None),
            "decoder_attentions": replace(how, key_tokens=None, key_mask=None),
            "cross_attentions": how,
        }
        own = sides[name]
        for i, layer in enumerate(layers):
            title = f"{MODEL_OUTPUTS[name]}layer {i}"
            panels.append(_panel(title, _layer_heads(layer, own, title), own))
    return panels


def _record_panels(record: AttentionRecord) -> list[Panel]:
    source = record.source_pieces or tuple(map(str, record.source))
    target = (record.target_pieces or tuple(map(str, record.target)))[:-1]
    panels = []
    for kind, layer in dict.fromkeys((key.kind, key.layer) for key in record.heads):
        own = [key for key in record.heads if (key.kind, key.layer) == (kind, layer)]
        names = source if kind == "encoder" else target, target if kind == "decoder" else source
        alphas = tuple(record.alphas.get(key) for key in own)
        heads = tuple(record.heads[key] for key in own)
        panels.append(Panel(f"{kind} layer {layer}", heads, *names, causal=kind == "decoder", alphas=alphas))
    return panels


def _panel(name: str, heads: tuple[SparseRows, ...], how: Reading) -> Panel:
    queries, keys = name_tokens(heads[0].queries, heads[0].keys, how.tokens, how.key_tokens)
    if how.is_causal and heads[0].queries != heads[0].keys:
        raise ArgumentError(
            f"is_causal=True needs as many queries as keys, but {name} has {heads[0].queries} queries and {heads[0].keys} keys."
        )
    panel = Panel(name, heads, queries, keys, _is_causal(heads) if how.is_causal is None else how.is_causal)
    if panel.causal and not _is_causal(heads):
        raise ArgumentError(f"is_causal=True, but {name} has weights on keys after the query.")
    return panel if how.key_mask is None else _without_padding(panel, how.key_mask)


def _is_causal(heads: tuple[SparseRows, ...]) -> bool:
    """Tells whether no head looks ahead. Two tokens are needed to tell."""
    if heads[0].queries != heads[0].keys or heads[0].queries < 2:
        return False
    return all((rows.col <= np.repeat(np.arange(rows.queries), np.diff(rows.crow))).all() for rows in heads)


def _without_padding(panel: Panel, mask: NDArray[np.bool_]) -> Panel:
    """Leaves masked tokens out, as keys and, in self-attention, as queries."""
    if len(mask) != len(panel.keys):
        raise ArgumentError(f"key_mask has {len(mask)} entries, but {panel.name} has {len(panel.keys)} keys.")
    rows = mask if len(panel.queries) == len(panel.keys) else np.ones(len(panel.queries), np.bool_)
    heads = []
    for head in panel.heads:
        dense = head.dense()
        if dense[rows][:, ~mask].any():
            raise ArgumentError(f"key_mask excludes keys that have weight in {panel.name}; True = may be attended to.")
        heads.append(SparseRows.from_dense(dense[rows][:, mask]))
    queries = tuple(name for name, seen in zip(panel.queries, rows, strict=True) if seen)
    keys = tuple(name for name, seen in zip(panel.keys, mask, strict=True) if seen)
    return replace(panel, heads=tuple(heads), queries=queries, keys=keys)


def _layer_heads(layer: Any, how: Reading, name: str) -> tuple[SparseRows, ...]:
    """Returns the heads of one layer: (heads, queries, keys), (batch, heads, queries, keys), or one head (queries, keys)."""
    if isinstance(layer, Attention | Support):
        return _support_heads(layer, how)
    if layer is None:
        raise ArgumentError(f"{name} has no weights (None); load the model with attn_implementation='eager'.")
    array = _array(layer, name)
    if array.ndim == 4:
        if how.batch >= array.shape[0]:
            raise ArgumentError(f"batch={how.batch}, but {name} has a batch of {array.shape[0]}.")
        array = array[how.batch]
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or 0 in array.shape:
        raise ArgumentError(f"{FORMS}; {name} has shape {tuple(array.shape)}.")
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} has weights that are NaN or infinite.")
    if (array < 0).any():
        raise ArgumentError(f"{name} has negative weights; give the weights after softmax or entmax, not the scores before.")
    return tuple(SparseRows.from_dense(head) for head in array)


def _support_heads(found: Attention | Support, how: Reading) -> tuple[SparseRows, ...]:
    """Returns the heads of one sequence from the sparse rows of a whole batch."""
    shape = None
    if isinstance(found, Attention):
        if found.support is None:
            raise ArgumentError("the result of ef.attention has no support; call it with return_support=True.")
        shape, found = tuple(found.output.shape), found.support
    crow, col, weight = (part.detach().cpu().numpy() for part in found)
    keys = len(how.key_tokens or how.tokens or ()) or 1 + int(col.max(initial=0))
    queries = shape[-2] if shape else len(how.tokens or ())
    if not queries or (len(crow) - 1) % queries:
        raise ArgumentError(
            f"a support of {len(crow) - 1} rows needs tokens, one per query, which divide its rows into heads; or give the "
            "whole result of ef.attention."
        )
    if len(col) and keys <= int(col.max()):
        raise ArgumentError(f"the support has weight on key {int(col.max())}, but there are {keys} key tokens.")
    count = shape[-3] if shape and len(shape) > 2 else (len(crow) - 1) // queries
    first = how.batch * count * queries
    if first + count * queries > len(crow) - 1:
        raise ArgumentError(f"batch={how.batch}, but the support has a batch of {(len(crow) - 1) // (count * queries)}.")
    heads = []
    for head in range(count):
        start = first + head * queries
        rows = crow[start : start + queries + 1]
        inside = slice(int(rows[0]), int(rows[-1]))
        own = weight[inside].astype(np.float32)
        heads.append(SparseRows((rows - rows[0]).astype(np.int64), col[inside].astype(np.int32), own, keys))
    return tuple(heads)


def _array(weights: Any, name: str) -> NDArray[Any]:
    """Returns an array of numbers, float32 or float64."""
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().cpu()
        weights = (weights if weights.dtype in (torch.float32, torch.float64) else weights.float()).numpy()
    try:
        array = np.asarray(weights)
        return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    except (TypeError, ValueError) as err:
        raise ArgumentError(f"{FORMS}; {name} is of type {type(weights).__name__}.") from err
