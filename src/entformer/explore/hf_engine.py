"""Runs a Hugging Face language model for the explorer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from entformer.analysis.hugging_face import HuggingFaceTokens, Tracer
from entformer.errors import ArgumentError
from entformer.explore.engine import parse_head
from entformer.explore.messages import Search
from entformer.explore.model_queue import Deadline
from entformer.explore.text_engine import TextEngine, new_tokens
from entformer.hf.heads import HIGHEST, SparseHeads, sparse_heads
from entformer.hf.sampling import EveryToken


class HfEngine(TextEngine):
    """A Hugging Face language model that handles requests from any thread."""

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str, max_tokens: int, seconds: float, examples: Sequence[str] = ()
    ) -> None:
        if tokenizer is None:
            raise ArgumentError("the explorer needs the tokenizer of the model; save it in the same directory.")
        if not model.can_generate() or getattr(model.config, "is_encoder_decoder", False):
            raise ArgumentError(f"the explorer continues text with a decoder; {type(model).__name__} is not one. Use a report.")
        self._model, self._tokenizer = model.eval(), tokenizer
        first = torch.tensor([self._tokenizer("a b")["input_ids"]], device=model.device)
        tracer = Tracer(model, {"input_ids": first})
        owned = {id(model.get_submodule(name)): heads for name, heads in sparse_heads(model)}
        self._heads: dict[tuple[str, int], SparseHeads] = {
            place: owned[number] for number, place in tracer.places.items() if number in owned
        }
        alphas = {
            f"{attn_type}.{layer}.{head}": float(alpha)
            for (attn_type, layer), values in tracer.alphas.items()
            for head, alpha in enumerate(values)
        }
        ends = getattr(model.generation_config, "eos_token_id", None)
        super().__init__(
            model,
            tracer,
            HuggingFaceTokens(tokenizer),
            ends if isinstance(ends, list) else [] if ends is None else [ends],
            alphas,
            {key for key in alphas if parse_head(key)[:2] in self._heads},
            highest_alpha=HIGHEST,
            max_tokens=max_tokens,
            seconds=seconds,
            facts={"name": name, "step": 0, "vocabulary": len(tokenizer), "examples": list(examples)},
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def _encode_more(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    @contextmanager
    def _override(self, alphas: Mapping[str, float]) -> Iterator[None]:
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

    @torch.no_grad()
    def _scores(self, ids: Sequence[int]) -> Tensor:
        scores: Tensor = self._model(torch.tensor([list(ids)], device=self._device)).logits[0]
        return scores

    def _generate(self, ids: Sequence[int], request: Search, count: int, deadline: Deadline) -> list[list[int]]:
        prompt = torch.tensor([list(ids)], device=self._device)
        how: dict[str, Any] = {"do_sample": False, "num_beams": request.beam}
        if request.temperature > 0.0:
            how = {"do_sample": True, "temperature": request.temperature, "top_k": 0}
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(request.seed)
            found = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new_tokens(request),
                num_return_sequences=count,
                stopping_criteria=[EveryToken(deadline.check)],
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id or 0,
                **how,
            )
        return [row[len(ids) :] for row in found.tolist()]
