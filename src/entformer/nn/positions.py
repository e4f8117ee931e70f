"""Where a token stands. In: lengths, a first position, queries and keys. Out: what to add, how to turn, or how to bias scores.

    sinusoidal  added to the embeddings: sin and cos of t / 10000^(2i/d)                     (Vaswani et al. 2017)
    rotary      q and k turned by angles t / base^(2i/D), so q k^T knows the distance alone      (Su et al. 2021)
    alibi       scores get -slope_h |t_query - t_key|; slopes fall geometrically over the heads (Press et al. 2022)
    nape        some heads alibi with slopes 1, 1/2, 1/3 ..., the others without any position (Vasylenko et al. 2025)

None has a longest sequence: tables grow when a longer one comes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError

__all__ = ["IN_ATTENTION", "Positions", "Rotary", "Sinusoidal", "alibi_slopes", "nape_slopes", "slopes_of"]

IN_ATTENTION = ("none", "rotary", "alibi", "nape")
"""The kinds of positions that live inside attention."""
BASE = 10000.0


@dataclass(frozen=True)
class Positions:
    """Positions inside attention, with all that can be chosen about them.

    Args:
        kind: "none", "rotary", "alibi" or "nape".
        base: of rotary angles. Above 10000 they turn more slowly, for longer contexts.
        slopes: of NAPE's biased heads: "linear", 1, 1/2, 1/3, ..., or "exponential", 1, 1/2, 1/4, ...
        share: of NAPE's heads that are biased, rounded down to whole heads; they are the first ones.
    """

    kind: str = "none"
    base: float = BASE
    slopes: str = "linear"
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in IN_ATTENTION:
            raise ArgumentError(f"positions={self.kind!r} is not known in attention; choose one of {', '.join(IN_ATTENTION)}.")
        if not 1.0 < self.base < math.inf:
            raise ArgumentError(f"base={self.base} of rotary positions must be a finite number above 1.")
        if self.slopes not in ("linear", "exponential"):
            raise ArgumentError(f'slopes={self.slopes!r} is not known; choose "linear" or "exponential".')
        if not 0.0 <= self.share <= 1.0:
            raise ArgumentError(f"share={self.share} of biased heads must lie between 0 and 1.")

    @classmethod
    def of(cls, wish: "str | Positions") -> "Positions":
        """A kind alone has the published settings."""
        return wish if isinstance(wish, Positions) else cls(wish)


def _angles(start: int, end: int, size: int, base: float, device: torch.device | None) -> Tensor:
    """t / base^(2i / size) for t in start..end, (end - start, ceil(size / 2)); in float64, since t may be large."""
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64, device=device) / size)
    return torch.arange(start, end, dtype=torch.float64, device=device)[:, None] * rates


class Sinusoidal(nn.Module):
    """The table of sinusoidal positions, (length, width): first all sines, then all cosines. It has no parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", torch.zeros(0, width), persistent=False)
        self.table: Tensor

    def forward(self, length: int, start: int = 0) -> Tensor:
        """Rows of positions start, start + 1, ..., (length, width)."""
        end = start + length
        if end > self.table.shape[0]:
            angles = _angles(0, max(64, 2 * end), self.width, BASE, self.table.device)
            table = torch.cat([angles.sin(), angles.cos()], 1)[:, : self.width]
            self.table = table.to(self.table.dtype)
        return self.table[start:end]

    def extra_repr(self) -> str:
        return f"{self.width}"


class Rotary(nn.Module):
    """Rotary positions for heads of `size` numbers: the pair (i, i + size / 2) is turned by its angle. No parameters."""

    def __init__(self, size: int, base: float = BASE) -> None:
        super().__init__()
        if size % 2:
            raise ArgumentError(f"rotary positions turn pairs of numbers; the head size {size} must be even.")
        self.size = size
        self.base = base
        self.register_buffer("cosines", torch.zeros(0, size), persistent=False)  # (length, size), both halves alike
        self.register_buffer("sines", torch.zeros(0, size), persistent=False)  # the first half with a minus
        self.cosines: Tensor
        self.sines: Tensor

    def forward(self, t: Tensor, start: int = 0) -> Tensor:
        """t (B, H, L, size), whose first place is position `start`, turned."""
        end = start + t.shape[2]
        if end > self.cosines.shape[0]:
            angles = _angles(0, max(64, 2 * end), self.size, self.base, self.cosines.device)
            cosines, sines = angles.cos(), angles.sin()
            self.cosines = torch.cat([cosines, cosines], 1).to(self.cosines.dtype)
            self.sines = torch.cat([-sines, sines], 1).to(self.sines.dtype)
        half = self.size // 2
        swapped = torch.cat([t[..., half:], t[..., :half]], -1)
        return (t * self.cosines[start:end] + swapped * self.sines[start:end]).to(t.dtype)

    def extra_repr(self) -> str:
        return f"{self.size}, base={self.base:g}"


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8 h / H) for h = 1..H, (H,). Where H is no power of two, the rest are every second slope of the next power."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power, 2)][: heads - power]
    return torch.tensor(slopes)


def nape_slopes(heads: int, slopes: str = "linear", share: float = 0.5) -> Tensor:
    """1, 1/2, 1/3, ... (or 1, 1/2, 1/4, ...) for the first heads, 0 (no position) for the others, (H,)."""
    biased = math.floor(heads * share + 1e-9)  # 0.3 of 10 heads is 3, whatever rounding says
    order = torch.arange(biased)
    return torch.cat([1.0 / (order + 1) if slopes == "linear" else 0.5**order, torch.zeros(heads - biased)])


def slopes_of(positions: str | Positions, heads: int) -> Tensor | None:
    """The slopes of these positions; None if they bias no scores."""
    wish = Positions.of(positions)
    if wish.kind == "nape":
        return nape_slopes(heads, wish.slopes, wish.share)
    return alibi_slopes(heads) if wish.kind == "alibi" else None
