"""Generation of text token by token: choice of the next token from its scores, with a cache of keys and values."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.kernels.entmax.api import entmax
from entformer.models.lm import CausalLM


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Filters apply in the order of the fields; what they leave is normalized again.

    Args:
        temperature: Divides the scores; 0 takes the token with the highest score.
        alpha: The distribution is alpha-entmax of the scores: 1 is softmax, above it tokens get probability zero.
        top_k: Keep the k most probable tokens.
        top_p: Keep the most probable tokens whose probabilities sum to p ("nucleus").
        min_p: Keep tokens with at least this share of the highest probability.
    """

    temperature: float = 1.0
    alpha: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0.0 and math.isfinite(self.temperature)):
            raise ArgumentError(f"temperature={self.temperature} must be a finite number of at least 0.")
        if not self.alpha >= 1.0:
            raise ArgumentError(f"alpha={self.alpha} must be at least 1, which is softmax.")
        if self.top_k is not None and self.top_k < 1:
            raise ArgumentError(f"top_k={self.top_k} must be at least 1.")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0.0 < share <= 1.0:
                raise ArgumentError(f"{name}={share} must be above 0 and at most 1.")

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns the distribution of the next token, (..., V), from scores (..., V)."""
        if self.temperature == 0.0:
            return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(torch.float32)
        p = entmax(scores.float() / self.temperature, self.alpha)
        order = p.argsort(dim=-1, descending=True, stable=True)
        ranked = p.gather(-1, order)
        kept = torch.ones_like(ranked, dtype=torch.bool)
        if self.top_k is not None:
            kept[..., self.top_k :] = False
        if self.top_p is not None:
            kept &= ranked.cumsum(-1) - ranked < self.top_p  # the token that reaches p is kept too
        if self.min_p is not None:
            kept &= ranked >= self.min_p * ranked[..., :1]
        ranked = torch.where(kept, ranked, 0.0)
        ranked = ranked / ranked.sum(-1, keepdim=True)
        return torch.zeros_like(p).scatter(-1, order, ranked)


@torch.no_grad()
def generate_tokens(
    model: CausalLM,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    *,
    eos: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Yields up to `count` tokens that follow a prompt, each as soon as it is chosen; ends before `eos`."""
    if not prompt:
        raise ArgumentError("the prompt must have at least one token.")
    device = next(model.parameters()).device
    state = model.start()
    scores = model.step(torch.tensor([list(prompt)], device=device), state) if count > 0 else None
    for number in range(count):
        if scores is None:
            return
        p = sampling.probabilities(scores[0]).cpu()
        token = int(p.argmax()) if sampling.temperature == 0.0 else int(torch.multinomial(p, 1, generator=generator))
        if token == eos:
            return
        yield token
        scores = model.step(torch.tensor([token], device=device), state) if number + 1 < count else None
