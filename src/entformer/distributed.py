"""Attention against keys and values that are spread over the processes of a group: decoding with a cache too long for one.

    weights  p_j = [(alpha - 1) s_j - tau]_+ ** e,  e = 1 / (alpha - 1),  tau such that they sum to 1 over all processes
    start    the largest tau of one process alone, which is not above the one of all: one all-reduce
    Newton   on (sum p_j) ** (1 / e) = 1, which is convex in tau: two numbers per row, sum p_j and sum p_j ** (1 - 1 / e)
    output   sum p_j v_j and sum p_j: one all-reduce

For alpha = 1 (softmax) the first all-reduce is of the maximum, and there is nothing to solve. Forward only.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor

from entformer.errors import ArgumentError

__all__ = ["sharded_attention"]

TOLERANCE = 1e-12  # of the sum of the weights, in float64
MOST_STEPS = 64


@torch.no_grad()
def sharded_attention(
    q: Tensor,
    k_shard: Tensor,
    v_shard: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Attends to the keys of all processes of a group. Each of them must call this with the same queries.

    Args:
        q: Queries (B, H, Lq, D), the same in every process.
        k_shard: Keys of this process (B, H, L, D). L differs between processes and may be 0.
        v_shard: Their values (B, H, L, Dv).
        mask: (B, H, Lq, L) or broadcastable to it, True = may attend; of this process's keys.
        alpha: Between 1 and 2: a number, or a tensor (H,) with one per head; the same in every process.
        scale: Factor of the scores; by default 1 / sqrt(D).
        group: The processes; by default all.

    Returns:
        The output (B, H, Lq, Dv), the same in every process, without gradient; 0 for a query that may attend to no key.

    Raises:
        ArgumentError: A shape or an alpha is not as above.
    """
    _check(q, k_shard, v_shard)
    alphas = torch.as_tensor(alpha, dtype=torch.float64, device=q.device).reshape(-1, 1, 1)  # (H or 1, 1, 1)
    if alphas.shape[0] not in (1, q.shape[1]) or not bool(((alphas >= 1.0) & (alphas <= 2.0)).all()):
        raise ArgumentError(f"alpha must be a number or {q.shape[1]} numbers, one per head, each between 1 and 2; got {alpha}.")
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) @ k_shard.to(wide).mT).double() * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    soft = alphas == 1.0
    excess = torch.where(soft, 1.0, alphas - 1.0)  # 1: any value, for rows of softmax
    scaled = torch.where(soft, scores, excess * scores)
    nothing = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    maximum = torch.cat([scaled, nothing], -1).amax(-1, keepdim=True)
    threshold = torch.where(soft, maximum, _solve(scaled, maximum - 1.0, excess, soft, None))
    dist.all_reduce(threshold, dist.ReduceOp.MAX, group=group)
    threshold = _solve(scaled, threshold, excess, soft, group if group is not None else dist.group.WORLD)
    weights = _weights(scaled, threshold, excess, soft)
    sums = torch.cat([weights @ v_shard.double(), weights.sum(-1, keepdim=True)], -1)
    dist.all_reduce(sums, group=group)
    output, total = sums[..., :-1], sums[..., -1:]
    return torch.where(total > 0.0, output / total, 0.0).to(v_shard.dtype)


def _weights(scaled: Tensor, threshold: Tensor, excess: Tensor, soft: Tensor) -> Tensor:
    """Returns the weights (B, H, Lq, L), not normalized; 0 in rows whose threshold is -inf, which have no key."""
    above = torch.where(threshold > -math.inf, scaled - threshold, -math.inf)
    return torch.where(soft, above.exp(), above.clamp_min(0.0) ** (1.0 / excess))


def _solve(scaled: Tensor, start: Tensor, excess: Tensor, soft: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Returns thresholds (B, H, Lq, 1) from lower bounds of them, over a group or, without one, over the keys here alone."""
    threshold = start
    for _ in range(MOST_STEPS if not bool(soft.all()) else 0):
        above = (scaled - torch.where(threshold > -math.inf, threshold, 0.0)).clamp_min(0.0)
        inside = above > 0.0
        slopes = torch.where(inside, above ** (1.0 / excess - 1.0), 0.0)
        sums = torch.stack([(above * slopes).sum(-1, keepdim=True), slopes.sum(-1, keepdim=True)])
        if group is not None:
            dist.all_reduce(sums, group=group)
        total, slope = sums
        open_rows = (total - 1.0 > TOLERANCE) & ~soft  # from below, every step stays below
        if not bool(open_rows.any()):
            break
        norm = total**excess
        threshold = torch.where(open_rows, threshold + (norm - 1.0) / (norm * slope / total), threshold)
    return threshold


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k_shard {tuple(k.shape)}, v_shard {tuple(v.shape)}"
    if not (q.dim() == k.dim() == v.dim() == 4):
        raise ArgumentError(f"q, k_shard and v_shard must have four dimensions (B, H, L, D); got {shapes}.")
    if k.shape[:3] != v.shape[:3] or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ArgumentError(
            f"k_shard must have the batch, heads and D of q, and v_shard the batch, heads and L of k_shard; got {shapes}."
        )
