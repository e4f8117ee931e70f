"""Length-aware scaling of queries. In: layer input x (B, L, embed) and n, how long each query's row counts. Out: (B, H, L).

The factor multiplies the query before 1/sqrt(head size), so scores sharpen (or soften) as the context grows:

    SSMax     s_h log n                                         (Nakanishi 2025; s learned per head)
    per head  delta + beta_h log(n)^gamma_h                     (the same without looking at x)
    ASEntmax  delta + softplus(W_b x) log(n)^(rho tanh(W_g x))  (Vasylenko et al. 2025; per head and query token)

`row_length` makes n: the number of keys the query may attend, plus one. The one is the published code's for causal rows
(log n is then never 0); used for every row, masks that mean the same give the same n, and so does cached decoding. Padding,
on either side, and other sequences packed into the same row are hidden keys and do not count.
"""

import math

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn.tracing import traced_as_leaf

__all__ = ["SCALINGS", "ASEntmaxScaling", "PerHeadScaling", "SSMaxScaling", "row_length", "scale_queries", "scaling_of"]


def row_length(
    queries: int,
    keys: int,
    *,
    causal_offset: int | None = None,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """n for each query: visible keys plus one, (B or 1, H or 1, queries) int64.

    Args:
        causal_offset: query i sees keys j <= i + causal_offset; None: not causal.
        key_mask: (B, keys) boolean, True = may attend.
        mask: (B or 1, H or 1, queries or 1, keys) boolean, True = may attend.
    """
    key_at = torch.arange(keys, device=device)
    last = torch.arange(queries, device=device) + (keys if causal_offset is None else causal_offset)  # (queries,)
    if mask is not None:
        allowed = mask & (key_at <= last[:, None])  # (B or 1, H or 1, queries, keys)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        return allowed.sum(-1) + 1
    seen = (last + 1).clamp(min=0, max=keys)  # the first `seen` keys, (queries,)
    if key_mask is None:
        return (seen + 1)[None, None]
    up_to = torch.nn.functional.pad(key_mask.cumsum(-1), (1, 0))  # (B, keys + 1): allowed among the first j keys
    return up_to[:, None, seen] + 1


def scale_queries(q: Tensor, factor: Tensor, slopes: Tensor | None = None) -> Tensor:
    """q (B, H, L, D) times factor (B, H, L). Heads that have one of the ALiBi `slopes` (H,) keep their scores, as in NAPE."""
    factor = factor[..., None]
    if slopes is not None:
        factor = torch.where(slopes[:, None, None] > 0.0, 1.0, factor)
    return (q * factor).to(q.dtype)


def _log_length(length: Tensor, like: Tensor) -> Tensor:
    """log n as (B or 1, H or 1, L), in at least float32; n below 2 counts as 2, so no power of 0 appears."""
    if length.dim() not in (2, 3):
        raise ArgumentError(f"length must have shape (B, L) or (B, H, L), not {tuple(length.shape)}.")
    length = length[:, None] if length.dim() == 2 else length
    return length.clamp(min=2).to(torch.promote_types(like.dtype, torch.float32)).log()


class SSMaxScaling(nn.Module):
    """Scalable-Softmax: the factor s_h log n, with s learned for each head.

    Args:
        num_heads: how many heads are scaled.
        init, spread: s starts from a normal with this mean and deviation. 1 and 0.01 are the ASEntmax authors' baseline;
            about 1 / log(training length) starts near plain softmax.
    """

    def __init__(self, num_heads: int, *, init: float = 1.0, spread: float = 0.01) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.init = init
        self.spread = spread
        self.s = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.s, self.init, self.spread)

    @traced_as_leaf
    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        log_n = _log_length(length, x)  # (B or 1, H or 1, L)
        factor = self.s.to(log_n.dtype)[:, None] * log_n
        return factor.expand(x.shape[0], self.num_heads, x.shape[1])

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, init={self.init}, spread={self.spread}"


