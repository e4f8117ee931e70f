"""What the engines of all models share: facts, limits, a lock, the weights and measures of heads, the next token.

A lock admits one thread at a time, and alphas are overridden only while it is held. `translation_engine.py` translates,
`text_engine.py` continues text.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from entformer import __version__
from entformer.analysis.history import learned_alphas_of
from entformer.analysis.measures import HEAD_MEASURES, measure_sentence
from entformer.analysis.rows import LayerRows
from entformer.analysis.sentence import packed_rows
from entformer.checkpoint import RunFolder
from entformer.decoding.records import SparseRows
from entformer.errors import ArgumentError
from entformer.explore.messages import (
    CHARACTERS,
    WIDEST_BEAM,
    Alternative,
    HeadFacts,
    HeadWeights,
    Limits,
    MeasureLists,
    ModelFacts,
    Step,
)
from entformer.explore.model_queue import Deadline
from entformer.models.attention_settings import AttentionModel
from entformer.models.config import Seq2SeqConfig
from entformer.models.lm_config import LMConfig
from entformer.models.override import overridden_alphas, takes_alpha

MOST_WEIGHTS = 1_000_000  # in one answer: some ten bytes each
ALTERNATIVES = 5  # tokens shown for each step


class BaseEngine:
    """What the engines of all models share.

    Args:
        model: The model, in any mode.
        alphas: Of each head as trained, None where there is none.
        adjustable: The heads that may have another alpha.
        limits: Of a request, those that depend on the model.
        facts: Of the model, those that depend on it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        alphas: Mapping[str, float | None],
        adjustable: set[str],
        limits: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> None:
        self._lock = threading.Lock()
        self._alphas = dict(alphas)
        heads = []
        for key, alpha in alphas.items():
            place = dict(zip(("attn_type", "layer", "head"), parse_head(key), strict=True))
            heads.append(HeadFacts.model_validate({**place, "alpha": alpha, "adjustable": key in adjustable}))
        self.facts = ModelFacts(
            entformer=__version__,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            heads=heads,
            measures=MeasureLists.model_validate({"heads": [measure.to_dict() for measure in HEAD_MEASURES]}),
            limits=Limits(characters=CHARACTERS, beam=WIDEST_BEAM, n_best=WIDEST_BEAM, **limits),
            **facts,
        )

    def _override(self, alphas: Mapping[str, float]) -> AbstractContextManager[None]:
        """Returns a context in which some heads have other alphas."""
        raise NotImplementedError

    @contextmanager
    def _changed(self, alphas: Mapping[str, float]) -> Iterator[None]:
        """Locks the model for this thread, with these alphas."""
        with self._lock, self._override(alphas):
            yield

    def _select_heads(self, names: Sequence[str] | None) -> set[str]:
        for name in names or ():
            if name not in self._alphas:
                raise ArgumentError(f"there is no head {name}; /api/model lists them.")
        return set(self._alphas if names is None else names)


class HeadCollector:
    """The weights of the selected heads, as many as an answer may hold, and the measures of all."""

    def __init__(self, selected: set[str], deadline: Deadline) -> None:
        self.heads: dict[str, HeadWeights] = {}
        self.omitted: list[str] = []
        self.measures: dict[str, dict[str, float]] = {}
        self._selected = selected
        self._deadline = deadline
        self._left = MOST_WEIGHTS

    def add(self, layer: LayerRows, heads: Iterable[SparseRows]) -> None:
        """Adds a layer: all heads together for the measures, and each of them."""
        self._deadline.check()
        self.measures.update(measure_sentence(layer, None))
        for head, rows in enumerate(heads):
            name = f"{layer.attn_type}.{layer.layer}.{head}"
            if name not in self._selected:
                continue
            if len(rows.col) > self._left and self.heads:  # one head is always returned
                self.omitted.append(name)
                continue
            self._left -= len(rows.col)
            self.heads[name] = HeadWeights(**packed_rows(rows))


def heads_of(model: AttentionModel) -> tuple[dict[str, float | None], set[str]]:
    """Returns the alpha of each head by name, None where there is none, and the heads that may have another."""
    alphas: dict[str, float | None] = {}
    adjustable: set[str] = set()
    for attn_type, layer, attention in model.attention_layers():
        own = attention.alphas
        names = [f"{attn_type}.{layer}.{head}" for head in range(attention.num_heads)]
        alphas.update(zip(names, [None] * len(names) if own is None else own.tolist(), strict=True))
        adjustable.update(names if takes_alpha(attention) else ())
    return alphas, adjustable


def override_heads(model: AttentionModel, alphas: Mapping[str, float]) -> AbstractContextManager[None]:
    """Returns a context in which heads have other alphas, by name."""
    return overridden_alphas(model, {parse_head(name): alpha for name, alpha in alphas.items()})


def learned_facts(
    folder: RunFolder | None, config: Seq2SeqConfig | LMConfig, alphas: Mapping[str, float | None], step: int
) -> dict[str, Any]:
    """Returns what `ModelFacts` has about how alphas were learned; nothing without a run directory."""
    if folder is None:
        return {}
    final = {parse_head(name): alpha for name, alpha in alphas.items() if alpha is not None}
    learned = learned_alphas_of(folder, config, final, step)
    return {key: value for key, value in learned.items() if key in ModelFacts.model_fields}


def make_steps(probabilities: Tensor, predicted: Sequence[int], pieces: Callable[[Sequence[int]], Sequence[str]]) -> list[Step]:
    """Describes how each token was predicted, from probabilities (T, V)."""
    own = probabilities.gather(1, torch.tensor(predicted, device=probabilities.device)[:, None])[:, 0].tolist()
    values, indices = (found.tolist() for found in probabilities.topk(min(ALTERNATIVES, probabilities.shape[1]), dim=1))
    return [
        Step(
            piece=piece,
            probability=own[at],
            best=[
                Alternative(piece=other, probability=value)
                for other, value in zip(pieces(indices[at]), values[at], strict=True)
                if value > 0.0
            ],
        )
        for at, piece in enumerate(pieces(predicted))
    ]


def parse_head(name: str) -> tuple[str, int, int]:
    """Splits "cross.1.2" into attention type, layer and head."""
    attn_type, layer, head = name.split(".")
    return attn_type, int(layer), int(head)


def milliseconds_since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)
