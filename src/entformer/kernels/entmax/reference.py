"""alpha-entmax in plain PyTorch: the definition every kernel is compared with.

With e = alpha - 1 and the deformed exponential exp_e(x) = [1 + e x]_+ ^ (1/e) (e = 0: exp), the weights are
p_i = exp_e(s_i - c) for the one c per row that makes them sum to one (docs/mathematics.md).

The number c is found outside autograd. Two Newton steps recorded by autograd then make it a differentiable function of
scores and alpha: the first gives the first derivatives of the root, the second makes the second derivatives right as well.
So gradients here follow from the definition alone, by ordinary operations, and check the formulas of the fast kernels.
"""

import math
from typing import Any

import torch
from torch import Tensor

from entformer.kernels.entmax.deformed import log1p_over
from entformer.kernels.registry import work_dtype

MAX_ITERATIONS = 60


def entmax(scores: Tensor, alpha: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Weights (..., n) for scores (..., n); `alpha` broadcasts against scores.shape[:-1]. `dtype`: of the arithmetic."""
    if scores.shape[-1] == 0:
        return scores * alpha.unsqueeze(-1).to(scores.dtype)  # nothing, but a function of both
    work = dtype or work_dtype(scores.device)
    s = scores.to(work)
    e = alpha.to(work).unsqueeze(-1) - 1.0  # (..., 1)

    top = s.detach().amax(-1, keepdim=True)  # NaN where the row has one
    shared = top == math.inf  # +inf entries share the mass, as equal scores do, and have their gradient
    s = torch.where(shared, torch.where(s == math.inf, _finite(s), -math.inf), s)
    top = torch.where(top.isinf(), 0.0, top)
    allowed = s - top > -math.inf  # -inf is how a mask arrives; a difference beyond the largest number is as good as one
    u = torch.where(allowed, s - top, 0.0)

    c = _solve(u.detach(), allowed, e.detach())
    for _ in range(2):
        p, slope = _deformed_exp(u - c, e, allowed)
        total, total_slope = p.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)
        # The derivative of a step from the root. What rounding leaves of S - 1 must be exactly 0 here: at alpha > 2 it would be
        # multiplied by the derivative of W, which is unbounded at the edge of the support.
        c = c + (total - total.detach()) / torch.where(total_slope == 0.0, 1.0, total_slope)
    flat = (e > 1.0) & (1.0 - e * c < 1e-6)
    weights = _share_among_equal(_deformed_exp(u - c, e, allowed)[0], flat, allowed & (u == 0.0))
    broken = top.isnan() | e.isnan()  # NaN stays in its row, and in the gradients of that row
    nothing = (_finite(scores.to(work)) + e) * torch.where(broken, math.nan, 0.0)
    return torch.where(broken, nothing, weights).to(scores.dtype)


def entmax_backward(grad: Tensor, weights: Tensor, alpha: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
    """dL/dscores (..., n) and dL/dalpha (...,) from the weights alone; the closed form that the kernels use.

    w = p^(1-e);  delta = sum(w g)/sum(w);  dS = w (g - delta);  dalpha = sum a (g - delta),
    a = dp/dalpha at fixed c = -p (ln p)^2 psi(-e ln p),  psi(t) = (exp(t) - 1 - t)/t^2.
    """
    work = work_dtype(weights.device)
    e = alpha.to(work).unsqueeze(-1) - 1.0
    in_support = weights != 0
    p = torch.where(in_support, weights.to(work), 1.0)
    g = torch.where(in_support, grad.to(work), 0.0)
    log_p = p.log()
    w = torch.where(in_support, (log_p * (1.0 - e)).exp(), 0.0)
    total = w.sum(-1, keepdim=True)
    delta = (w * g).sum(-1, keepdim=True) / torch.where(total == 0.0, 1.0, total)
    grad_scores = torch.where(in_support, w * (g - delta), 0.0).to(weights.dtype)
    if not needs_alpha_grad:
        return grad_scores, alpha.new_zeros(0)
    a = -p * log_p.square() * _psi(-e * log_p)
    return grad_scores, (torch.where(in_support, a, 0.0) * (g - delta)).sum(-1)


def _deformed_exp(x: Tensor, e: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """exp_e(x) and its derivative exp_e(x)/(1 + e x), both exactly 0 outside the support; safe to differentiate everywhere."""
    y = e * x
    inside = allowed & (y > -1.0)
    p = torch.where(inside, log1p_over(torch.where(inside, x, 0.0), e).exp(), 0.0)
    return p, p / (1.0 + torch.where(inside, y, 0.0))


class _Finite(torch.autograd.Function):
    """NaN and infinity replaced by 0, with the gradient of x + constant."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent


def _finite(x: Tensor) -> Tensor:
    finite: Tensor = _Finite.apply(x)  # type: ignore[no-untyped-call]
    return finite


def _share_among_equal(weights: Tensor, flat: Tensor, best: Tensor) -> Tensor:
    """Of many equal scores at alpha > 2, 1 + e x = n^-e is beyond what 1 - e c can hold. All are off alike, so divide by the
    sum; where nothing is left of it give all to the best."""
    total = weights.detach().sum(-1, keepdim=True)
    weights = weights / torch.where(flat & (total > 0.0), total, 1.0)
    count = best.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(flat & (total == 0.0), best.to(weights.dtype) / count, weights)


def _solve(u: Tensor, allowed: Tensor, e: Tensor) -> Tensor:
    """The root c of sum exp_e(u - c) = 1 for rows with maximum 0, by bracketed Newton on (S^e - 1)/e."""
    count = allowed.sum(-1, keepdim=True).clamp(min=1).to(u.dtype)
    low = torch.zeros_like(count)
    high = -_expm1_over(e, -count.log())  # (1 - n^-e)/e
    c, last_gap = low, torch.full_like(low, math.inf)
    best, best_gap, stale = c, last_gap, low  # rounding makes the last steps wander; the best one counts
    tolerance = 2.0 * torch.finfo(u.dtype).eps
    for _ in range(MAX_ITERATIONS):
        p, slope = _deformed_exp(u - c, e, allowed)
        total = p.sum(-1, keepdim=True)
        gap = total - 1.0
        converged = gap.abs() <= tolerance
        better = gap.abs() < best_gap
        best, best_gap = torch.where(better, c, best), torch.where(better, gap.abs(), best_gap)
        stale = torch.where(better, 0.0, stale + 1.0)
        wandering = (e <= 1.0) & (stale >= 3.0)  # where Newton converges from the left, what does not improve is rounding
        if _all_true(converged | wandering | ~allowed.any(-1, keepdim=True) | gap.isnan()):
            break
        low, high = torch.where(gap > 0, c, low), torch.where(gap > 0, high, c)
        step = -total * _expm1_over(e, -total.clamp(min=1e-300).log()) / slope.sum(-1, keepdim=True)
        # alpha > 2: the sum is not convex in c, so Newton may leave the bracket or crawl; then halve it.
        newton = c + step
        halve = ~((newton >= low) & (newton <= high)) | ((e > 1.0) & (gap.abs() > 0.5 * last_gap))
        c = torch.where(converged, c, torch.where(halve, 0.5 * (low + high), newton))
        last_gap = gap.abs()
    return best


def _expm1_over(e: Tensor, log_value: Tensor) -> Tensor:
    """(value^e - 1)/e, the deformed logarithm of exp(log_value); log_value itself at e = 0."""
    t = e * log_value
    small = t.abs() < 1e-8
    return torch.where(small, log_value * (1.0 + 0.5 * t), torch.expm1(t) / torch.where(small, 1.0, e))


def _psi(t: Tensor) -> Tensor:
    """(exp(t) - 1 - t)/t^2, by its series near 0."""
    near = t.abs() < 0.5
    t_near = torch.where(near, t, 0.0)
    series = torch.zeros_like(t)
    for k in range(16, -1, -1):
        series = series * t_near + 1.0 / math.factorial(k + 2)
    t_far = torch.where(near, 1.0, t)
    return torch.where(near, series, (torch.expm1(t_far) - t_far) / t_far.square())


def _all_true(condition: Tensor) -> bool:
    """Whether a loop may stop early; never under a compiler or vmap, which need a fixed number of steps."""
    if torch.compiler.is_compiling():
        return False
    try:
        return bool(condition.all())
    except RuntimeError:  # a batched tensor of torch.func.vmap has no single truth value
        return False
