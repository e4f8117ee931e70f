"""Products for dense attention in which zero times NaN is zero.

What is masked does not exist: NaN or infinity in a key or value must not reach a query that may not attend to it, nor any
gradient. A product by a weight of zero would carry it there. So products are taken of finite numbers, and NaN is added where it
belongs: in rows whose query, or a key they may attend to, or a value they give weight to, is not finite.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T (..., Lq, Lk); NaN where the query or the key holds NaN or infinity, in the gradients of both too."""
    if _known(q, torch.isfinite) and _known(k, torch.isfinite):
        return torch.matmul(q, k.transpose(-1, -2))
    scores = torch.matmul(_finite(q), _finite(k).transpose(-1, -2))
    return scores + nan_where(~_finite_rows(q))[..., :, None] + nan_where(~_finite_rows(k))[..., None, :]


def masked(scores: Tensor, allowed: Tensor) -> Tensor:
    """Scores with -inf where a key may not be attended. A score of +inf becomes NaN: an overflow that should show."""
    if not _known(scores, lambda t: t < math.inf):
        scores = scores + nan_where(scores.detach() == math.inf)
    return torch.where(allowed, scores, -math.inf)


def weighted_sum(weights: Tensor, v: Tensor) -> Tensor:
    """weights v (..., Lq, E). A row that gives weight to a value with NaN or infinity is NaN; no other row is."""
    if _known(v, torch.isfinite):
        return torch.matmul(weights, v)
    bad = ~_finite_rows(v)  # (..., Lk)
    reached = ((weights.detach() != 0.0) & bad[..., None, :]).any(-1, keepdim=True)
    return torch.matmul(weights, _finite(v)) + nan_where(reached) * weights.sum(-1, keepdim=True)


def _finite(x: Tensor) -> Tensor:
    """NaN and infinity replaced by 0. Gradients of NaN pass through it: torch multiplies them by whether x is finite."""
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _finite_rows(x: Tensor) -> Tensor:
    return x.detach().isfinite().all(-1)


def nan_where(condition: Tensor) -> Tensor:
    """NaN where the condition holds, else 0: to add, or to multiply by."""
    return torch.where(condition, math.nan, 0.0)


def _known(x: Tensor, condition: Callable[[Tensor], Tensor]) -> bool:
    """Whether a look shows that it holds throughout: not while tracing, not under vmap, not on a GPU, which would wait."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    try:
        return bool(condition(x.detach()).all())
    except RuntimeError:  # a batched tensor of torch.func.vmap has no single truth value
        return False
