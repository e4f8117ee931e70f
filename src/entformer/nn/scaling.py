"""Length-aware scaling of queries: factors (B, H, L) from the layer input x (B, L, embed) and row lengths n.

The factor multiplies the query before 1/sqrt(head size), so that scores sharpen (or soften) as the context grows:

    SSMax        s_h log n                                         (Nakanishi 2025; s learned per head)
    per head     delta + beta_h log(n)^gamma_h                     (the same, independent of x)
    ASEntmax     delta + softplus(W_b x) log(n)^(rho tanh(W_g x))  (Vasylenko et al. 2025; per head and query token)
    temperature  sqrt(head size) / theta                           (scores become q k^T / theta; n does not matter)

`row_length` computes n for all of them: the number of keys the query may attend to, and one more where attention is causal.
That is the published log n, and the published log(i + 2) of a causal row whose query has index i = 0, 1, ... Attention is
causal if it is computed so, or if its mask excludes every later key: a causal mask, packed sequences and cached decoding give
the same n. Padding, on either side, and other sequences packed into the same row do not count.
"""

import math

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn.execution_mode import traced_as_leaf

__all__ = [
    "SCALINGS",
    "ASEntmaxScaling",
    "PerHeadScaling",
    "SSMaxScaling",
    "TemperatureScaling",
    "make_scaling",
    "row_length",
    "scale_queries",
]


