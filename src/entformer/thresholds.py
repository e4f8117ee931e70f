"""The thresholds of normmax and budget: bracketed Newton solvers, registered as operators.

They are operators because a loop whose length depends on values can be neither traced nor differentiated.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["budget_threshold", "clipped", "normmax_sums", "normmax_threshold"]

MAX_ITERATIONS = 120  # two steps at least halve a bracket of length at most 1; about five are usual


def normmax_sums(u: Tensor, allowed: Tensor, r: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q = [1 + u - d]_+^r, sum q and sum q^alpha = sum q (1 + u - d)."""
    y = u - d
    inside = allowed & ~(y <= -1.0)  # NaN stays in
    y = torch.where(inside, y, 0.0)
    q = torch.where(inside, (r * torch.log1p(y)).exp(), 0.0)
    return q, q.sum(-1, keepdim=True), (q * (1.0 + y)).sum(-1, keepdim=True)


def _solve_normmax(u: Tensor, allowed: Tensor, r: Tensor) -> Tensor:
    """Returns the root d in [0, 1 - n^(-1/b)], b = 1 + r, of sum [1 + u - d]_+^b = 1, for rows with maximum 0.

    Newton's method on the b-norm, which is convex in d and nearly linear, from the left: it does not overshoot.
    """
    count = allowed.sum(-1, keepdim=True).clamp(min=1).to(u.dtype)
    low, high = torch.zeros_like(count), -torch.expm1(-count.log() / (r + 1.0))
    d, last_gap = low, torch.full_like(low, math.inf)
    for _ in range(MAX_ITERATIONS):
        _, total, power = normmax_sums(u, allowed, r, d)
        gap = power - 1.0
        done = (gap.abs() <= 2.0 * torch.finfo(u.dtype).eps) | (total == 0.0) | gap.isnan()
        if done.all():
            break
        log_power = power.log()
        step = (log_power * r / (r + 1.0)).exp() * torch.expm1(log_power / (r + 1.0)) / total
        d, low, high = _guarded(d, step, gap, last_gap, low, high, done)
        last_gap = gap.abs()
    return d.clone()


def clipped(z: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Returns z - tau clipped to [0, 1], and where it was not clipped; entries exactly at 0 or 1 have no gradient."""
    v = z - tau
    inside = (v > 0.0) & (v < 1.0)
    return torch.where(inside | v.isnan(), v, (v >= 1.0).to(v.dtype)), inside


def _solve_budget(z: Tensor, budget: Tensor) -> Tensor:
    """Returns a root tau in [-1, 0] of sum clip(z - tau, 0, 1) = budget, z shifted so that the ceil(budget)-th largest is 0."""
    tau = torch.full_like(budget, -1.0)
    low, high, last_gap = tau, torch.zeros_like(tau), torch.full_like(tau, math.inf)
    tolerance = 2.0 * torch.finfo(z.dtype).eps * budget.clamp(min=1.0)
    for _ in range(MAX_ITERATIONS):
        weights, inside = clipped(z, tau)
        gap = weights.sum(-1, keepdim=True) - budget
        done = (gap.abs() <= tolerance) | gap.isnan() | (z == -math.inf).all(-1, keepdim=True)
        if done.all():
            break
        tau, low, high = _guarded(tau, gap / inside.sum(-1, keepdim=True), gap, last_gap, low, high, done)
        last_gap = gap.abs()
    return tau.clone()


def _guarded(
    root: Tensor, step: Tensor, gap: Tensor, last_gap: Tensor, low: Tensor, high: Tensor, done: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the next iterate and bracket of a decreasing function with value `gap` at `root`: a Newton or bisection step."""
    low, high = torch.where(gap > 0, root, low), torch.where(gap > 0, high, root)
    newton = root + step
    halve = ~((newton >= low) & (newton <= high)) | (gap.abs() > 0.5 * last_gap)
    return torch.where(done, root, torch.where(halve, 0.5 * (low + high), newton)), low, high


_library = torch.library.Library("entformer", "FRAGMENT")
_library.define("normmax_threshold(Tensor u, Tensor allowed, Tensor r) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("budget_threshold(Tensor z, Tensor budget) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
normmax_threshold = torch.ops.entformer.normmax_threshold.default
budget_threshold = torch.ops.entformer.budget_threshold.default


def _threshold_shape(scores: Tensor, *_: Tensor) -> Tensor:
    return scores.new_empty((*scores.shape[:-1], 1))


def _batched(op: Callable[..., Tensor], info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
    """The vmap rule: a batch is more rows."""
    pairs = zip(tensors, in_dims, strict=True)
    return op(*(t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs)), 0


for _op, _solver in ((normmax_threshold, _solve_normmax), (budget_threshold, _solve_budget)):
    _library.impl(_op, _solver, "CompositeExplicitAutograd")
    torch.library.register_fake(_op, _threshold_shape, lib=_library)
    torch.library.register_vmap(_op, partial(_batched, _op), lib=_library)
