"""Runs the model for the explorer.

    text -> ids -> beam search, with changed alphas -> candidates
    text, target -> one pass with a hook on every layer -> sparse weights, measures, probabilities of the next token

A lock admits one thread at a time, and alphas are overridden only while it is held.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from entformer import __version__
from entformer.analysis.collect import layer_rows
from entformer.analysis.measures import HEAD_MEASURES, measure_sentence
from entformer.analysis.sentence import packed_rows
from entformer.checkpoint import LoadedRun
from entformer.decoding.attention_record import attention_hooks, rows_per_head
from entformer.decoding.beam import beam_search
from entformer.decoding.direction import check_source_language
from entformer.decoding.length_penalty import MaxLength
from entformer.decoding.records import Hypothesis
from entformer.decoding.scoring import look_tokenized
from entformer.decoding.translate import one_line
from entformer.errors import ArgumentError
from entformer.explore.messages import (
    CHARACTERS,
    HIGHEST_ALPHA,
    LOWEST_ALPHA,
    WIDEST_BEAM,
    Alternative,
    AttentionAnswer,
    AttentionRequest,
    Candidate,
    HeadFacts,
    HeadWeights,
    Limits,
    MeasureLists,
    ModelFacts,
    Search,
    Step,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline
from entformer.models.override import overridden_alphas, takes_alpha
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import BOS, EOS, NUM_SPECIAL_TOKENS

MOST_WEIGHTS = 1_000_000  # in one answer: some ten bytes each
ALTERNATIVES = 5  # tokens shown for each step


class Engine:
    """A loaded run that handles requests from any thread."""

    def __init__(
        self, run: LoadedRun, *, name: str, max_tokens: int, seconds: float, examples: Sequence[str], learned: Mapping[str, Any]
    ) -> None:
        self._run = run
        self._model: Seq2Seq = run.model.eval()
        self._lock = threading.Lock()
        self._max_length = MaxLength()
        self._max_tokens = max_tokens
        self._alphas = {key: alpha for key, alpha, _ in self._heads()}
        self.facts = self._describe(name, seconds, examples, learned)

    def _heads(self) -> Iterator[tuple[str, float | None, bool]]:
        for attn_type, layer, attention in self._model.attention_layers():
            own = attention.alphas
            alphas = [None] * attention.num_heads if own is None else own.tolist()
            yield from ((f"{attn_type}.{layer}.{head}", alpha, takes_alpha(attention)) for head, alpha in enumerate(alphas))

    def _describe(self, name: str, seconds: float, examples: Sequence[str], learned: Mapping[str, Any]) -> ModelFacts:
        run, model = self._run, self._model
        heads = []
        for key, alpha, adjustable in self._heads():
            attn_type, layer, head = _parsed(key)
            facts = {"attn_type": attn_type, "layer": layer, "head": head, "alpha": alpha, "adjustable": adjustable}
            heads.append(HeadFacts.model_validate(facts))
        return ModelFacts(
            name=name,
            languages=(run.source_language, run.target_language),
            step=run.step,
            entformer=__version__,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            vocabulary=run.subwords.size,
            normalizers={attn_type: attention.normalizer for attn_type, _, attention in model.attention_layers()},
            lowercase=bool(run.info.get("lowercase")),
            tokenized=bool(run.info.get("tokenized")),
            heads=heads,
            measures=MeasureLists.model_validate({"heads": [measure.to_dict() for measure in HEAD_MEASURES]}),
            limits=Limits(
                characters=CHARACTERS,
                tokens=self._max_tokens,
                target_tokens=self._max_length(self._max_tokens),
                beam=WIDEST_BEAM,
                n_best=WIDEST_BEAM,
                alpha=(LOWEST_ALPHA, HIGHEST_ALPHA),
                seconds=seconds,
            ),
            examples=list(examples),
            **{key: value for key, value in learned.items() if key in ModelFacts.model_fields},
        )

    # ---- requests --------------------------------------------------------------------------------------------------------

    def translate(self, request: TranslateRequest, deadline: Deadline) -> TranslateAnswer:
        """Returns the n best translations."""
        began = time.perf_counter()
        source = self._source(request.text)
        with self._changed(request.alphas):
            found = self._search(source, request, request.n_best, deadline)
        subwords = self._run.subwords
        return TranslateAnswer(
            source=subwords.pieces([*source, EOS]),
            candidates=[
                Candidate(
                    text=one_line(subwords.decode(hypothesis.tokens)),
                    score=_finite(hypothesis.score),
                    log_prob=_finite(hypothesis.log_prob),
                    finished=hypothesis.finished,
                    pieces=subwords.pieces(hypothesis.tokens),
                    ids=list(hypothesis.tokens),
                )
                for hypothesis in found
            ],
            notes=self._notes(request.text, found[0].finished),
            milliseconds=_since(began),
        )

    def attention(self, request: AttentionRequest, deadline: Deadline) -> AttentionAnswer:
        """Returns the attention of every head while the target is read, and the probability of each of its tokens."""
        began = time.perf_counter()
        source, finished = self._source(request.text), True
        selected = self._select_heads(request.heads)
        given = self._target(request)
        with self._changed(request.alphas):
            if given is None:
                (best,) = self._search(source, request, 1, deadline)
                given, finished = list(best.tokens), best.finished
            heads, omitted, measures, log_probs = self._read(source, given, selected, deadline)
        subwords = self._run.subwords
        target = [BOS, *given, EOS]
        changed = dict(request.alphas)
        return AttentionAnswer(
            source=subwords.pieces([*source, EOS]),
            target=subwords.pieces(target),
            source_text=one_line(request.text),
            target_text=one_line(subwords.decode(given)),
            heads=heads,
            alphas={key: changed.get(key, alpha) for key, alpha in self._alphas.items()},
            measures=measures,
            steps=self._steps(log_probs, target[1:]),
            omitted=omitted,
            notes=self._notes(request.text, finished),
            milliseconds=_since(began),
        )

    # ---- text to ids -----------------------------------------------------------------------------------------------------

    def _source(self, text: str) -> list[int]:
        ids = self._encode(text)
        if not ids:
            raise ArgumentError("text contains no word; write a sentence.")
        if len(ids) > self._max_tokens:
            raise ArgumentError(
                f"the sentence has {len(ids)} subwords; at most {self._max_tokens} are allowed. Shorten it, or start the "
                "explorer with a larger --max-tokens."
            )
        return ids

    def _target(self, request: AttentionRequest) -> list[int] | None:
        """Returns the ids to read, without BOS and EOS; None: the model's own translation."""
        ids = request.target_ids if request.target is None else self._encode(request.target)
        if ids is None:
            return None
        most, size = self.facts.limits.target_tokens, self._run.subwords.size
        if len(ids) > most:
            raise ArgumentError(f"the target has {len(ids)} subwords; at most {most} are allowed. Shorten it.")
        if any(not NUM_SPECIAL_TOKENS <= token < size for token in ids):
            raise ArgumentError(f"target_ids must be between {NUM_SPECIAL_TOKENS} and {size - 1}, without BOS and EOS.")
        return list(ids)

    def _select_heads(self, names: Sequence[str] | None) -> set[str]:
        if names is None:
            return set(self._alphas)
        for name in names:
            if name not in self._alphas:
                raise ArgumentError(f"there is no head {name}; /api/model lists them.")
        return set(names)

    def _encode(self, text: str) -> list[int]:
        text = one_line(text).replace("\0", " ")  # a NUL ends a string in sentencepiece
        return self._run.subwords.encode(text.lower() if self.facts.lowercase else text)

    def _notes(self, text: str, finished: bool) -> list[str]:
        """Returns warnings about the input and the translation."""
        run, notes = self._run, []
        language_warning = check_source_language([text], run.source_language, run.target_language)
        if language_warning is not None:
            notes.append(f"{language_warning[0].upper()}{language_warning[1:]}")
        ends = text.rstrip().endswith((".", "?", "!"))
        if self.facts.tokenized and ends and not look_tokenized([text]):
            notes.append("This model was trained on tokenized text: put a space before punctuation.")
        if not finished:
            notes.append("The translation was cut at the length limit.")
        return notes

    # ---- the model -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _changed(self, alphas: dict[str, float]) -> Iterator[None]:
        """Locks the model for this thread, with these alphas."""
        with self._lock, overridden_alphas(self._model, {_parsed(key): alpha for key, alpha in alphas.items()}):
            yield

    def _search(self, source: Sequence[int], request: Search, n_best: int, deadline: Deadline) -> list[Hypothesis]:
        prefix = self._encode(request.prefix)
        most = self._max_length(len(source))
        if len(prefix) > most:
            raise ArgumentError(f"the prefix has {len(prefix)} subwords; a translation of this sentence has at most {most}.")
        (found,) = beam_search(
            _Stoppable(self._model, deadline),
            torch.tensor([[*source, EOS]], device=self._device),
            beam=request.beam,
            n_best=n_best,
            max_length=self._max_length,
            min_length=1,
            prefix=[prefix],
        )
        return found

    def _read(
        self, source: Sequence[int], target: Sequence[int], selected: set[str], deadline: Deadline
    ) -> tuple[dict[str, HeadWeights], list[str], dict[str, dict[str, float]], Tensor]:
        """Returns the weights of the selected heads, those dropped, measures, and log-probabilities (T + 1, V)."""
        heads: dict[str, HeadWeights] = {}
        omitted: list[str] = []
        measures: dict[str, dict[str, float]] = {}
        budget = MOST_WEIGHTS
        sizes = {"source": np.array([len(source) + 1]), "target": np.array([len(target) + 1])}

        def hook(attn_type: str, layer: int, _: MultiheadAttention, trace: AttentionTrace) -> None:
            nonlocal budget
            deadline.check()
            queries = sizes["source" if attn_type == "encoder" else "target"]
            keys = sizes["target" if attn_type == "decoder" else "source"]
            measures.update(measure_sentence(layer_rows(attn_type, layer, trace, queries, keys), None))
            for key, rows in rows_per_head(attn_type, layer, trace):
                name = f"{attn_type}.{layer}.{key.head}"
                if name not in selected:
                    continue
                if len(rows.col) > budget and heads:  # one head is always returned
                    omitted.append(name)
                    continue
                budget -= len(rows.col)
                heads[name] = HeadWeights(**packed_rows(rows))

        with torch.no_grad(), attention_hooks(self._model, hook):
            memory = self._model.encode(torch.tensor([[*source, EOS]], device=self._device))
            hidden = self._model.decode(torch.tensor([[BOS, *target]], device=self._device), memory)
            return heads, omitted, measures, self._model.log_probs(self._model.logits(hidden[0]))

    def _steps(self, log_probs: Tensor, predicted: Sequence[int]) -> list[Step]:
        pieces = self._run.subwords.pieces
        probabilities = log_probs.exp()  # (T + 1, V)
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

    @property
    def _device(self) -> torch.device:
        return self._model.source_embedding.device


class _Stoppable:
    """A model for the search that stops at the next step after the deadline."""

    def __init__(self, model: Seq2Seq, deadline: Deadline) -> None:
        self._model = model
        self._deadline = deadline

    def start(self, source: Tensor, source_mask: Tensor | None) -> Any:
        self._deadline.check()
        return self._model.start(source, source_mask)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        self._deadline.check()
        return self._model.step(tokens, state)

    def log_probs(self, logits: Tensor) -> Tensor:
        return self._model.log_probs(logits)


def _parsed(name: str) -> tuple[str, int, int]:
    attn_type, layer, head = name.split(".")
    return attn_type, int(layer), int(head)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)