def row_length(
    queries: int,
    keys: int,
    *,
    causal_offset: int | None = None,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Returns n for each query: keys it may attend to, plus one if causal. (B or 1, H or 1, queries) int64.

    Args:
        causal_offset: query i attends to keys j <= i + causal_offset; None: not causal, unless `mask` excludes every later key.
        key_mask: (B, keys) boolean, True = may attend.
        mask: (B or 1, H or 1, queries or 1, keys) boolean, True = may attend.
    """
    causal = causal_offset is not None
    key_position = torch.arange(keys, device=device)
    last = torch.arange(queries, device=device) + (keys if causal_offset is None else causal_offset)  # (queries,)
    if mask is not None:
        allowed = mask & (key_position <= last[:, None])  # (B or 1, H or 1, queries, keys)
        more: Tensor | int = int(causal)
        if not causal and 1 < queries <= keys:
            # The last query is at the last key; earlier keys may be a cache. For one query alone the order is unknown.
            more = (~allowed.triu(keys - queries + 1).flatten(-2).any(-1, keepdim=True)).long()  # (B or 1, H or 1, 1)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        return allowed.sum(-1) + more
    seen = (last + 1).clamp(min=0, max=keys)  # the first `seen` keys, (queries,)
    if key_mask is None:
        return (seen + int(causal))[None, None]
    up_to = torch.nn.functional.pad(key_mask.cumsum(-1), (1, 0))  # (B, keys + 1): allowed among the first j keys
    return up_to[:, None, seen] + int(causal)


def scale_queries(q: Tensor, factor: Tensor, slopes: Tensor | None = None) -> Tensor:
    """Returns q (B, H, L, D) times factor (B, H, L). Heads with a nonzero ALiBi slope (H,) are not scaled, as in NAPE."""
    factor = factor[..., None]
    if slopes is not None:
        factor = torch.where(slopes[:, None, None] > 0.0, 1.0, factor)
    return (q * factor).to(q.dtype)


def _log_length(length: Tensor, like: Tensor) -> Tensor:
    """Returns log n as (B or 1, H or 1, L), in at least float32; n below 2 counts as 2, to avoid powers of 0."""
    if length.dim() not in (2, 3):
        raise ArgumentError(f"length must have shape (B, L) or (B, H, L), not {tuple(length.shape)}.")
    length = length[:, None] if length.dim() == 2 else length
    return length.clamp(min=2).to(torch.promote_types(like.dtype, torch.float32)).log()


class SSMaxScaling(nn.Module):
    """Scalable-Softmax: the factor s_h log n, with s learned for each head.

    Args:
        num_heads: number of heads.
        init, spread: mean and standard deviation of the initial s. 1 and 0.01 are the ASEntmax authors' baseline; about
            1 / log(training length) starts near plain softmax.
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
    """The factor delta + beta_h log(n)^gamma_h; beta and gamma are learned for each head, without bounds.

    Args:
        num_heads: number of heads.
        delta: 1 in the published model. With delta = 0 and gamma = 1 this is SSMax.
        init: "identity" starts at beta = 0.05 and gamma = 0, the constant delta + 0.05;
            "paper" draws beta from U(0.1, 1) and gamma from N(0, 0.1^2).
    """

    def __init__(self, num_heads: int, *, delta: float = 1.0, init: str = "identity") -> None:
        super().__init__()
        self.num_heads = num_heads
        self.delta = delta
        self.init = _check_init(init)
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
        num_heads: number of heads.
        delta, rho: the published model has 1 and 2. gamma > 0 sharpens as n grows, gamma < 0 softens.
        init: "identity" starts at the constant 1.05 (beta = 0.05, gamma = 0) and trains more reliably;
            "paper" draws the projections from N(0, 0.02^2), so the factor starts anywhere between 1 and 20.
        fixed_gamma: a constant gamma instead of a learned one.
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
        self.init = _check_init(init)
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
        """Returns beta and gamma of each head and token of x (B, L, embed), (B, H, L) each, in at least float32."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        beta = nn.functional.softplus(self.beta(x).transpose(1, 2).to(dtype))
        if self.gamma is None:
            return beta, torch.full_like(beta, self.fixed_gamma or 0.0)
        return beta, self.rho * torch.tanh(self.gamma(x).transpose(1, 2).to(dtype))

    def extra_repr(self) -> str:
        fixed = "" if self.fixed_gamma is None else f", fixed_gamma={self.fixed_gamma}"
        return f"num_heads={self.num_heads}, delta={self.delta}, rho={self.rho}, init={self.init}{fixed}"


class TemperatureScaling(nn.Module):
    """Softmax with a temperature: the factor sqrt(head size) / theta, so that scores are q k^T / theta.

    Args:
        num_heads, head_dim: of the attention layer.
        temperature: theta. "learned": one per head, log theta learned, from sqrt(head size), which is plain attention.
    """

    def __init__(self, num_heads: int, head_dim: int, *, temperature: float | str = "learned") -> None:
        super().__init__()
        if temperature != "learned" and (isinstance(temperature, str) or not 0.0 < temperature < math.inf):
            raise ArgumentError(f'temperature={temperature!r} must be a finite number above 0, or "learned".')
        self.num_heads = num_heads
        self.temperature = temperature
        self.factor = 1.0 if isinstance(temperature, str) else math.sqrt(head_dim) / temperature
        self.log_factor = nn.Parameter(torch.zeros(num_heads)) if isinstance(temperature, str) else None

    def reset_parameters(self) -> None:
        if self.log_factor is not None:
            nn.init.zeros_(self.log_factor)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        factor = x.new_full((self.num_heads,), self.factor) if self.log_factor is None else self.log_factor.exp()
        return factor.to(torch.promote_types(x.dtype, torch.float32))[:, None].expand(x.shape[0], -1, x.shape[1])

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, temperature={self.temperature}"


def _check_init(init: str) -> str:
    if init not in ("identity", "paper"):
        raise ArgumentError(f'init={init!r} is not known; choose "identity" or "paper".')
    return init


SCALINGS = ("ssmax", "per_head", "asentmax", "temperature")
"""Names of the scalings; each can be combined with any normalizer."""


def make_scaling(
    name: str,
    embed_dim: int,
    num_heads: int,
    *,
    init: str | float | None = None,
    gamma: float | None = None,
    temperature: float | str | None = None,
) -> nn.Module:
    """Creates the scaling of this name.

    Args:
        name: one of `SCALINGS`.
        embed_dim, num_heads: of the attention layer.
        init: "ssmax": the initial mean of s, 1 ("paper") by default. "per_head", "asentmax": "identity" or "paper".
        gamma: a constant gamma for "asentmax".
        temperature: of "temperature"; see `TemperatureScaling`.

    Raises:
        ArgumentError: for an unknown name, or an option that this scaling does not have.
    """
    if name not in SCALINGS:
        raise ArgumentError(f"scaling={name!r} is not known; choose one of {', '.join(SCALINGS)}.")
    if gamma is not None and name != "asentmax":
        raise ArgumentError(f'a fixed gamma goes with scaling "asentmax" only, not with {name!r}.')
    if temperature is not None and name != "temperature":
        raise ArgumentError(f'a temperature goes with scaling "temperature" only, not with {name!r}.')
    fits = name != "temperature" and (isinstance(init, str) or name == "ssmax") and (init != "identity" or name != "ssmax")
    if init is not None and not fits:
        fitting = {"ssmax": 'a number, the mean of s, or "paper"', "temperature": "none"}.get(name, '"identity" or "paper"')
        raise ArgumentError(f"init={init!r} does not fit scaling {name!r}, which takes {fitting}.")
    if name == "ssmax":
        return SSMaxScaling(num_heads) if init in (None, "paper") else SSMaxScaling(num_heads, init=float(init or 0.0))
    if name == "temperature":
        theta: float | str = "learned" if temperature is None else temperature
        return TemperatureScaling(num_heads, embed_dim // num_heads, temperature=theta)
    start = "identity" if init is None else str(init)
    if name == "per_head":
        return PerHeadScaling(num_heads, init=start)
    return ASEntmaxScaling(embed_dim, num_heads, init=start, fixed_gamma=gamma)
