"""Normalizers without a fused kernel: scores (..., Lk), -inf where a key may not be attended -> weights of the same shape.

Your own normalizer is a module, or a function, with the same signature: `nn/dense.py` handles rows without keys and weights at
-inf. One with the attribute `uses_positions = True` is called with a second argument, the distance i - j of each query and key,
(rows, Lk); it can be used in self-attention only.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.nn.execution_mode import traced_as_leaf

__all__ = ["AdaptiveSpan", "AdaptiveTemperature", "Elementwise", "NormalizerFn", "ReluN"]
__all__ += ["Sigmoid", "Softmax1", "StickBreaking", "TopK"]

NormalizerFn = Callable[..., Tensor]  # (scores) -> weights, or (scores, distance) -> weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu2": lambda s: s.relu().square(),
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}


def _count(scores: Tensor) -> Tensor:
    """Returns how many keys each row may attend to, (..., 1), at least 1."""
    return (scores > -math.inf).sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)


class TopK(nn.Module):
    """Softmax over the k largest scores of a row, zero elsewhere; ties with the k-th are included."""

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
    """softmax(b(H) s) with b a polynomial of the row's entropy H, in evaluation only (Velickovic et al. 2024)."""

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


class Softmax1(nn.Module):
    """exp(s_j) / (1 + sum_k exp(s_k)): softmax with one more key of score 0 and no value. Rows sum to less than one."""

    def forward(self, scores: Tensor) -> Tensor:
        return F.pad(scores, (1, 0)).softmax(-1)[..., 1:]


class StickBreaking(nn.Module):
    """Stick-breaking attention: a_j = b_j prod_{j < k < i} (1 - b_k) with b = sigmoid(s), query at i (Tan et al. 2024).

    The key before the query takes the fraction b of one, the key before that its fraction of the rest, and so on; rows sum to
    less than one. Later keys get no weight whatever the mask allows, so the weights are always causal.

    Args:
        attend_current: start with the query's own key. Published: False, so the first query attends to nothing.
    """

    uses_positions = True

    def __init__(self, *, attend_current: bool = False) -> None:
        super().__init__()
        self.attend_current = attend_current

    def forward(self, scores: Tensor, distance: Tensor) -> Tensor:
        excluded = (scores == -math.inf) | (distance < (0 if self.attend_current else 1))
        scores = scores.masked_fill(excluded, 0.0)
        left = F.logsigmoid(-scores).masked_fill(excluded, 0.0)  # ln of what each key leaves
        after = F.pad(left.flip(-1).cumsum(-1).flip(-1), (0, 1))[..., 1:]  # of the keys from j + 1 on
        return (F.logsigmoid(scores) + after).exp().masked_fill(excluded, 0.0)

    def extra_repr(self) -> str:
        return f"attend_current={self.attend_current}"


class AdaptiveSpan(nn.Module):
    """Softmax over a span of the context that each head learns (Sukhbaatar et al. 2019).

        a_j = m_j exp(s_j) / sum_k m_k exp(s_k),   m_j = clamp((R + z_h - |i - j|) / R, 0, 1)

    z_h = max_span sigmoid(pre_span_h); the published code learns z itself and clamps it after each step. Add `penalty()` to the
    loss, as `Seq2Seq.loss` and `entformer longctx` do.

    Args:
        num_heads: number of learned spans.
        max_span: z stays below this many positions.
        ramp: R, over how many positions the mask falls from 1 to 0.
        init: z at the start, in positions.
        penalty: the published lambda: `penalty()` is lambda times the mean span of the heads.
    """

    uses_positions = True

    def __init__(
        self, num_heads: int, *, max_span: float = 1024.0, ramp: float = 32.0, init: float = 32.0, penalty: float = 2e-6
    ) -> None:
        super().__init__()
        if not 0.0 < init < max_span < math.inf:
            raise ArgumentError(f"init={init} must lie between 0 and max_span={max_span}, and both be finite.")
        if not 0.0 < ramp < math.inf or not 0.0 <= penalty < math.inf:
            raise ArgumentError(f"ramp={ramp} must be a finite number above 0, and penalty={penalty} one of at least 0.")
        self.max_span, self.ramp, self.init, self.penalty_factor = max_span, ramp, init, penalty
        self.pre_span = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.pre_span, math.log(self.init / (self.max_span - self.init)))

    def spans(self) -> Tensor:
        """Returns z of each head, (H,), in at least float32."""
        return self.max_span * torch.sigmoid(self.pre_span.to(torch.promote_types(self.pre_span.dtype, torch.float32)))

    def penalty(self) -> Tensor:
        """Returns lambda times the mean span, to be added to the mean loss of a token."""
        return self.penalty_factor * self.spans().mean()

    def forward(self, scores: Tensor, distance: Tensor) -> Tensor:
        mask = ((self.ramp + self.spans()[:, None, None] - distance.abs()) / self.ramp).clamp(0.0, 1.0).to(scores.dtype)
        scores = scores.masked_fill(mask == 0.0, -math.inf)  # (B, H, rows, Lk)
        row_max = scores.detach().amax(-1, keepdim=True)
        weights = mask * (scores - row_max.masked_fill(row_max == -math.inf, 0.0)).exp()  # no key in the span: all zeros
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)

    def extra_repr(self) -> str:
        shown = f"num_heads={len(self.pre_span)}, max_span={self.max_span:g}, ramp={self.ramp:g}"
        return f"{shown}, penalty={self.penalty_factor:g}"


class Elementwise(nn.Module):
    """Applies "relu2" (max(s, 0)^2), "gelu" or "leaky_relu" to each score: the alternatives to ReLU in ReLA's ablation."""

    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in ACTIVATIONS:
            raise ArgumentError(f"the activation {name!r} is not known; choose one of {', '.join(ACTIVATIONS)}.")
        self.name = name

    def forward(self, scores: Tensor) -> Tensor:
        # Finite where masked: gelu(-inf) is NaN, and its gradient too.
        return ACTIVATIONS[self.name](scores.masked_fill(scores == -math.inf, 0.0))

    def extra_repr(self) -> str:
        return self.name


class Sigmoid(nn.Module):
    """sigmoid(s - ln n) of each score, n keys allowed (Ramapuram et al. 2024). Rows sum to about one before training only."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores - _count(scores).log())


class ReluN(nn.Module):
    """max(s, 0) / n of each score, n keys allowed (Wortsman et al. 2023): exact zeros, and rows that sum to any number."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.relu() / _count(scores)
