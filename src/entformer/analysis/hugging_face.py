"""Measures the heads of Hugging Face models: encoders, decoders and encoder-decoders, converted or not.

The model runs with our attention function, whose exact support is measured layer by layer and dropped, so that nothing of size
L x L is kept. A module that is called several times, such as ALBERT's, is one layer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entformer.analysis.rows import Ints, LayerRows
from entformer.analysis.table import HeadTable
from entformer.decoding.attention_record import attention_hooks, rows_per_head
from entformer.decoding.records import SparseRows
from entformer.errors import ArgumentError
from entformer.hf.configs import switched
from entformer.hf.coverage import UnsupportedModel, find_attention
from entformer.hf.function import Call, listening
from entformer.hf.heads import sparse_heads
from entformer.hf.texts import model_inputs
from entformer.kernels.attention.api import Attention, Support
from entformer.models.lm import CausalLM
from entformer.nn.dense import masked_scores
from entformer.nn.hooks import AttentionTrace
from entformer.nn.masks import ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One call of an attention module on one text."""

    attn_type: str
    layer: int
    call: Call
    result: Attention

    @property
    def support(self) -> Support:
        """The nonzero weights."""
        if self.result.support is None:
            raise ArgumentError("the support was not computed.")
        return self.result.support

    def rows(self, tokens: Sequence[int] | None = None) -> LayerRows:
        """Returns the weights in the form that measures take; `tokens` of self-attention."""
        heads, queries = self.call.query.shape[1:3]
        keys = self.call.key.shape[2]
        crow, col, weight = (part.cpu().numpy() for part in self.support)
        sizes = np.array([queries]), np.array([keys])
        fits = tokens is not None and self.attn_type != "cross" and len(tokens) == queries == keys
        ids: Ints | None = np.array([tokens], np.int64) if fits else None
        causal = self.attn_type == "decoder"
        support = crow, col, weight
        return LayerRows.from_support(
            self.attn_type, self.layer, support, heads, queries, keys, *sizes, causal=causal, tokens=ids
        )

    def rows_per_head(self) -> list[SparseRows]:
        """Returns the sparse weights of each head."""
        return rows_per_head(self.support, self.call.query.shape[2], self.call.key.shape[2])


class Tracer:
    """Runs a Hugging Face model and passes on every attention call."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        coverage = find_attention(model, inputs)
        if not coverage.modules:
            raise UnsupportedModel(model, coverage.reasons())
        self.model = model
        self.places = {id(found.module): (found.kind, found.layer) for found in coverage.modules}
        names = {found.name: (found.kind, found.layer) for found in coverage.modules}
        own = {names[name]: heads for name, heads in sparse_heads(model) if name in names}
        self.alphas = {
            (found.kind, found.layer): own[found.kind, found.layer]()[0].detach().double().cpu().numpy()
            if (found.kind, found.layer) in own
            else np.ones(found.num_heads)
            for found in coverage.modules
        }
        self.normalizers = {kind: "entmax" if any(key[0] == kind for key in own) else "softmax" for kind, _ in self.alphas}

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Any], hook: Callable[[LayerTrace], None]) -> Any:
        """Runs the model on one text, calls `hook` for every attention call, and returns the model's output."""

        def listener(module: nn.Module, call: Call, output: Tensor, keywords: dict[str, Any]) -> None:
            if (place := self.places.get(id(module))) is not None:
                hook(LayerTrace(*place, call, call.traced()))

        training = self.model.training
        self.model.eval()
        try:
            with switched(self.model), listening(listener):
                return self.model(**inputs)
        finally:
            self.model.train(training)


@dataclass(frozen=True, eq=False)
class LMCall:
    """One call of attention, as `LayerTrace` reads it."""

    query: Tensor
    key: Tensor
    terms: ScoreTerms
    sinks: None = None

    def scores(self) -> tuple[Tensor, Tensor]:
        """Returns the scores (1, H, Lq, Lk), and which are allowed."""
        scores, _ = masked_scores(self.query, self.key, self.terms)
        return scores, scores > -torch.inf


class LMTracer:
    """Runs a `CausalLM` and passes on every attention call."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.alphas = {
            (kind, layer): own[layer].double().cpu().numpy()
            for kind, own in model.alphas().items()
            for layer in range(len(own))
        }
        self.normalizers = {kind: module.normalizer for kind, _, module in model.attention_layers()}

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Any], hook: Callable[[LayerTrace], None]) -> Tensor:
        """Runs the model on one text, calls `hook` for every attention call, and returns the scores of the next tokens."""

        def pass_on(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
            call: Any = LMCall(trace.query, trace.key, ScoreTerms(trace.masks, module.slopes, trace.causal, trace.offset))
            hook(LayerTrace(kind, layer, call, Attention(trace.query, trace.stats, trace.support)))

        training = self.model.training
        self.model.eval()
        try:
            with attention_hooks(self.model, pass_on):
                found: Tensor = self.model(inputs["input_ids"])
                return found
        finally:
            self.model.train(training)


def make_tracer(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Returns a `Tracer`, or for a model of `entformer train` an `LMTracer`, which has the same interface."""
    if isinstance(model, CausalLM):
        return LMTracer(model)
    return Tracer(model, inputs)


def sides(inputs: Mapping[str, Any]) -> dict[str, list[int] | None]:
    """Returns the ids that each attention type attends from: "encoder" and "decoder"; None where there are no ids."""
    ids, target = inputs.get("input_ids"), inputs.get("decoder_input_ids")
    first = None if ids is None else ids[0].tolist()
    return {"encoder": first, "decoder": first if target is None else target[0].tolist()}


def collect_hf(
    model: nn.Module,
    texts: Iterable[Any],
    collector: Any,
    *,
    tokenizer: Any = None,
    length: int = 2048,
    progress: Callable[[int], None] | None = None,
) -> HeadTable:
    """Measures every head of a Hugging Face model on texts with a `Collector`; see `collect`."""
    inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length)
    tracer = make_tracer(model, inputs[0])
    for number, entry in enumerate(inputs):
        ids = sides(entry)

        def add(trace: LayerTrace, ids: dict[str, list[int] | None] = ids, number: int = number) -> None:
            collector.add(trace.rows(ids.get(trace.attn_type)), [number])

        tracer.run(entry, add)
        both = (tuple(ids["encoder"] or ()), tuple(ids["decoder"] or ()))
        collector.end_batch({number: both})
        if progress is not None:
            progress(number + 1)
    table: HeadTable = collector.table(tracer.alphas, tracer.normalizers)
    return table
