"""Measures the heads of Hugging Face models: encoders, decoders and encoder-decoders, converted or not.

The model runs with our attention function. A module that is called several times, such as ALBERT's, is one layer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entformer.analysis.collector import Collector
from entformer.analysis.table import HeadTable
from entformer.analysis.traces import Inputs, LayerTrace, collect_texts
from entformer.hf.configs import switched
from entformer.hf.coverage import UnsupportedModel, find_attention
from entformer.hf.function import Call, listening
from entformer.hf.heads import sparse_heads
from entformer.hf.texts import model_inputs
from entformer.text.tokenizer import SPACE


class Tracer:
    """Runs a Hugging Face model and passes on every attention call."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
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
    def run(self, inputs: Inputs, hook: Callable[[LayerTrace], None]) -> Tensor:
        """Runs the model on one text, calls `hook` for every attention call, and returns its scores; see `TextTracer`."""

        def listener(module: nn.Module, call: Call, output: Tensor, keywords: dict[str, Any]) -> None:
            if (place := self.places.get(id(module))) is not None:
                hook(LayerTrace(*place, call, call.traced().support))

        training = self.model.training
        self.model.eval()
        try:
            with switched(self.model), listening(listener):
                scores: Tensor = getattr(self.model(**inputs), "logits", torch.empty(0))
                return scores
        finally:
            self.model.train(training)


def collect_hf(
    model: nn.Module,
    texts: Iterable[Any],
    collector: Collector,
    *,
    tokenizer: Any = None,
    length: int = 2048,
    progress: Callable[[int], None] | None = None,
) -> HeadTable:
    """Measures every head of a Hugging Face model on texts with a `Collector`; see `collect`."""
    inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length)
    return collect_texts(Tracer(model, inputs[0]), inputs, collector, progress)


class HuggingFaceTokens:
    """The tokens of a tokenizer, as pages show them; without one, the ids themselves."""

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns each id as text; a space that begins a word is shown as pages expect it."""
        if self._tokenizer is None:
            return [str(token) for token in ids]
        decoded = (self._tokenizer.decode([token]).replace("\n", "⏎") for token in ids)
        return [f"{SPACE}{piece[1:]}" if piece[:1] == " " else piece or "·" for piece in decoded]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""
        text: str = " ".join(map(str, ids)) if self._tokenizer is None else self._tokenizer.decode(ids)
        return text
