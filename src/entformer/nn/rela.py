"""The norm that ReLA needs after its heads. In: the concatenated heads z (..., d). Out: the same shape, before the output map.

    RMSNorm(z) = gain * z / sqrt(mean(z^2) + eps)                  over all d numbers of a position, or over each head's
    plain: RMSNorm, gain starts at 1                               (unstable in training; the baseline)
    gated: sigmoid(gate * z) * RMSNorm(z), elementwise             (ReLA-g, the released model)
    init:  RMSNorm, gain starts in U(-sqrt(3/d), sqrt(3/d))        (ReLA-i)

ReLA's weights do not sum to one (Zhang et al. 2021), so without a norm the output grows with the number of active keys.
"""

import math

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError

__all__ = ["RelaNorm"]

VARIANTS = ("gated", "init", "plain")


class RelaNorm(nn.Module):
    """ReLA's output norm. A position whose heads are all null stays exactly zero.

    Args:
        embed_dim: d, the size of the concatenated heads.
        num_heads: used if `per_head`.
        variant: "gated", "init" or "plain".
        per_head: one RMS for each head instead of one over all of them.
        eps: inside the square root; the arithmetic is in float32 or wider, where it does not vanish.
    """

    def __init__(
        self, embed_dim: int, num_heads: int = 1, *, variant: str = "gated", per_head: bool = False, eps: float = 1e-8
    ) -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise ArgumentError(f"the ReLA norm {variant!r} is not known; choose one of {', '.join(VARIANTS)}.")
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(f"embed_dim={embed_dim} must be a multiple of num_heads={num_heads}.")
        self.groups = num_heads if per_head else 1
        self.variant = variant
        self.eps = eps
        self.gain = nn.Parameter(torch.empty(embed_dim))
        self.gate = nn.Parameter(torch.empty(embed_dim)) if variant == "gated" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = math.sqrt(3.0 / self.gain.numel())  # Xavier's for a vector
        if self.variant == "init":
            nn.init.uniform_(self.gain, -bound, bound)
        else:
            nn.init.ones_(self.gain)
        if self.gate is not None:
            nn.init.uniform_(self.gate, -bound, bound)

    def forward(self, z: Tensor) -> Tensor:
        wide = z.to(torch.promote_types(z.dtype, torch.float32))  # (..., d)
        grouped = wide.unflatten(-1, (self.groups, -1))
        out: Tensor = (grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)).flatten(-2) * self.gain
        if self.gate is not None:
            out = out * torch.sigmoid(self.gate * wide)
        return out.to(z.dtype)

    def extra_repr(self) -> str:
        return f"{self.gain.numel()}, variant={self.variant}, groups={self.groups}, eps={self.eps}"
