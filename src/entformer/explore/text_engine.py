"""Continues text for the explorer, with a decoder of any library.

There is no source: `target` holds the tokens of the text and its continuation, and row i of a head belongs to the prediction
of token i + 1.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from entformer.analysis.text_report import END, Tokens
from entformer.analysis.traces import TextTracer
from entformer.errors import ArgumentError
from entformer.explore.engine import BaseEngine, HeadCollector, make_steps, milliseconds_since
from entformer.explore.messages import (
    LOWEST_ALPHA,
    MOST_NEW_TOKENS,
    NEW_TOKENS,
    AttentionAnswer,
    AttentionRequest,
    Candidate,
    Search,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline


class TextEngine(BaseEngine):
    """A decoder that handles requests from any thread.

    Args:
        model: The model, in eval mode.
        tracer: Runs it.
        tokens: Shows its ids.
        ends: The ids that end a text.
        alphas, adjustable: See `BaseEngine`.
        highest_alpha: That a head may have.
        max_tokens: Of a text.
        seconds: Of a request.
        facts: Further facts of the model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tracer: TextTracer,
        tokens: Tokens,
        ends: Sequence[int],
        alphas: Mapping[str, float | None],
        adjustable: set[str],
        *,
        highest_alpha: float,
        max_tokens: int,
        seconds: float,
        facts: Mapping[str, Any],
    ) -> None:
        self._tracer, self._tokens, self._ends = tracer, tokens, set(ends)
        self._device = next(model.parameters()).device
        self._max_tokens = max_tokens
        alpha = (LOWEST_ALPHA, highest_alpha)
        limits = {"tokens": max_tokens, "target_tokens": MOST_NEW_TOKENS, "alpha": alpha, "seconds": seconds}
        about = {"task": "generation", "languages": ("", ""), "lowercase": False, "tokenized": False}
        super().__init__(model, alphas, adjustable, limits, {**about, "normalizers": tracer.normalizers, **facts})

    # ---- of each library -------------------------------------------------------------------------------------------------

    def _encode(self, text: str) -> list[int]:
        """Returns the ids of the beginning of a text."""
        raise NotImplementedError

    def _encode_more(self, text: str) -> list[int]:
        """Returns the ids of text that follows other text."""
        raise NotImplementedError

    def _generate(self, ids: Sequence[int], request: Search, count: int, deadline: Deadline) -> list[list[int]]:
        """Returns `count` continuations of ids; what is behind an id that ends a text is ignored."""
        raise NotImplementedError

    def _scores(self, ids: Sequence[int]) -> Tensor:
        """Returns the scores of the token after each id, (T, V)."""
        raise NotImplementedError

    # ---- requests --------------------------------------------------------------------------------------------------------

    def translate(self, request: TranslateRequest, deadline: Deadline) -> TranslateAnswer:
        """Returns continuations, the most probable first."""
        began = time.perf_counter()
        ids = self._text(request)
        with self._changed(request.alphas):
            candidates = self._continue(ids, request, request.n_best, deadline)
        pieces = list(self._tokens.pieces(ids))
        return TranslateAnswer(source=pieces, candidates=candidates, notes=[], milliseconds=milliseconds_since(began))

    def attention(self, request: AttentionRequest, deadline: Deadline) -> AttentionAnswer:
        """Returns the attention of every head while the text and its continuation are read, and every token's probability."""
        began = time.perf_counter()
        ids = self._text(request)
        selected = self._select_heads(request.heads)
        more = request.target_ids if request.target is None else self._encode_more(request.target)
        with self._changed(request.alphas):
            if more is None:
                more = self._continue(ids, request, 1, deadline)[0].ids
            if any(not 0 <= token < self.facts.vocabulary for token in more):
                raise ArgumentError(f"target_ids must be between 0 and {self.facts.vocabulary - 1}.")
            if len(more) > MOST_NEW_TOKENS:
                raise ArgumentError(f"the continuation has {len(more)} tokens; at most {MOST_NEW_TOKENS} are allowed.")
            found = HeadCollector(selected, deadline)
            whole = [*ids, *more]
            inputs = {"input_ids": torch.tensor([whole], device=self._device)}
            logits = self._tracer.run(inputs, lambda trace: found.add(trace.rows(whole), trace.rows_per_head()))
        after = int(logits[0, -1].argmax())  # the most probable token after the text
        return AttentionAnswer(
            source=[],
            target=[*self._tokens.pieces(whole), END],
            source_text="",
            target_text=self._tokens.decode(whole),
            heads=found.heads,
            alphas={**self._alphas, **request.alphas},
            measures=found.measures,
            steps=make_steps(logits[0].float().softmax(-1), [*whole[1:], after], self._tokens.pieces),
            omitted=found.omitted,
            notes=self._notes(len(whole)),
            milliseconds=milliseconds_since(began),
        )

    def _notes(self, length: int) -> list[str]:
        """Returns warnings about a text of so many tokens."""
        return []

    # ---- the model -------------------------------------------------------------------------------------------------------

    def _text(self, request: Search) -> list[int]:
        if request.prefix:
            raise ArgumentError("prefix is for models that translate; add it to the text.")
        ids = self._encode(request.text)
        if not ids:
            raise ArgumentError("text contains no token; write a sentence.")
        if len(ids) > self._max_tokens:
            raise ArgumentError(
                f"the text has {len(ids)} tokens; at most {self._max_tokens} are allowed. Shorten it, or start the explorer "
                "with a larger --max-tokens."
            )
        return ids

    def _continue(self, ids: Sequence[int], request: Search, count: int, deadline: Deadline) -> list[Candidate]:
        """Returns continuations with their log-probabilities, the end of the text included."""
        candidates = []
        for row in self._generate(ids, request, count, deadline):
            end = next((at for at, token in enumerate(row) if token in self._ends), None)
            more, scored = row[:end], row if end is None else row[: end + 1]
            log_prob = 0.0
            if scored:
                scores = self._scores([*ids, *scored[:-1]])[len(ids) - 1 :].float().log_softmax(-1)
                log_prob = float(scores.gather(1, torch.tensor(scored, device=scores.device)[:, None]).sum())
            candidates.append(
                Candidate(
                    text=self._tokens.decode([*ids, *more])[len(self._tokens.decode(ids)) :],
                    score=log_prob / max(len(scored), 1),
                    log_prob=log_prob,
                    finished=end is not None,
                    pieces=list(self._tokens.pieces(more)),
                    ids=more,
                )
            )
            deadline.check()
        return sorted(candidates, key=lambda candidate: -(candidate.score or 0.0))


def new_tokens(request: Search) -> int:
    """Returns how many tokens to generate."""
    return NEW_TOKENS if request.new_tokens is None else request.new_tokens
