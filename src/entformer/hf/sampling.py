"""Entmax sampling: tokens that entmax gives probability zero are never sampled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from entformer.errors import ArgumentError
from entformer.kernels.entmax.api import entmax


class EntmaxLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Makes `generate(do_sample=True)` sample from entmax(scores / temperature, alpha) instead of softmax.

        model.generate(**inputs, do_sample=True, logits_processor=[EntmaxLogitsProcessor(1.5)])

    It returns log-probabilities, whose softmax is the entmax distribution: -inf for tokens of probability zero. In place of
    top-k and nucleus sampling, the scores themselves determine how many tokens are possible.

    Args:
        alpha: 1 is softmax; larger values leave fewer tokens.
        temperature: Divides the scores.
    """

    def __init__(self, alpha: float = 1.5, *, temperature: float = 1.0) -> None:
        if not alpha >= 1.0:
            raise ArgumentError(f"alpha={alpha} must be at least 1, which is softmax.")
        if not temperature > 0.0:
            raise ArgumentError(f"temperature={temperature} must be above 0.")
        self.alpha, self.temperature = float(alpha), float(temperature)

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        allowed = scores > torch.finfo(scores.dtype).min / 2  # other processors exclude tokens with -inf or the lowest number
        weights = entmax(scores.float() / self.temperature, self.alpha, mask=allowed)
        return weights.log().to(scores.dtype)


class EveryToken(StoppingCriteria):  # type: ignore[misc]
    """Calls a function after every generated token, such as one that raises an error when time is up; never stops by itself."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self._function()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
