"""The norm of the concatenated heads z (..., d) that ReLA needs and any normalizer may have (`output_norm`).

    RMSNorm(z) = gain * z / sqrt(mean(z^2) + eps)                  over all d numbers of a position, or over each head's
    rms:   RMSNorm, gain starts at 1                               (unstable in training; the baseline; formerly "plain")
    gated: sigmoid(gate * z) * RMSNorm(z), elementwise             (ReLA-g, the released model)
    init:  RMSNorm, gain starts in U(-sqrt(3/d), sqrt(3/d))        (ReLA-i)

It is applied before the output projection. ReLA's weights do not sum to one (Zhang et al. 2021), so without a norm the output
grows with the number of active keys.
"""

import math

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError

__all__ = ["OUTPUT_NORMS", "RelaNorm", "make_output_norm", "resolve_output_norm"]

VARIANTS = ("rms", "gated", "init", "plain")
OUTPUT_NORMS = ("none", *VARIANTS)
"""The values of `output_norm`; "plain" is the old name of "rms"."""


class RelaNorm(nn.Module):
    """ReLA's output norm. A position whose heads are all null stays exactly zero.

    Args:
        embed_dim: d, the size of the concatenated heads.
        num_heads: used if `per_head`.
        variant: "gated", "init" or "rms" (also called "plain").
        per_head: one RMS for each head instead of one over all of them.
        eps: added inside the square root, in at least float32.
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
        x = z.to(torch.promote_types(z.dtype, torch.float32))  # (..., d)
        grouped = x.unflatten(-1, (self.groups, -1))
        out: Tensor = (grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)).flatten(-2) * self.gain
        if self.gate is not None:
            out = out * torch.sigmoid(self.gate * x)
        return out.to(z.dtype)

    def extra_repr(self) -> str:
        return f"{self.gain.numel()}, variant={self.variant}, groups={self.groups}, eps={self.eps}"


def resolve_output_norm(normalizer: str, needs_norm: bool, output_norm: str | None, rela_norm: str | None) -> str:
    """Returns the output norm to use: `output_norm`, `rela_norm` (its former name), or the default of the normalizer.

    Raises:
        ArgumentError: for two different values, and for `rela_norm` with a normalizer that is not one of ReLA's.
    """
    if rela_norm is not None and not needs_norm:
        raise ArgumentError(
            f'rela_norm="{rela_norm}" has no effect with normalizer="{normalizer}"; write output_norm="{rela_norm}" to put '
            "that norm after its heads."
        )
    if rela_norm is not None and output_norm not in (None, rela_norm):
        raise ArgumentError(f"output_norm={output_norm!r} and rela_norm={rela_norm!r} are two names of one option; give one.")
    chosen = output_norm or rela_norm or ("gated" if needs_norm else "none")
    if chosen not in OUTPUT_NORMS:
        raise ArgumentError(f"the output norm {chosen!r} is not known; choose one of {', '.join(OUTPUT_NORMS)}.")
    return chosen


def make_output_norm(chosen: str, embed_dim: int, num_heads: int, per_head: bool) -> RelaNorm | None:
    """Creates the module of an output norm; None for "none".

    Raises:
        ArgumentError: for `per_head` without a norm.
    """
    if per_head and chosen == "none":
        raise ArgumentError("output_norm_per_head has no effect without an output norm; choose one, or remove it.")
    return None if chosen == "none" else RelaNorm(embed_dim, num_heads, variant=chosen, per_head=per_head)
