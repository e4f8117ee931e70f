"""Reads attention weights in any form that users have: arrays, lists of layers, outputs of models, supports, traces, records.

Each reader also says how it read the axes, since (batch, heads, queries, keys) and (layers, heads, queries, keys) look alike.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.decoding.records import AttentionRecord
from entformer.decoding.sparse_rows import SparseRows
from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Attention, Support
from entformer.nn.hooks import AttentionTrace
from entformer.widget.panels import Heads, Panel, Reading, make_panel

FORMS = (
    "weights must be an array (heads, queries, keys) or (layers, heads, queries, keys), a list of layers, what "
    "ef.trace_attention recorded, the output of a model called with output_attentions=True, the result of "
    "ef.attention(..., return_support=True), or a record"
)
MODEL_OUTPUTS = {
    "attentions": "",
    "encoder_attentions": "encoder ",
    "decoder_attentions": "decoder ",
    "cross_attentions": "cross ",
}
KERNEL = Attention | Support | AttentionTrace  # named tuples, which are no lists of layers


def read_panels(weights: Any, how: Reading) -> tuple[list[Panel], str]:
    """Returns the layers of `weights`, which may have any of the forms that `show` lists, and how they were read."""
    if isinstance(weights, AttentionRecord):
        return _record_panels(weights), ""
    if any(hasattr(weights, name) for name in MODEL_OUTPUTS):
        return _model_panels(weights, how)
    if isinstance(weights, KERNEL):
        return _read_layers({"layer 0": weights}, how)
    if _is_module_output(weights):
        return _module_panels(weights[0], weights[1], how)
    if isinstance(weights, Mapping):
        return _read_layers(weights, how)
    if isinstance(weights, list | tuple) and weights and (isinstance(weights[0], KERNEL) or not _is_nested(weights[0])):
        return _read_layers({f"layer {i}": layer for i, layer in enumerate(weights)}, how)
    array = _array(weights, "weights")
    if array.ndim != 5 and (array.ndim != 4 or how.batch is not None):
        return _read_layers({"layer 0": array}, how)
    panels, text = _read_layers({f"layer {i}": layer for i, layer in enumerate(array)}, how)
    if array.ndim == 4:
        text = f"Weights of shape {array.shape} read as (layers, heads, queries, keys){_hint(array)}."
    return panels, text


def _is_nested(layer: Any) -> bool:
    """Whether a list that begins with `layer` is an array written as lists."""
    return isinstance(layer, list | tuple | int | float)


def _hint(array: NDArray[Any]) -> str:
    return "; if the first axis is a batch, give batch=0" if len(array) > 1 else ""


# ---- layers ---------------------------------------------------------------------------------------------------------------


def _read_layers(layers: Mapping[Any, Any], how: Reading) -> tuple[list[Panel], str]:
    """Returns a panel per layer, or per call of a traced layer, and how the first of them was read."""
    panels: list[Panel] = []
    texts: list[str] = []
    for name, layer in layers.items():
        calls = layer if isinstance(layer, list) and layer and isinstance(layer[0], AttentionTrace) else [layer]
        for i, call in enumerate(calls):
            panel, text = _read_layer(call, how, f"{name}, call {i}" if len(calls) > 1 else str(name))
            panels.append(panel)
            texts.append(text)
    return panels, texts[0] if texts else ""


def _read_layer(layer: Any, how: Reading, name: str) -> tuple[Panel, str]:
    if isinstance(layer, AttentionTrace):
        return _trace_panel(name, layer, how)
    if isinstance(layer, Attention | Support):
        heads, text = _support_heads(layer, how)
    else:
        heads, text = _array_heads(layer, how, name)
    return make_panel(name, heads, how), text


def _array_heads(layer: Any, how: Reading, name: str) -> tuple[Heads, str]:
    """Returns the heads of an array (queries, keys), (heads, queries, keys), or (batch, heads, queries, keys).

    If a batch was given, three axes are (batch, queries, keys).
    """
    if layer is None:
        raise ArgumentError(f"{name} has no weights (None); load the model with attn_implementation='eager'.")
    array = _array(layer, name)
    shape, has_batch = tuple(array.shape), array.ndim == 4 or (array.ndim == 3 and how.batch is not None)
    axes = {2: "queries, keys", 3: "batch, queries, keys" if has_batch else "heads, queries, keys"}
    hint = f", sequence {how.sequence} of {shape[0]}" if has_batch else _hint(array) if array.ndim == 3 else ""
    text = f"Weights of shape {shape} read as ({axes.get(array.ndim, 'batch, heads, queries, keys')}){hint}."
    if has_batch:
        if how.sequence >= shape[0]:
            raise ArgumentError(f"batch={how.sequence}, but {name} has a batch of {shape[0]}.")
        array = array[how.sequence]
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or 0 in array.shape:
        raise ArgumentError(f"{FORMS}; {name} has shape {shape}.")
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} has weights that are NaN or infinite.")
    if (array < 0).any():
        raise ArgumentError(f"{name} has negative weights; give the weights after softmax or entmax, not the scores before.")
    return tuple(SparseRows.from_dense(head) for head in array), text


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


# ---- what models and modules return ---------------------------------------------------------------------------------------


def _model_panels(output: Any, how: Reading) -> tuple[list[Panel], str]:
    """Reads the output of a Hugging Face model. Decoder and cross attention of a translation have tokens of their own."""
    layers_of = {name: getattr(output, name, None) for name in MODEL_OUTPUTS}
    found = {name: layers for name, layers in layers_of.items() if layers is not None and len(layers)}  # sdpa: an empty tuple
    if not found:
        raise ArgumentError(
            "the output of the model has no attention weights; load it with attn_implementation='eager' and call it with "
            "output_attentions=True."
        )
    sides = {
        "attentions": how,
        "encoder_attentions": replace(how, tokens=how.key_tokens or how.tokens, key_tokens=None),
        "decoder_attentions": replace(how, key_tokens=None, key_mask=None),
        "cross_attentions": how,
    }
    read = [
        _read_layers({f"{MODEL_OUTPUTS[name]}layer {i}": layer for i, layer in enumerate(layers)}, sides[name])
        for name, layers in found.items()
    ]
    return [panel for panels, _ in read for panel in panels], read[0][1]


def _is_module_output(weights: Any) -> bool:
    """Whether this is (output, weights) of an attention module. An output has negative numbers, which weights never have."""
    if not isinstance(weights, tuple) or len(weights) != 2 or not all(isinstance(x, torch.Tensor | None) for x in weights):
        return False
    output, _ = weights
    return output is not None and output.dim() in (2, 3) and output.is_floating_point() and bool((output < 0).any())


def _module_panels(output: torch.Tensor, weights: torch.Tensor | None, how: Reading) -> tuple[list[Panel], str]:
    """Reads what torch.nn.MultiheadAttention and ours return: an output, and weights of all heads or their mean."""
    if weights is None:
        raise ArgumentError("(output, None) of an attention module holds no weights; call it with need_weights=True.")
    is_mean = weights.dim() == output.dim()
    name = "mean of the heads" if is_mean else "layer 0"
    panels, text = _read_layers({name: weights}, replace(how, batch=how.sequence if output.dim() == 3 else None))
    more = " They are the mean of the heads; average_attn_weights=False returns every head." if is_mean else ""
    return panels, f"{text.partition(';')[0].rstrip('.')}.{more}"


# ---- sparse rows ----------------------------------------------------------------------------------------------------------


def _support_heads(found: Attention | Support, how: Reading) -> tuple[Heads, str]:
    """Returns the heads of one sequence from the sparse rows of a whole batch."""
    shape = None
    if isinstance(found, Attention):
        if found.support is None:
            raise ArgumentError("the result of ef.attention has no support; call it with return_support=True.")
        shape, found = tuple(found.output.shape), found.support
    rows, last = len(found.crow) - 1, int(found.col.max()) if len(found.col) else 0
    keys = len(how.key_tokens or how.tokens or ()) or 1 + last
    queries = shape[-2] if shape else len(how.tokens or ())
    if not queries or rows % queries:
        raise ArgumentError(
            f"a support of {rows} rows needs tokens, one per query, which divide its rows into heads; or give the "
            "whole result of ef.attention."
        )
    if keys <= last:
        raise ArgumentError(f"the support has weight on key {last}, but there are {keys} key tokens.")
    heads = shape[-3] if shape and len(shape) > 2 else rows // queries
    batch = rows // (heads * queries)
    if how.sequence >= batch:
        raise ArgumentError(f"batch={how.sequence}, but the support has a batch of {batch}.")
    if shape is None:
        text = f"A support of {rows} rows read as {heads} heads of {queries} queries."
    else:
        text = _sequence_text(how, batch)
    return _heads_of_sequence(found, heads, queries, keys, how.sequence), text


def _heads_of_sequence(support: Support, heads: int, queries: int, keys: int, sequence: int) -> Heads:
    """Returns the heads of one sequence. The rows of a support are in the order (batch, heads, queries)."""
    crow, col, weight = (part.detach().cpu().numpy() for part in support)
    found = []
    for head in range(heads):
        start = (sequence * heads + head) * queries
        rows = crow[start : start + queries + 1]
        inside = slice(int(rows[0]), int(rows[-1]))
        own = weight[inside].astype(np.float32)
        found.append(SparseRows((rows - rows[0]).astype(np.int64), col[inside].astype(np.int32), own, keys))
    return tuple(found)


def _sequence_text(how: Reading, batch: int) -> str:
    return f"Sequence {how.sequence} of a batch of {batch}; batch= selects another." if batch > 1 else ""


def _trace_panel(name: str, trace: AttentionTrace, how: Reading) -> tuple[Panel, str]:
    """Reads one call of an attention module, with its padding, causal mask and alphas."""
    how = _tokens_of_layer(name, how)
    batch, heads, queries, _ = trace.query.shape
    keys = trace.key.shape[2]
    if how.sequence >= batch:
        raise ArgumentError(f"batch={how.sequence}, but {name} has a batch of {batch}.")
    if how.key_mask is None and trace.masks.keys is not None:
        how = replace(how, key_mask=trace.masks.keys[how.sequence].cpu().numpy())
    if how.is_causal is None:
        how = replace(how, is_causal=_is_causal_trace(trace))
    panel = make_panel(name, _heads_of_sequence(trace.support, heads, queries, keys, how.sequence), how)
    alphas = () if trace.alphas is None else tuple(trace.alphas.tolist())
    return replace(panel, alphas=alphas), _sequence_text(how, batch)


def _tokens_of_layer(name: str, how: Reading) -> Reading:
    """Self-attention of nn.Transformer reads one side: source tokens, which are keys of the decoder, or target tokens."""
    if how.key_tokens is None or "self_attn" not in name:
        return how
    return replace(how, tokens=how.key_tokens if name.startswith("encoder") else how.tokens, key_tokens=None)


def _is_causal_trace(trace: AttentionTrace) -> bool:
    queries, keys = trace.query.shape[2], trace.key.shape[2]
    if queries != keys:
        return False
    seen = trace.masks.visible()
    ahead = seen is None or bool(seen.expand(-1, -1, queries, -1).triu(1).any())
    return (trace.causal and trace.offset == 0) or not ahead


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
