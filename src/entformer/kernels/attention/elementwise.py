"""Normalizers of `attention` that compute each weight from one score alone: no alpha, no threshold, no sum of one.

A further one is an entry here, a line in `csrc/attention.h`, an entry in `nn/normalizers.py` and a row of the README.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from entformer.kernels.finite import nan_where
from entformer.kernels.registry import work_dtype


def _elementwise(scores: Tensor, bias: Tensor | float, function: Callable[[Tensor], Tensor]) -> Tensor:
    """function(scores + bias); 0 where the score is -inf. NaN makes its whole row NaN."""
    allowed = scores.detach() != -math.inf
    seen = torch.where(allowed, scores, 0.0)
    broken = scores.detach().isnan().any(-1, keepdim=True)
    return torch.where(broken, seen * nan_where(broken), torch.where(allowed, function(seen + bias), 0.0))


def relu_weights(scores: Tensor, bias: float | None = None) -> Tensor:
    """max(score, 0): a row may have no weight at all."""
    return _elementwise(scores, 0.0, torch.relu)


def sigmoid_weights(scores: Tensor, bias: float | None = None) -> Tensor:
    """sigmoid(score + bias), bias = -log(number of keys of the row) by default."""
    return _elementwise(scores, -sigmoid_threshold(scores, bias)[..., None].to(scores.dtype), torch.sigmoid)


def sigmoid_threshold(scores: Tensor, bias: float | None) -> Tensor:
    """What is subtracted from the scores of each row, (...) in float64: log(number of keys), or -bias."""
    if bias is not None:
        return torch.full(scores.shape[:-1], -bias, dtype=work_dtype(scores.device), device=scores.device)
    return (scores.detach() != -math.inf).sum(-1).clamp(min=1).to(work_dtype(scores.device)).log()


def no_threshold(scores: Tensor, bias: float | None) -> Tensor:
    """Zeros, (...) in float64."""
    return torch.zeros(scores.shape[:-1], dtype=work_dtype(scores.device), device=scores.device)


class Elementwise(NamedTuple):
    """One normalizer."""

    operator: str  # its name in the operators and in `csrc/attention.h`
    weights: Callable[..., Tensor]  # of scores and, optionally, `sigmoid_bias`
    slope: Callable[[Tensor], Tensor]  # dweight/dscore from the weight, where it is not zero
    threshold: Callable[[Tensor, float | None], Tensor] = no_threshold  # subtracted from the scores


ELEMENTWISE = {
    "rela": Elementwise("relu", relu_weights, torch.ones_like),
    "sigmoid": Elementwise("sigmoid", sigmoid_weights, lambda p: p * (1.0 - p), sigmoid_threshold),
}
BY_OPERATOR = {entry.operator: entry for entry in ELEMENTWISE.values()}
