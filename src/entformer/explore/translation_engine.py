"""Translates for the explorer.

text -> ids -> beam search, with changed alphas -> candidates
text, target -> one pass with a hook on every layer -> sparse weights, measures, probabilities of the next token
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from entformer.analysis.collect import layer_rows
from entformer.analysis.training_text import TrainingText
from entformer.checkpoint import LoadedRun, RunFolder
from entformer.decoding.attention_record import attention_hooks, rows_per_head
from entformer.decoding.beam import beam_search
from entformer.decoding.defaults import DecodingDefaults, decoding_of_run
from entformer.decoding.direction import check_source_language
from entformer.decoding.length_penalty import MaxLength
from entformer.decoding.records import Hypothesis
from entformer.decoding.scoring import look_tokenized
from entformer.decoding.translate import one_line
from entformer.errors import ArgumentError
from entformer.explore.engine import (
    BaseEngine,
    HeadCollector,
    heads_of,
    learned_facts,
    make_steps,
    milliseconds_since,
    override_heads,
)
from entformer.explore.messages import (
    HIGHEST_ALPHA,
    LOWEST_ALPHA,
    WIDEST_BEAM,
    AttentionAnswer,
    AttentionRequest,
    Candidate,
    Search,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import BOS, EOS, NUM_SPECIAL_TOKENS


class TranslationEngine(BaseEngine):
    """A loaded run that handles requests from any thread.

    Its directory, if given, tells how its alphas were learned and how to decode; `training_text` which words it knows.
    """

    def __init__(
        self,
        run: LoadedRun,
        *,
        name: str,
        max_tokens: int,
        seconds: float,
        examples: Sequence[str],
        folder: RunFolder | None = None,
        training_text: TrainingText | None = None,
    ) -> None:
        self._run = run
        self._decoding = DecodingDefaults() if folder is None else decoding_of_run(folder.path)
        self._training_text = training_text
        self._model: Seq2Seq = run.model.eval()
        self._max_length = MaxLength()
        self._max_tokens = max_tokens
        alphas, adjustable = heads_of(self._model)
        super().__init__(
            self._model,
            alphas,
            adjustable,
            {
                "tokens": max_tokens,
                "target_tokens": self._max_length(max_tokens),
                "alpha": (LOWEST_ALPHA, HIGHEST_ALPHA),
                "seconds": seconds,
            },
            {
                "name": name,
                "languages": (run.source_language, run.target_language),
                "step": run.step,
                "vocabulary": run.subwords.size,
                "normalizers": {attn_type: module.normalizer for attn_type, _, module in self._model.attention_layers()},
                "lowercase": bool(run.info.get("lowercase")),
                "tokenized": bool(run.info.get("tokenized")),
                "examples": list(examples),
                "beam": min(self._decoding.beam, WIDEST_BEAM),
                "training_text": None if training_text is None else training_text.describe(),
                **learned_facts(folder, self._model.config, alphas, run.step),
            },
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
            milliseconds=milliseconds_since(began),
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
            found = HeadCollector(selected, deadline)
            log_probs = self._read(source, given, found)
        subwords = self._run.subwords
        target = [BOS, *given, EOS]
        return AttentionAnswer(
            source=subwords.pieces([*source, EOS]),
            target=subwords.pieces(target),
            source_text=one_line(request.text),
            target_text=one_line(subwords.decode(given)),
            heads=found.heads,
            alphas={**self._alphas, **request.alphas},
            measures=found.measures,
            steps=make_steps(log_probs.exp(), target[1:], subwords.pieces),
            omitted=found.omitted,
            unknown=[] if self._training_text is None else self._training_text.unknown(request.text),
            notes=self._notes(request.text, finished),
            milliseconds=milliseconds_since(began),
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

    def _override(self, alphas: Mapping[str, float]) -> AbstractContextManager[None]:
        return override_heads(self._model, alphas)

    def _search(self, source: Sequence[int], request: Search, n_best: int, deadline: Deadline) -> list[Hypothesis]:
        if request.new_tokens is not None or request.temperature > 0.0:
            raise ArgumentError("new_tokens and temperature are for models that continue text; this one translates.")
        prefix = self._encode(request.prefix)
        most = self._max_length(len(source))
        if len(prefix) > most:
            raise ArgumentError(f"the prefix has {len(prefix)} subwords; a translation of this sentence has at most {most}.")

        def step(tokens: Tensor, state: Any) -> Tensor:
            deadline.check()
            return self._model.step(tokens, state)

        (found,) = beam_search(
            SimpleNamespace(start=self._model.start, step=step, log_probs=self._model.log_probs),
            torch.tensor([[*source, EOS]], device=self._device),
            beam=request.beam,
            length_penalty=self._decoding.length_penalty,
            length_penalty_alpha=self._decoding.length_penalty_alpha,
            n_best=n_best,
            max_length=self._max_length,
            min_length=1,
            prefix=[prefix],
        )
        return found

    def _read(self, source: Sequence[int], target: Sequence[int], found: HeadCollector) -> Tensor:
        """Reads source and target into `found`, and returns log-probabilities (T + 1, V)."""
        sizes = np.array([len(source) + 1]), np.array([len(target) + 1])

        def hook(attn_type: str, layer: int, _: MultiheadAttention, trace: AttentionTrace) -> None:
            rows = rows_per_head(trace.support, trace.query.shape[2], trace.key.shape[2])
            found.add(layer_rows(attn_type, layer, trace, *sizes), rows)

        with attention_hooks(self._model, hook):
            memory = self._model.encode(torch.tensor([[*source, EOS]], device=self._device))
            hidden = self._model.decode(torch.tensor([[BOS, *target]], device=self._device), memory)
            return self._model.log_probs(self._model.logits(hidden[0]))

    @property
    def _device(self) -> torch.device:
        return self._model.source_embedding.device


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
