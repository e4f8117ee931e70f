"""Mappings that no fused kernel computes. In: scores (..., Lk), -inf where a key may not be attended. Out: weights, same shape.

    topk                  softmax of the k largest scores, zero elsewhere
    adaptive_temperature  softmax(b(H) s), b a polynomial of the row's entropy H; in evaluation only  (Velickovic et al. 2024)
    sigmoid               sigmoid(s - ln n)                                                          (Ramapuram et al. 2024)
    relu_n                max(s, 0) / n                                                              (Wortsman et al. 2023)

n is the number of keys the row may attend. A mapping of your own is a module, or a function, of the same kind: `nn/dense.py`
takes care of rows without keys and of weights at -inf.
"""

import math

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn.tracing import traced_as_leaf

__all__ = ["AdaptiveTemperature", "ReluN", "Sigmoid", "TopK"]


def _count(scores: Tensor) -> Tensor:
    """How many keys each row may attend, (..., 1), at least 1."""
    return (scores > -math.inf).sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)


class TopK(nn.Module):
    """Softmax over the k largest scores of a row; scores that tie with the k-th may all stay."""

    def __init__(self, k: int = 32) -> None:
        super().__init__()
        if k < 1:
            raise ArgumentError(f"k={k} must be at least 1.")
        self.k = k

    @traced_as_leaf
    def forward(self, scores: Tensor) -> Tensor:
        candidates = scores.detach()
        if torch.compiler.is_compiling():  # one graph for lengths on either side of k: there are always k candidates
            candidates = nn.functional.pad(candidates, (0, self.k), value=-math.inf)
        elif self.k >= scores.shape[-1]:
            return scores.softmax(-1)
        edge = candidates.topk(self.k, -1, sorted=False).values.amin(-1, keepdim=True)  # the k-th largest
        scores = scores.masked_fill(scores < edge, -math.inf)
        return scores.softmax(-1)

    def extra_repr(self) -> str:
        return f"k={self.k}"


class AdaptiveTemperature(nn.Module):
    """Softmax that, once trained, sharpens rows of high entropy. The polynomial is the published one."""

    coefficients = (-0.037, 0.481, -2.3, 4.917, -1.791)  # of H^4 down to H^0

    def forward(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        if self.training:
            return weights
        entropy = torch.special.entr(weights).sum(-1, keepdim=True)  # (..., 1)
        factor = torch.zeros_like(entropy)
        for coefficient in self.coefficients:
            factor = factor * entropy + coefficient
        factor = torch.where(entropy > 0.5, factor.clamp(min=1.0), 1.0)
        return (scores * factor).softmax(-1)


class Sigmoid(nn.Module):
    """Each weight by itself: sigmoid(s - ln n). Rows sum to about one at the start of training, to anything later."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores - _count(scores).log())


class ReluN(nn.Module):
    """Rectified scores over the number of keys: exact zeros, and rows that sum to anything."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.relu() / _count(scores)
