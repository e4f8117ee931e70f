"""Functions that turn scores into weights, under the names of the `entmax` package, and logarithms and supports.

    sparsemax, entmax15, sparsemax_bisect, entmax_bisect   alpha-entmax, computed by `entformer.kernels`
    normmax_bisect     argmax_p <x, p> - ||p||_alpha        over the simplex
    budget_bisect      argmax_p <x, p> - ||p||^2 / 2        over 0 <= p <= 1, sum p = budget
    log_entmax         logarithm of the weights, -inf outside the support
    entmax_support     where the weights are nonzero

Arguments, order and defaults are those of `entmax` 1.3 (and `return_support_size` of 1.4). `k`, `n_iter` and `ensure_sum_one`
tune algorithms that are not used here; they are accepted and have no effect. Weights are accurate to rounding.

-inf scores and `mask` (True = may have weight) exclude an entry; a row with nothing allowed gives zeros and zero gradients; NaN
stays in its row; +inf is the limit of ever larger scores; float16 and bfloat16 are computed in higher precision and returned in
their dtype (float32 under autocast).
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from entformer.errors import ArgumentError
from entformer.kernels import checks
from entformer.kernels.entmax.api import dim_back, dim_last, entmax, per_row, under_autocast
from entformer.kernels.entmax.deformed import deformed_log, log1p_over
from entformer.kernels.registry import Impl, work_dtype
from entformer.thresholds import budget_threshold, clipped, normmax_sums, normmax_threshold

__all__ = ["budget_bisect", "entmax", "entmax15", "entmax_bisect", "entmax_support", "log_entmax"]
__all__ += ["normmax_bisect", "sparsemax", "sparsemax_bisect"]


# ---- alpha-entmax under the package's names ------------------------------------------------------------------------------


def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False, *, mask: Tensor | None = None
) -> Any:
    """Computes sparsemax, the projection of the scores onto the simplex: alpha-entmax with alpha = 2.

    `k` has no effect. With `return_support_size=True` returns `(weights, sizes)`, the number of nonzero weights of each row,
    int64, with `dim` kept at length 1.
    """
    return _with_size(entmax(X, 2.0, dim, mask), dim, return_support_size)


def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False, *, mask: Tensor | None = None
) -> Any:
    """Computes 1.5-entmax, between softmax and sparsemax. Arguments and `return_support_size` as in `sparsemax`."""
    return _with_size(entmax(X, 1.5, dim, mask), dim, return_support_size)


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True, *, mask: Tensor | None = None
) -> Tensor:
    """The same as `sparsemax`; `n_iter` and `ensure_sum_one` have no effect."""
    return entmax(X, 2.0, dim, mask)


def entmax_bisect(
    X: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    n_iter: int = 50,
    ensure_sum_one: bool = True,
    *,
    mask: Tensor | None = None,
    alpha_dim: int | None = None,
) -> Tensor:
    """Computes alpha-entmax for any alpha, differentiable in `X` and `alpha`: `entformer.entmax` under another name.

    `alpha` is a number or a tensor that broadcasts against `X` with `dim` reduced to 1; for one alpha per head give a 1-D
    tensor and `alpha_dim`, the dimension of the heads. `n_iter` and `ensure_sum_one` have no effect.
    """
    return entmax(X, alpha, dim, mask, alpha_dim=alpha_dim)


def entmax_support(
    x: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    alpha_dim: int | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Returns where the weights `entmax(x, alpha, dim, mask)` are nonzero, as a boolean tensor.

    Exactly the non-zeros of the weights in the dtype of `x`; so with alpha = 1, where no weight is zero in theory, a weight
    too small for the dtype counts as outside.
    """
    with torch.no_grad():
        return entmax(x, alpha, dim, mask, alpha_dim=alpha_dim, impl=impl) != 0


