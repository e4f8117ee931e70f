"""Dispersion of attention weights with the row length n: largest weight, entropy and support, without training.

Two types of rows, both with scores that stay bounded while n grows:

    peak    one score 3, all others 0: one relevant key
    noise   n scores from N(0, 1)

Softmax of bounded scores M must spread: weights lie in [exp(-2M)/n, exp(2M)/n]. SSMax multiplies scores by s ln n: the peak
goes to 1 if s times the gap is above 1 and to 0 if it is below. Entmax does not change at all once the others fall under its
threshold. ASEntmax is entmax of scores times 1 + beta (ln n)^gamma.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from entformer.kernels.entmax.api import entmax

__all__ = ["LENGTHS", "MAPPINGS", "ROWS", "Spread", "dispersion"]

LENGTHS = tuple(2**power for power in range(4, 17))
ROWS = {"peak": "one score 3, all others 0", "noise": "scores from N(0, 1)"}


MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: scores.softmax(-1),
    "SSMax, s = 0.43": lambda scores: (0.43 * math.log(scores.shape[-1]) * scores).softmax(-1),
    "entmax, alpha = 1.5": lambda scores: entmax(scores, 1.5),
    "ASEntmax, beta = 0.5, gamma = 1": lambda scores: entmax((1.0 + 0.5 * math.log(scores.shape[-1])) * scores, 1.5),
}


@dataclass(frozen=True)
class Spread:
    """Means over rows of one length."""

    rows: str
    mapping: str
    n: int
    top: float  # the largest weight
    entropy: float  # over ln n: 1 is uniform
    support: float  # keys with nonzero weight


def dispersion(lengths: Iterable[int] = LENGTHS, seed: int = 0, repeats: int = 64) -> list[Spread]:
    """Returns the statistics of every normalizer on every type of row at every length."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for n in lengths:
        peak = torch.zeros(1, n)
        peak[:, 0] = 3.0
        rows = {"peak": peak, "noise": torch.randn((repeats, n), generator=generator)}
        for row_type, scores in rows.items():
            for name, mapping in MAPPINGS.items():
                weights = mapping(scores)
                top = float(weights.amax(-1).mean())
                entropy = float(torch.special.entr(weights).sum(-1).mean()) / math.log(n)
                found.append(Spread(row_type, name, n, top, entropy, float((weights > 0).sum(-1).float().mean())))
    return found
