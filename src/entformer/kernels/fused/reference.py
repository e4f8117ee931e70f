"""The training kernels in plain torch: the definition, and what runs where the C++ cannot. Signatures as in ops.py."""

import torch
from torch import Tensor


def cross_entropy_(scores: Tensor, target: Tensor, smoothing: float, differentiate: bool) -> Tensor:
    """Sums (rows, 3) in at least float32; scores become their gradient if `differentiate`."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))  # (rows, V)
    picked = target[:, None]
    log_sum = wide.logsumexp(1)
    of_target = wide.gather(1, picked).squeeze(1)
    nll = log_sum - of_target
    loss = (1.0 - smoothing) * nll + smoothing * (log_sum - wide.mean(1))
    best = (of_target == wide.amax(1)).to(wide.dtype)
    if differentiate:
        gradient = (wide - log_sum[:, None]).exp_().sub_(smoothing / wide.shape[1])
        gradient.scatter_add_(1, picked, torch.full_like(picked, smoothing - 1.0, dtype=wide.dtype))
        scores.copy_(gradient)
    return torch.stack([loss, nll, best], 1)