def log_entmax(
    x: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    alpha_dim: int | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Computes the logarithm of the entmax weights, -inf outside the support; alpha = 1 is `log_softmax`.

    Arguments as in `entformer.entmax`. Computed in float64 from the threshold c, log p = log(1 + e (x - c))/e with
    e = alpha - 1, not from the weight: so it is accurate where the weight itself underflows, e.g. at -1000 with alpha = 1.
    Gradients with respect to `x` and `alpha` are finite everywhere, and zero for entries outside the support.
    """
    if has_torch_function((x, alpha, mask)):
        return handle_torch_function(log_entmax, (x, alpha, mask), x, alpha, dim, mask, alpha_dim=alpha_dim, impl=impl)
    checks.check_strided_float("x", x, "of scores")
    x = under_autocast(x)
    if x.dim() == 0:
        return log_entmax(x.reshape(1), alpha, 0, mask, alpha_dim=alpha_dim, impl=impl).reshape(())
    scores = dim_last(x, dim, mask).to(work_dtype(x.device))  # (..., n)
    weights = entmax(scores.movedim(-1, dim), alpha, dim, alpha_dim=alpha_dim, impl=impl).movedim(dim, -1)
    if weights.shape[-1] == 0:
        return x.clone()
    e = per_row("alpha", alpha, x, dim, alpha_dim).unsqueeze(-1) - 1.0  # (..., 1)
    u, allowed = _shifted(scores)
    largest, best = weights.max(-1, keepdim=True)
    nonempty = largest != 0.0  # False in a row with nothing allowed
    log_top = torch.where(nonempty, largest, 1.0).log()
    # The best entry gives the threshold most precisely: u_best - c = ln_e(p_best).
    above_c = torch.where(allowed, u - u.gather(-1, best) + deformed_log(log_top, e), 0.0)
    y = e * above_c
    # A weight of zero at the boundary of the support is a zero; well inside it has underflowed.
    edge = -1.0 + 1e4 * torch.finfo(y.dtype).eps
    outside = ~allowed | (y <= -1.0) | ((weights == 0.0) & (y < edge))
    log_weights = torch.where(outside, -math.inf, log1p_over(torch.where(outside, 0.0, above_c), e))
    log_weights = torch.where(largest.isnan(), math.nan, log_weights)
    return dim_back(log_weights.to(x.dtype), dim)


# ---- normmax and budget --------------------------------------------------------------------------------------------------


def normmax_bisect(
    X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50, *, mask: Tensor | None = None
) -> Tensor:
    """Computes alpha-normmax: argmax_p <x, p> - ||p||_alpha over the simplex. Sparse; less peaked than entmax as alpha grows.

    `alpha` >= 1 is a number or a tensor that broadcasts against `X` with `dim` reduced to 1. 1 gives the argmax,
    divided among equal scores and without gradient; infinity gives equal weights on the support; values of a tensor below 1
    give NaN.
    Differentiable in `X` and `alpha`. `n_iter` has no effect.
    """
    if has_torch_function((X, alpha, mask)):
        return handle_torch_function(normmax_bisect, (X, alpha, mask), X, alpha, dim, n_iter, mask=mask)
    if not isinstance(alpha, Tensor) and not checks.check_real("alpha", alpha, one_of_many=True) >= 1.0:
        raise ArgumentError(f"normmax needs alpha >= 1, not {alpha}; at alpha = 1 it picks the best score alone.")
    checks.check_strided_float("X", X, "of scores")
    X = under_autocast(X)
    if X.dim() == 0:
        return normmax_bisect(X.reshape(1), alpha, 0, n_iter, mask=mask).reshape(())
    weights, _ = normmax_rows(dim_last(X, dim, mask), per_row("alpha", alpha, X, dim).unsqueeze(-1))
    return dim_back(weights.to(X.dtype), dim)


def normmax_rows(scores: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weights (..., n) and the conjugate max_p <u, p> - ||p||_alpha + 1 (..., 1), u = scores - max(scores).

    With r = 1/(alpha - 1): q_i = [1 + u_i - d]_+^r, d such that sum q^alpha = 1, weights q / sum q; d is the conjugate.
    d is found outside autograd; two recorded Newton steps then make it differentiable, twice.
    """
    work = work_dtype(scores.device)
    if scores.shape[-1] == 0:
        return scores, scores.new_zeros((*scores.shape[:-1], 1), dtype=work)
    u, allowed = _shifted(scores.to(work))
    at_one = alpha == 1.0
    r = torch.where(at_one, 1.0, torch.where(alpha > 1.0, 1.0 / (alpha - 1.0), math.nan))  # (..., 1)
    d = normmax_threshold(u.detach(), allowed, r.detach())
    for _ in range(2):
        q, total, power = normmax_sums(u, allowed, r, d)
        gap = torch.where(total == 0.0, 0.0, power - 1.0)
        d = d + gap / ((r + 1.0) * torch.where(total == 0.0, 1.0, total))
    q, total, _ = normmax_sums(u, allowed, r, d)
    best = (allowed & ~(u < 0.0)).to(work)  # NaN stays in, as above
    best = torch.where(u.isnan().any(-1, keepdim=True), math.nan, best)
    q, total = torch.where(at_one, best, q), torch.where(at_one, best.sum(-1, keepdim=True), total)
    weights = q / torch.where(total == 0.0, 1.0, total)
    return weights, torch.where(at_one, (weights.detach() * u).sum(-1, keepdim=True), d)


def budget_bisect(
    X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50, *, mask: Tensor | None = None
) -> Tensor:
    """Computes weights between 0 and 1 that sum to `budget`: argmax_p <x, p> - ||p||^2 / 2, a relaxed selection of entries.

    `budget` >= 0 is a number or a tensor that broadcasts against `X` with `dim` reduced to 1. A row with at most
    `budget` allowed entries gives each of them the weight 1. Differentiable in `X` and `budget`. `n_iter` has no effect.
    """
    if has_torch_function((X, budget, mask)):
        return handle_torch_function(budget_bisect, (X, budget, mask), X, budget, dim, n_iter, mask=mask)
    if not isinstance(budget, Tensor) and not 0.0 <= checks.check_real("budget", budget, one_of_many=True) < math.inf:
        raise ArgumentError(f"budget={budget} must be zero or a positive number: it is what the weights of a row sum to.")
    checks.check_strided_float("X", X, "of scores")
    X = under_autocast(X)
    if X.dim() == 0:
        return budget_bisect(X.reshape(1), budget, 0, n_iter, mask=mask).reshape(())
    s = dim_last(X, dim, mask).to(work_dtype(X.device))
    if s.shape[-1] == 0:
        return X.clone()
    rest = per_row("budget", budget, X, dim).unsqueeze(-1)  # (..., 1)
    infinite = s == math.inf
    shared = infinite.any(-1, keepdim=True) & (infinite.sum(-1, keepdim=True) >= rest)  # +inf entries take all of it
    s = torch.where(shared, torch.where(infinite, 0.0, -math.inf), s)
    allowed = s != -math.inf
    rest = torch.minimum(rest, allowed.sum(-1, keepdim=True).to(rest.dtype))
    # With k = ceil(budget), the threshold lies within 1 below the k-th largest score: shift by that one.
    rank = (rest.detach().ceil().long() - 1).clamp(min=0)
    kth = s.detach().sort(-1, descending=True).values.gather(-1, rank)
    z = torch.where(allowed, s - torch.where(kth == -math.inf, 0.0, kth), -math.inf)
    tau = budget_threshold(z.detach(), rest.detach())
    weights, inside = clipped(z, tau)
    moving = inside.sum(-1, keepdim=True).clamp(min=1)
    gap = weights.sum(-1, keepdim=True) - rest
    gap = torch.where(inside.any(-1, keepdim=True) | gap.isnan(), gap, 0.0)
    weights, _ = clipped(z, tau + gap / moving)  # one recorded Newton step: exact, since all is linear here
    return dim_back(weights.to(X.dtype), dim)


# ---- shared --------------------------------------------------------------------------------------------------------------


def _shifted(s: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scores - row maximum (0 where excluded), and which are allowed; entries of +inf exclude all others."""
    row_max = s.detach().amax(-1, keepdim=True)
    s = torch.where(row_max == math.inf, torch.where(s == math.inf, 0.0, -math.inf), s)
    allowed = s != -math.inf
    return torch.where(allowed, s - torch.where(row_max.isinf(), 0.0, row_max), 0.0), allowed


def _with_size(weights: Tensor, dim: int, return_size: bool) -> Tensor | tuple[Tensor, Tensor]:
    return (weights, (weights != 0).sum(dim, keepdim=True)) if return_size else weights
