"""The attention of a model that reads texts of tokens, call by call; the model may be of any library.

A tracer runs the model (`TextTracer`): of Hugging Face models `hugging_face.py`, of language models of `entformer train`
`language_model.py`. The exact support of a layer is measured and dropped, so that nothing of size L x L is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from entformer.analysis.collector import Collector
from entformer.analysis.rows import Floats, Ints, LayerRows
from entformer.analysis.table import HeadTable
from entformer.decoding.attention_record import rows_per_head
from entformer.decoding.records import SparseRows
from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Support

Inputs = Mapping[str, Any]
"""Keyword arguments of a model: "input_ids" (1, L), and "decoder_input_ids" of an encoder-decoder."""


class AttentionCall(Protocol):
    """What one call of attention computes its scores from."""

    @property
    def query(self) -> Tensor:
        """(1, H, Lq, D)"""

    @property
    def key(self) -> Tensor:
        """(1, H, Lk, D)"""

    @property
    def sinks(self) -> Tensor | None:
        """A further score of each row, whose weight is dropped."""

    def scores(self) -> tuple[Tensor, Tensor]:
        """Returns the scores (1, H, Lq, Lk), and which are allowed."""


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One call of an attention module on one text."""

    attn_type: str
    layer: int
    call: AttentionCall
    support: Support | None

    def rows(self, tokens: Sequence[int] | None = None) -> LayerRows:
        """Returns the weights in the form that measures take; `tokens` of self-attention."""
        heads, queries = self.call.query.shape[1:3]
        keys = self.call.key.shape[2]
        crow, col, weight = (part.cpu().numpy() for part in self._known())
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
        return rows_per_head(self._known(), self.call.query.shape[2], self.call.key.shape[2])

    def _known(self) -> Support:
        if self.support is None:
            raise ArgumentError("the support was not computed.")
        return self.support


class TextTracer(Protocol):
    """Runs a model and passes on every attention call."""

    @property
    def alphas(self) -> Mapping[tuple[str, int], Floats]:
        """(attention type, layer) -> the alpha of each head."""

    @property
    def normalizers(self) -> Mapping[str, str]:
        """Attention type -> normalizer."""

    def run(self, inputs: Inputs, hook: Callable[[LayerTrace], None]) -> Tensor:
        """Runs the model on one text, calls `hook` for every call, and returns the scores of the next tokens, (1, L, V).

        The scores of a model without them are empty.
        """


def sides(inputs: Inputs) -> dict[str, list[int] | None]:
    """Returns the ids that each attention type attends from: "encoder" and "decoder"; None where there are no ids."""
    ids, target = inputs.get("input_ids"), inputs.get("decoder_input_ids")
    first = None if ids is None else ids[0].tolist()
    return {"encoder": first, "decoder": first if target is None else target[0].tolist()}


def collect_texts(
    tracer: TextTracer, inputs: Sequence[Inputs], collector: Collector, progress: Callable[[int], None] | None = None
) -> HeadTable:
    """Measures every head on texts; see `collect`."""
    for number, entry in enumerate(inputs):
        ids = sides(entry)

        def add(trace: LayerTrace, ids: dict[str, list[int] | None] = ids, number: int = number) -> None:
            collector.add(trace.rows(ids.get(trace.attn_type)), [number])

        tracer.run(entry, add)
        source, target = (tuple(ids[side] or ()) if side in tracer.normalizers else () for side in ("encoder", "decoder"))
        collector.end_batch({number: (source, target)})
        if progress is not None:
            progress(number + 1)
    return collector.table(tracer.alphas, tracer.normalizers)