class PerHeadScaling(nn.Module):
    """The factor delta + beta_h log(n)^gamma_h, both learned for each head and free to take any value.

    Args:
        num_heads: how many heads are scaled.
        delta: 1 in the published model. With delta = 0 and gamma = 1 this is SSMax.
        init: "identity" starts at beta = 0.05 and gamma = 0, the constant delta + 0.05;
            "paper" draws beta from U(0.1, 1) and gamma from N(0, 0.1^2).
    """

    def __init__(self, num_heads: int, *, delta: float = 1.0, init: str = "identity") -> None:
        super().__init__()
        self.num_heads = num_heads
        self.delta = delta
        self.init = _known_start(init)
        self.beta = nn.Parameter(torch.empty(num_heads))
        self.gamma = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.init == "paper":
            nn.init.uniform_(self.beta, 0.1, 1.0)
            nn.init.normal_(self.gamma, 0.0, 0.1)
        else:
            nn.init.constant_(self.beta, 0.05)
            nn.init.zeros_(self.gamma)

    @traced_as_leaf
    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        log_n = _log_length(length, x)  # (B or 1, H or 1, L)
        beta, gamma = (p.to(log_n.dtype)[:, None] for p in (self.beta, self.gamma))  # (H, 1)
        return (self.delta + beta * log_n**gamma).expand(x.shape[0], self.num_heads, x.shape[1])

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, delta={self.delta}, init={self.init}"


class ASEntmaxScaling(nn.Module):
    """Adaptive-scalable entmax: the factor delta + beta log(n)^gamma, where beta > 0 and |gamma| < rho depend on the token.

    Args:
        embed_dim: size of the layer's input.
        num_heads: how many heads are scaled.
        delta, rho: the published model has 1 and 2. gamma > 0 sharpens as n grows, gamma < 0 softens.
        init: "identity" starts at the constant 1.05 (beta = 0.05, gamma = 0) and trains more reliably;
            "paper" draws the projections from N(0, 0.02^2), so the factor starts anywhere between 1 and 20.
        fixed_gamma: gamma is this number and nothing is learned about it.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        delta: float = 1.0,
        rho: float = 2.0,
        init: str = "identity",
        fixed_gamma: float | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.delta = delta
        self.rho = rho
        self.init = _known_start(init)
        self.fixed_gamma = fixed_gamma
        self.beta = nn.Linear(embed_dim, num_heads)
        self.gamma = nn.Linear(embed_dim, num_heads) if fixed_gamma is None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection in (self.beta, self.gamma):
            if projection is not None:
                nn.init.normal_(projection.weight, 0.0, 0.02 if self.init == "paper" else 0.0)
                nn.init.zeros_(projection.bias)
        if self.init == "identity":
            nn.init.constant_(self.beta.bias, math.log(math.expm1(0.05)))  # softplus of this is 0.05

    @traced_as_leaf
    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        log_n = _log_length(length, x)  # (B or 1, H or 1, L)
        beta, gamma = self.beta_gamma(x)
        return self.delta + beta.to(log_n.dtype) * log_n ** gamma.to(log_n.dtype)

    def beta_gamma(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What each head makes of each token of x (B, L, embed): beta and gamma, (B, H, L) each, in at least float32."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        beta = nn.functional.softplus(self.beta(x).transpose(1, 2).to(dtype))
        if self.gamma is None:
            return beta, torch.full_like(beta, self.fixed_gamma or 0.0)
        return beta, self.rho * torch.tanh(self.gamma(x).transpose(1, 2).to(dtype))

    def extra_repr(self) -> str:
        fixed = "" if self.fixed_gamma is None else f", fixed_gamma={self.fixed_gamma}"
        return f"num_heads={self.num_heads}, delta={self.delta}, rho={self.rho}, init={self.init}{fixed}"


def _known_start(init: str) -> str:
    if init not in ("identity", "paper"):
        raise ArgumentError(f'init={init!r} is not known; choose "identity" or "paper".')
    return init


SCALINGS = ("ssmax", "per_head", "asentmax")
"""Scalings by name; each goes with any normaliser."""


def scaling_of(name: str, embed_dim: int, num_heads: int, *, init: str = "identity", gamma: float | None = None) -> nn.Module:
    """The scaling of this name. `init` is for "per_head" and "asentmax"; a `gamma` is fixed for "asentmax" alone."""
    if name not in SCALINGS:
        raise ArgumentError(f"scaling={name!r} is not known; choose one of {', '.join(SCALINGS)}.")
    if gamma is not None and name != "asentmax":
        raise ArgumentError(f'a fixed gamma goes with scaling "asentmax" only, not with {name!r}.')
    if name == "ssmax":
        return SSMaxScaling(num_heads)
    if name == "per_head":
        return PerHeadScaling(num_heads, init=init)
    return ASEntmaxScaling(embed_dim, num_heads, init=init, fixed_gamma=gamma)
