"""Runs a language model of `entformer train` for the explorer."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from entformer.analysis.language_model import LMTracer
from entformer.checkpoint import RunFolder
from entformer.checkpoint.language_model import LoadedLM
from entformer.decoding.beam import beam_search
from entformer.decoding.sampling import Sampling, generate_tokens
from entformer.explore.engine import heads_of, learned_facts, override_heads
from entformer.explore.messages import HIGHEST_ALPHA, Search
from entformer.explore.model_queue import Deadline
from entformer.explore.text_engine import TextEngine, new_tokens
from entformer.text.tokenizer import BOS, EOS


class LMEngine(TextEngine):
    """A loaded language model; its directory, if given, tells how its alphas were learned."""

    def __init__(
        self,
        run: LoadedLM,
        *,
        name: str,
        max_tokens: int,
        seconds: float,
        examples: Sequence[str] = (),
        folder: RunFolder | None = None,
    ) -> None:
        self._run, self._model = run, run.model.eval()
        alphas, adjustable = heads_of(self._model)
        facts = {
            "name": name,
            "step": run.step,
            "vocabulary": run.tokenizer.size,
            "examples": list(examples),
            **learned_facts(folder, self._model.config, alphas, run.step),
        }
        super().__init__(
            self._model,
            LMTracer(self._model),
            run.tokenizer,
            (EOS,),
            alphas,
            adjustable,
            highest_alpha=HIGHEST_ALPHA,
            max_tokens=max_tokens,
            seconds=seconds,
            facts=facts,
        )

    def _encode(self, text: str) -> list[int]:
        return [BOS, *self._encode_more(text)]

    def _encode_more(self, text: str) -> list[int]:
        return self._run.tokenizer.encode(text.replace("\0", " "))  # a NUL ends a string in sentencepiece

    def _override(self, alphas: Mapping[str, float]) -> AbstractContextManager[None]:
        return override_heads(self._model, alphas)

    def _notes(self, length: int) -> list[str]:
        return [f"The model was trained on {self._run.context:,} tokens at a time."] if length > self._run.context else []

    @torch.no_grad()
    def _scores(self, ids: Sequence[int]) -> Tensor:
        scores: Tensor = self._model(torch.tensor([list(ids)], device=self._device))[0]
        return scores

    def _generate(self, ids: Sequence[int], request: Search, count: int, deadline: Deadline) -> list[list[int]]:
        def step(tokens: Tensor, state: Any) -> Tensor:
            deadline.check()
            return self._model.step(tokens, state)

        # A cache that drops keys by alpha does not fit changed alphas.
        start = partial(self._model.start, windowed=False)
        if request.temperature > 0.0:
            sampling, generator = Sampling(request.temperature), torch.Generator().manual_seed(request.seed)
            sampled: Any = SimpleNamespace(start=start, step=step, parameters=self._model.parameters)
            most = new_tokens(request)
            rows = [list(generate_tokens(sampled, ids, most, sampling, eos=EOS, generator=generator)) for _ in range(count)]
            return [row if len(row) == most else [*row, EOS] for row in rows]
        model = SimpleNamespace(start=lambda *_: start(), step=step, log_probs=lambda scores: scores.float().log_softmax(-1))
        (found,) = beam_search(
            model,
            torch.tensor([[EOS]], device=self._device),  # there is no source
            beam=request.beam,
            n_best=count,
            max_length=len(ids) - 1 + new_tokens(request),
            prefix=[ids[1:]],
            must_end=False,
        )
        return [[*one.tokens[len(ids) - 1 :], *([EOS] if one.finished else [])] for one in found]
