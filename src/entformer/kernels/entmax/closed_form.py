"""alpha-entmax by few standard operations without a loop over values, for programs exported to ONNX.

    alpha = 1         softmax
    alpha = 1.5, 2    the threshold from sorted scores, then one Newton step against rounding
    any other alpha   the threshold by halving, a fixed number of times, in float64

The weights agree with the kernels to rounding. Derivatives are not the subject: exported programs run forward.
"""

import math

import torch
from torch import Tensor

HALVINGS = 50  # of a bracket no longer than 1, in float64
LEAST_E = 1e-6  # alpha closer to 1 is taken for 1 + this: softmax to six digits, and no quotient 0/0


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Weights (..., n) for scores (..., n); alpha is a number or a tensor of shape (...)."""
    if scores.shape[-1] == 0:
        return scores
    s = scores.to(torch.promote_types(scores.dtype, torch.float32))
    top = s.amax(-1, keepdim=True)
    s = torch.where(top == math.inf, torch.where(s == math.inf, 0.0, -math.inf), s)  # +inf entries share the mass
    u = s - torch.where(top.isinf(), 0.0, top)
    if isinstance(alpha, Tensor):
        weights = _general(u, alpha)
    elif alpha == 1.0:
        weights = torch.softmax(torch.where(u == -math.inf, -1e4, u), -1)
    elif alpha == 1.5:
        weights = _entmax15(u)
    elif alpha == 2.0:
        weights = _sparsemax(u)
    else:
        weights = _general(u, alpha)
    return torch.where(s == -math.inf, 0.0, weights).to(scores.dtype)  # a row of nothing but -inf gives zeros


def _ranks(z: Tensor) -> Tensor:
    """1, 2, ..., n in z's dtype."""
    return torch.arange(1, z.shape[-1] + 1, device=z.device).to(z.dtype)


def _entmax15(u: Tensor) -> Tensor:
    """p = [z - tau]_+^2 with z = u/2; no score below the maximum minus 2 has weight, so cutting there changes nothing."""
    z = (u / 2.0).clamp(min=-1.0)
    best_first = torch.sort(z, -1, descending=True).values
    count = _ranks(z)
    mean = best_first.cumsum(-1) / count
    spread = best_first.square().cumsum(-1) / count - mean.square()
    tau = mean - ((1.0 / count) - spread).clamp(min=0.0).sqrt()  # of the first 1, 2, ... scores
    size = (tau <= best_first).sum(-1, keepdim=True)
    tau = tau.gather(-1, size - 1)
    above = (z - tau).clamp(min=0.0)
    tau = tau + (above.square().sum(-1, keepdim=True) - 1.0) / (2.0 * above.sum(-1, keepdim=True))
    return (z - tau).clamp(min=0.0).square()


def _sparsemax(u: Tensor) -> Tensor:
    """p = [u - tau]_+; the threshold is the largest of those of the first 1, 2, ... scores."""
    z = u.clamp(min=-1.0)
    best_first = torch.sort(z, -1, descending=True).values
    tau = ((best_first.cumsum(-1) - 1.0) / _ranks(z)).amax(-1, keepdim=True)
    inside = (z > tau).to(z.dtype)
    tau = tau + ((inside * (z - tau)).sum(-1, keepdim=True) - 1.0) / inside.sum(-1, keepdim=True)
    return (z - tau).clamp(min=0.0)


def _general(u: Tensor, alpha: float | Tensor) -> Tensor:
    """p = [1 + e (u - lam)]_+^(1/e), e = alpha - 1, with lam in [0, (1 - n^-e)/e] found by halving, in float64.

    Halving has fewer operations per step than Newton and is as sure for alpha > 2, where Newton is slow.
    """
    allowed = u > -math.inf
    wide = u.to(torch.float64).clamp(min=-1e30)
    if isinstance(alpha, Tensor):
        e = alpha.to(torch.float64).unsqueeze(-1) - 1.0
        e = torch.where(e.abs() < LEAST_E, LEAST_E, e)
    else:
        number = alpha - 1.0 if abs(alpha - 1.0) > LEAST_E else LEAST_E
        e = torch.full((), number, dtype=torch.float64, device=u.device)
    power = 1.0 / e
    nowhere = torch.where(e > 0.0, -math.inf, math.inf)  # whose power is 0 after the cut at 0
    scaled = torch.where(allowed, e * wide, nowhere)
    count = allowed.sum(-1, keepdim=True).clamp(min=1).to(torch.float64)
    step = 1.0 - torch.exp(-e * count.log())  # the length of the bracket of e lam
    best = torch.ones_like(step)  # 1 - e lam, the base of the best score's power
    for _ in range(HALVINGS):
        step = 0.5 * step
        total = (scaled + (best - step)).clamp(min=0.0).pow(power).sum(-1, keepdim=True)
        best = torch.where(total >= 1.0, best - step, best)
    p = torch.where(allowed, (scaled + best).clamp(min=0.0).pow(power), 0.0)
    return (p / p.sum(-1, keepdim=True).clamp(min=1e-300)).to(u.dtype)
