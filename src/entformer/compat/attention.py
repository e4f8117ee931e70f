"""The function of the `adasplash` package, by its name and with its arguments: `from entformer.compat import adasplash`."""

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.kernels.attention.api import attention

__all__ = ["adasplash"]


def adasplash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float = 1.5,
    is_causal: bool = True,
    varlen: Tensor | None = None,
    niter: int | None = None,
) -> Tensor:
    """alpha-entmax attention as the `adasplash` package has it, on every device, for every length and head size.

    Args:
        q, k, v: (B, H, L, D); the scores are divided by sqrt(D). k and v may have fewer heads, which consecutive query heads
            share.
        alpha: a number above 1, or, unlike there, also 1 or a tensor per head, with its gradient.
        is_causal: query i attends to keys j <= i.
        varlen: (B,) integers, the lengths of the sequences: keys beyond are not attended, and rows beyond are zero in the
            output and in the gradients.
        niter: of the package's solver. It is accepted and has no effect: the result is exact.

    Returns:
        The output (B, H, L, D).

    Raises:
        ArgumentError: for arguments that do not fit.
    """
    key_mask = None
    if varlen is not None:
        if not isinstance(varlen, Tensor) or varlen.shape != q.shape[:1] or varlen.is_floating_point():
            raise ArgumentError(f"varlen must be {q.shape[0]} integers, the lengths of the sequences.")
        lengths = varlen.to(q.device)[:, None]
        key_mask = torch.arange(k.shape[-2], device=q.device) < lengths
    out = attention(q, k, v, alpha=alpha, is_causal=is_causal, key_mask=key_mask, enable_gqa=q.shape[1] != k.shape[1])
    output = out if isinstance(out, Tensor) else out.output
    if varlen is None:
        return output
    inside = torch.arange(q.shape[-2], device=q.device) < lengths
    return torch.where(inside[:, None, :, None], output, 0.0)
