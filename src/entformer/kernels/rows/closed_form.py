"""alpha-entmax by few standard operations without a loop over values, for programs exported to ONNX.

    alpha = 1         softmax
    alpha = 1.5, 2    the threshold from sorted scores, then one Newton step against rounding
    any other alpha   a fixed number of guarded Newton steps in float64

The weights agree with the kernels to rounding. Derivatives are not the subject: exported programs run forward.
"""

import math

import torch
from torch import Tensor

NEWTON_STEPS = 12  # of the general form up to alpha = 2, where Newton on (S^e - 1)/e converges from the left
HALVING_STEPS = 40  # above, where steps may halve the bracket


def entmax_rows(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Weights (..., n) for scores (..., n); alpha is a number or a tensor of shape (...)."""
    if scores.shape[-1] == 0:
        return scores
    s = scores.to(torch.promote_types(scores.dtype, torch.float32))
    top = s.amax(-1, keepdim=True)
    s = torch.where(top == math.inf, torch.where(s == math.inf, 0.0, -math.inf), s)  # +inf entries share the mass
    u = s - torch.where(top.isinf(), 0.0, top)
    if alpha == 1.0 and not isinstance(alpha, Tensor):
        weights = torch.softmax(torch.where(u == -math.inf, -1e4, u), -1)
    elif alpha == 1.5 and not isinstance(alpha, Tensor):
        weights = _entmax15(u)
    elif alpha == 2.0 and not isinstance(alpha, Tensor):
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
    """The root lam in [0, (1 - n^-e)/e] of S(lam) = sum exp_e(u - lam) = 1."""
    wide = u.to(torch.float64)
    allowed = wide > -math.inf
    wide = wide.clamp(min=-1e30)
    if isinstance(alpha, Tensor):
        e = alpha.to(torch.float64).unsqueeze(-1) - 1.0
        e = torch.where(e.abs() < 1e-6, 1e-6, e)  # from there on softmax to six digits, and no quotient 0/0
        steps = NEWTON_STEPS
    else:
        e = torch.full((), alpha - 1.0 if abs(alpha - 1.0) > 1e-6 else 1e-6, dtype=torch.float64, device=u.device)
        steps = NEWTON_STEPS if alpha <= 2.0 else HALVING_STEPS
    count = allowed.sum(-1, keepdim=True).clamp(min=1).to(torch.float64)
    low, high = torch.zeros_like(count), (1.0 - torch.exp(-e * count.log())) / e
    lam = low
    for _ in range(steps):
        p, slope = _deformed_exp(wide - lam, e, allowed)
        total = p.sum(-1, keepdim=True)
        low, high = torch.where(total > 1.0, lam, low), torch.where(total > 1.0, high, lam)
        power = torch.exp(-e * total.clamp(min=1e-300).log())
        newton = lam + total * (1.0 - power) / (e * slope.sum(-1, keepdim=True).clamp(min=1e-300))
        lam = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    p, _ = _deformed_exp(wide - lam, e, allowed)
    return (p / p.sum(-1, keepdim=True).clamp(min=1e-300)).to(u.dtype)


def _deformed_exp(x: Tensor, e: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """[1 + e x]_+^(1/e) and its derivative."""
    base = 1.0 + e * x
    inside = allowed & (base > 0.0)
    base = torch.where(inside, base, 1.0)
    p = torch.where(inside, (base.log() / e).exp(), 0.0)
    return p, p / base
