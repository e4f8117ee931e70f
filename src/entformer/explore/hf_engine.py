"""Runs a Hugging Face language model for the explorer: continues a text, and returns every head while the text is read.

It has the interface of `Engine`. There is no source: `target` holds the tokens of the text and its continuation, and row i of a
head belongs to the prediction of token i + 1.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from entformer import __version__
from entformer.analysis.hugging_face import LayerTrace, Tracer, sides
from entformer.analysis.hugging_face_report import END, pieces, rows_of
from entformer.analysis.measures import HEAD_MEASURES, measure_sentence
from entformer.analysis.sentence import packed_rows
from entformer.errors import ArgumentError
from entformer.explore.engine import ALTERNATIVES, MOST_WEIGHTS
from entformer.explore.messages import (
    CHARACTERS,
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
    Step,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline
from entformer.hf.heads import HIGHEST, SparseHeads, sparse_heads
from entformer.hf.sampling import EveryToken

NEW_TOKENS = 16  # of a continuation


class HfEngine:
    """A Hugging Face language model that handles requests from any thread."""

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str, max_tokens: int, seconds: float, examples: Sequence[str] = ()
    ) -> None:
        if tokenizer is None:
            raise ArgumentError("the explorer needs the tokenizer of the model; save it in the same directory.")
        if not model.can_generate() or getattr(model.config, "is_encoder_decoder", False):
            raise ArgumentError(f"the explorer continues text with a decoder; {type(model).__name__} is not one. Use a report.")
        self._model, self._tokenizer = model.eval(), tokenizer
        self._lock = threading.Lock()
        self._max_tokens = max_tokens
        first = torch.tensor([self._tokenizer("a b")["input_ids"]], device=model.device)
        self._tracer = Tracer(model, {"input_ids": first})
        owned = {id(model.get_submodule(name)): heads for name, heads in sparse_heads(model)}
        self._heads: dict[tuple[str, int], SparseHeads] = {
            place: owned[number] for number, place in self._tracer.places.items() if number in owned
        }
        self._alphas = {
            f"{kind}.{layer}.{head}": float(alpha)
            for (kind, layer), values in self._tracer.alphas.items()
            for head, alpha in enumerate(values)
        }
        self.facts = self._describe(name, seconds, examples)

    def _describe(self, name: str, seconds: float, examples: Sequence[str]) -> ModelFacts:
        heads = []
        for key, alpha in self._alphas.items():
            attn_type, layer, head = key.split(".")
            adjustable = (attn_type, int(layer)) in self._heads
            facts = {"attn_type": attn_type, "layer": int(layer), "head": int(head), "alpha": alpha, "adjustable": adjustable}
            heads.append(HeadFacts.model_validate(facts))
        return ModelFacts(
            name=name,
            task="generation",
            languages=("", ""),
            step=0,
            entformer=__version__,
            parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            vocabulary=len(self._tokenizer),
            normalizers=self._tracer.normalizers,
            lowercase=False,
            tokenized=False,
            heads=heads,
            measures=MeasureLists.model_validate({"heads": [measure.to_dict() for measure in HEAD_MEASURES]}),
            limits=Limits(
                characters=CHARACTERS,
                tokens=self._max_tokens,
                target_tokens=NEW_TOKENS,
                beam=WIDEST_BEAM,
                n_best=WIDEST_BEAM,
                alpha=(LOWEST_ALPHA, HIGHEST),
                seconds=seconds,
            ),
            examples=list(examples),
            alpha_steps=None,
            alpha_paths=None,
            alpha_marks={},
            alpha_sentence=None,
        )

    # ---- requests --------------------------------------------------------------------------------------------------------

    def translate(self, request: TranslateRequest, deadline: Deadline) -> TranslateAnswer:
        """Returns the n best continuations."""
        began = time.perf_counter()
        ids = self._encode(request.text)
        with self._changed(request.alphas):
            candidates = self._continue(ids, request.beam, request.n_best, deadline)
        return TranslateAnswer(
            source=list(pieces(ids, self._tokenizer)), candidates=candidates, notes=[], milliseconds=_since(began)
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
            heads, omitted, measures, logits = self._read([*ids, *more], selected, deadline)
        shown = pieces([*ids, *more], self._tokenizer)
        return AttentionAnswer(
            source=[],
            target=[*shown, END],
            source_text="",
            target_text=self._tokenizer.decode([*ids, *more]),
            heads=heads,
            alphas={**self._alphas, **request.alphas},
            measures=measures,
            steps=self._steps(logits, [*ids, *more][1:]),
            omitted=omitted,
            notes=[],
            milliseconds=_since(began),
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

    def _select_heads(self, names: Sequence[str] | None) -> set[str]:
        for name in names or ():
            if name not in self._alphas:
                raise ArgumentError(f"there is no head {name}; /api/model lists them.")
        return set(self._alphas) if names is None else set(names)

    @contextmanager
    def _changed(self, alphas: Mapping[str, float]) -> Iterator[None]:
        """Locks the model for this thread, with these alphas."""
        with self._lock:
            before = {place: heads()[0].detach().clone() for place, heads in self._heads.items()}
            try:
                changed = {place: values.clone() for place, values in before.items()}
                for name, alpha in alphas.items():
                    attn_type, layer, head = name.split(".")
                    place = attn_type, int(layer)
                    if place not in changed or int(head) >= len(changed[place]):
                        raise ArgumentError(f"{name}: there is no such head, or it has no alpha to change.")
                    changed[place][int(head)] = alpha
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
                shown = list(pieces(more, self._tokenizer))
                score = total / max(len(more), 1)
                candidates.append(Candidate(text=text, score=score, log_prob=total, finished=True, pieces=shown, ids=more))
        return sorted(candidates, key=lambda candidate: -(candidate.score or 0.0))

    def _read(
        self, ids: Sequence[int], selected: set[str], deadline: Deadline
    ) -> tuple[dict[str, HeadWeights], list[str], dict[str, dict[str, float]], Tensor]:
        """Returns the weights of the selected heads, those dropped, measures, and logits (T, V)."""
        heads: dict[str, HeadWeights] = {}
        omitted: list[str] = []
        measures: dict[str, dict[str, float]] = {}
        budget = MOST_WEIGHTS
        inputs = {"input_ids": torch.tensor([list(ids)], device=self._model.device)}
        tokens = sides(inputs)["decoder"]

        def hook(trace: LayerTrace) -> None:
            nonlocal budget
            deadline.check()
            names = [f"{trace.attn_type}.{trace.layer}.{head}" for head in range(trace.call.query.shape[1])]
            measures.update(measure_sentence(trace.rows(tokens), None))
            for name, rows in zip(names, rows_of(trace), strict=True):
                if name not in selected:
                    continue
                if len(rows.col) > budget and heads:  # one head is always returned
                    omitted.append(name)
                    continue
                budget -= len(rows.col)
                heads[name] = HeadWeights(**packed_rows(rows))

        output = self._tracer.run(inputs, hook)
        return heads, omitted, measures, output.logits[0].float()

    def _steps(self, logits: Tensor, predicted: Sequence[int]) -> list[Step]:
        probabilities = logits.softmax(-1)  # (T, V)
        values, indices = (found.tolist() for found in probabilities.topk(min(ALTERNATIVES, probabilities.shape[1]), dim=1))
        last = int(probabilities[-1].argmax())  # after the text: the most probable token
        steps = []
        for at, token in enumerate([*predicted, last]):
            best = [
                Alternative(piece=other, probability=value)
                for other, value in zip(pieces(indices[at], self._tokenizer), values[at], strict=True)
            ]
            (piece,) = pieces([token], self._tokenizer)
            steps.append(Step(piece=piece, probability=float(probabilities[at, token]), best=best))
        return steps


def _since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)
