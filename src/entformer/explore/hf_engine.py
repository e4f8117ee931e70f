"""Runs a Hugging Face language model for the explorer: continues a text, and returns every head while the text is read.

There is no source: `target` holds the tokens of the text and its continuation, and row i of a
head belongs to the prediction of token i + 1.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from entformer.analysis.hugging_face import LayerTrace, Tracer, sides
from entformer.analysis.hugging_face_report import END, pieces
from entformer.errors import ArgumentError
from entformer.explore.engine import BaseEngine, HeadCollector, make_steps, milliseconds_since, parse_head
from entformer.explore.messages import (
    LOWEST_ALPHA,
    AttentionAnswer,
    AttentionRequest,
    Candidate,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline
from entformer.hf.heads import HIGHEST, SparseHeads, sparse_heads
from entformer.hf.sampling import EveryToken

NEW_TOKENS = 16  # of a continuation


class HfEngine(BaseEngine):
    """A Hugging Face language model that handles requests from any thread."""

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str, max_tokens: int, seconds: float, examples: Sequence[str] = ()
    ) -> None:
        if tokenizer is None:
            raise ArgumentError("the explorer needs the tokenizer of the model; save it in the same directory.")
        if not model.can_generate() or getattr(model.config, "is_encoder_decoder", False):
            raise ArgumentError(f"the explorer continues text with a decoder; {type(model).__name__} is not one. Use a report.")
        self._model, self._tokenizer = model.eval(), tokenizer
        self._max_tokens = max_tokens
        first = torch.tensor([self._tokenizer("a b")["input_ids"]], device=model.device)
        self._tracer = Tracer(model, {"input_ids": first})
        owned = {id(model.get_submodule(name)): heads for name, heads in sparse_heads(model)}
        self._heads: dict[tuple[str, int], SparseHeads] = {
            place: owned[number] for number, place in self._tracer.places.items() if number in owned
        }
        alphas = {
            f"{attn_type}.{layer}.{head}": float(alpha)
            for (attn_type, layer), values in self._tracer.alphas.items()
            for head, alpha in enumerate(values)
        }
        super().__init__(
            model,
            alphas,
            {key for key in alphas if parse_head(key)[:2] in self._heads},
            {"tokens": max_tokens, "target_tokens": NEW_TOKENS, "alpha": (LOWEST_ALPHA, HIGHEST), "seconds": seconds},
            {
                "name": name,
                "task": "generation",
                "languages": ("", ""),
                "step": 0,
                "vocabulary": len(tokenizer),
                "normalizers": self._tracer.normalizers,
                "lowercase": False,
                "tokenized": False,
                "examples": list(examples),
            },
        )

    # ---- requests --------------------------------------------------------------------------------------------------------

    def translate(self, request: TranslateRequest, deadline: Deadline) -> TranslateAnswer:
        """Returns the n best continuations."""
        began = time.perf_counter()
        ids = self._encode(request.text)
        with self._changed(request.alphas):
            candidates = self._continue(ids, request.beam, request.n_best, deadline)
        return TranslateAnswer(
            source=self._pieces(ids), candidates=candidates, notes=[], milliseconds=milliseconds_since(began)
        )

    def attention(self, request: AttentionRequest, deadline: Deadline) -> AttentionAnswer:
        """Returns the attention of every head while the text and its continuation are read, and every token's probability."""
        began = time.perf_counter()
        ids = self._encode(request.text)
        selected = self._select_heads(request.heads)
        more = request.target_ids
        if request.target is not None:
            more = self._tokenizer(request.target, add_special_tokens=False)["input_ids"]
        with self._changed(request.alphas):
            if more is None:
                more = self._continue(ids, request.beam, 1, deadline)[0].ids
            if any(not 0 <= token < len(self._tokenizer) for token in more):
                raise ArgumentError(f"target_ids must be between 0 and {len(self._tokenizer) - 1}.")
            if len(more) > self._max_tokens:
                raise ArgumentError(f"the continuation has {len(more)} tokens; at most {self._max_tokens} are allowed.")
            found = HeadCollector(selected, deadline)
            logits = self._read([*ids, *more], found)
        after = int(logits[-1].argmax())  # the most probable token after the text
        return AttentionAnswer(
            source=[],
            target=[*self._pieces([*ids, *more]), END],
            source_text="",
            target_text=self._tokenizer.decode([*ids, *more]),
            heads=found.heads,
            alphas={**self._alphas, **request.alphas},
            measures=found.measures,
            steps=make_steps(logits.softmax(-1), [*[*ids, *more][1:], after], self._pieces),
            omitted=found.omitted,
            notes=[],
            milliseconds=milliseconds_since(began),
        )

    # ---- the model -------------------------------------------------------------------------------------------------------

    def _encode(self, text: str) -> list[int]:
        ids = list(self._tokenizer(text)["input_ids"])
        if not ids:
            raise ArgumentError("text contains no token; write a sentence.")
        if len(ids) > self._max_tokens:
            raise ArgumentError(
                f"the text has {len(ids)} tokens; at most {self._max_tokens} are allowed. Shorten it, or start the explorer "
                "with a larger --max-tokens."
            )
        return ids

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return list(pieces(ids, self._tokenizer))

    @contextmanager
    def _changed(self, alphas: Mapping[str, float]) -> Iterator[None]:
        """Locks the model for this thread, with these alphas."""
        with self._lock:
            before = {place: heads()[0].detach().clone() for place, heads in self._heads.items()}
            try:
                changed = {place: values.clone() for place, values in before.items()}
                for name, alpha in alphas.items():
                    attn_type, layer, head = parse_head(name)
                    own = changed.get((attn_type, layer))
                    if own is None or head >= len(own):
                        raise ArgumentError(f"{name}: there is no such head, or it has no alpha to change.")
                    own[head] = alpha
                for place, values in changed.items():
                    self._heads[place].set(alpha=values)
                yield
            finally:
                for place, values in before.items():
                    self._heads[place].set(alpha=values)

    def _continue(self, ids: Sequence[int], beam: int, n_best: int, deadline: Deadline) -> list[Candidate]:
        prompt = torch.tensor([list(ids)], device=self._model.device)
        with torch.no_grad():
            found = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=NEW_TOKENS,
                num_beams=beam,
                num_return_sequences=n_best,
                do_sample=False,
                stopping_criteria=[EveryToken(deadline.check)],
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id or 0,
            )
            candidates = []
            for row in found.tolist():
                more = row[len(ids) :]
                logits = self._model(torch.tensor([row], device=self._model.device)).logits[0, len(ids) - 1 : -1]
                picked = logits.float().log_softmax(-1).gather(1, torch.tensor(more, device=logits.device)[:, None])
                total = float(picked.sum())
                text = self._tokenizer.decode(more)
                shown = self._pieces(more)
                score = total / max(len(more), 1)
                candidates.append(Candidate(text=text, score=score, log_prob=total, finished=True, pieces=shown, ids=more))
        return sorted(candidates, key=lambda candidate: -(candidate.score or 0.0))

    def _read(self, ids: Sequence[int], found: HeadCollector) -> Tensor:
        """Reads the text into `found`, and returns logits (T, V)."""
        inputs = {"input_ids": torch.tensor([list(ids)], device=self._model.device)}
        tokens = sides(inputs)["decoder"]

        def hook(trace: LayerTrace) -> None:
            found.add(trace.rows(tokens), trace.rows_per_head())

        logits: Tensor = self._tracer.run(inputs, hook).logits[0].float()
        return logits
