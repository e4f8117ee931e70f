"""Where a token stands. In: lengths, a first position, queries and keys. Out: what to add, how to turn, or how to bias scores.

    sinusoidal  added to the embeddings: sin and cos of t / 10000^(2i/d)                     (Vaswani et al. 2017)
    rotary      q and k turned by angles t / base^(2i/D), so q k^T knows the distance alone      (Su et al. 2021)
    alibi       scores get -slope_h |t_query - t_key|; slopes fall geometrically over the heads (Press et al. 2022)
    nape        some heads alibi with slopes 1, 1/2, 1/3 ..., the others without any position (Vasylenko et al. 2025)

None has a longest sequence, and none is state: tables and slopes are computed, in float64, whenever they are needed, and kept
outside of the modules (nn/tables.py). So nothing of them is saved, loaded, converted, broadcast or averaged.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn.tables import rows_of_table

__all__ = ["IN_ATTENTION", "Positions", "Rotary", "Sinusoidal", "alibi_slopes", "get_slopes", "nape_slopes"]

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
    def of(cls, requested: "str | Positions") -> "Positions":
        """A kind alone has the published settings."""
        return requested if isinstance(requested, Positions) else cls(requested)


def _angles(start: int, end: int, size: int, base: float, device: torch.device | None) -> Tensor:
    """t / base^(2i / size) for t in start..end, (end - start, ceil(size / 2)); in float64, since t may be large."""
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64, device=device) / size)
    return torch.arange(start, end, dtype=torch.float64, device=device)[:, None] * rates


class Sinusoidal(nn.Module):
    """The table of sinusoidal positions, (length, width): first all sines, then all cosines. It has no parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, length: int, start: int = 0, *, like: Tensor | None = None) -> Tensor:
        """Compute rows of positions start, start + 1, ....

        Args:
            length: how many rows.
            start: the first position.
            like: a tensor whose device the table is on, and whose dtype it has if that is wider than float32. None: float32
                on the CPU.

        Returns:
            (length, width), not to be changed in place.
        """
        like = torch.empty(0, device="cpu") if like is None else like
        device, dtype = like.device, torch.promote_types(like.dtype, torch.float32)

        def make(first: int, last: int) -> tuple[Tensor]:
            angles = _angles(first, last, self.width, BASE, device)
            return (torch.cat([angles.sin(), angles.cos()], 1)[:, : self.width].to(dtype),)

        return rows_of_table(("sinusoidal", self.width, device, dtype), start, start + length, make, like)[0]

    def extra_repr(self) -> str:
        return f"{self.width}"


class Rotary(nn.Module):
    """Rotary positions for heads of `size` numbers: the pair (i, i + size / 2) is rotated by its angle. No parameters."""

    def __init__(self, size: int, base: float = BASE) -> None:
        super().__init__()
        if size % 2:
            raise ArgumentError(f"rotary positions turn pairs of numbers; the head size {size} must be even.")
        self.size = size
        self.base = base

    def forward(self, t: Tensor, start: int = 0) -> Tensor:
        """Rotate t (B, H, L, size), whose first token is at position `start`. Angles are exact to float32 or better."""
        device, dtype = t.device, torch.promote_types(t.dtype, torch.float32)

        def make(first: int, last: int) -> tuple[Tensor, Tensor]:
            """Cosines (length, size), both halves alike, and sines, the first half with a minus."""
            angles = _angles(first, last, self.size, self.base, device)
            cosines, sines = angles.cos(), angles.sin()
            return torch.cat([cosines, cosines], 1).to(dtype), torch.cat([-sines, sines], 1).to(dtype)

        key = ("rotary", self.size, self.base, device, dtype)
        cosines, sines = rows_of_table(key, start, start + t.shape[2], make, t)
        half = self.size // 2
        swapped = torch.cat([t[..., half:], t[..., :half]], -1)
        return (t * cosines + swapped * sines).to(t.dtype)

    def extra_repr(self) -> str:
        return f"{self.size}, base={self.base:g}"


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """2^(-8 h / H) for h = 1..H, (H,). Where H is no power of two, the rest are every second slope of the next power."""
    power = 2 ** math.floor(math.log2(heads))
    first = -8.0 / power * torch.arange(1, power + 1, dtype=torch.float64, device=device)
    rest = -4.0 / power * torch.arange(1, 2 * power, 2, dtype=torch.float64, device=device)
    return torch.exp2(torch.cat([first, rest[: heads - power]])).float()


def nape_slopes(heads: int, slopes: str = "linear", share: float = 0.5, device: torch.device | None = None) -> Tensor:
    """1, 1/2, 1/3, ... (or 1, 1/2, 1/4, ...) for the first heads, 0 (no position) for the others, (H,)."""
    biased = math.floor(heads * share + 1e-9)  # 0.3 of 10 heads is 3, whatever rounding says
    order = torch.arange(biased, dtype=torch.float64, device=device)
    first = 1.0 / (order + 1.0) if slopes == "linear" else torch.exp2(-order)
    return torch.nn.functional.pad(first, (0, heads - biased)).float()


def get_slopes(positions: str | Positions, heads: int, like: Tensor | None = None) -> Tensor | None:
    """The slopes of these positions, (H,) in float32 on the device of `like`; None if they bias no scores."""
    places = Positions.of(positions)
    if places.kind not in ("alibi", "nape"):
        return None
    like = torch.empty(0, device="cpu") if like is None else like
    device = like.device

    def make(_first: int, _last: int) -> tuple[Tensor]:
        nape = places.kind == "nape"
        return (nape_slopes(heads, places.slopes, places.share, device) if nape else alibi_slopes(heads, device),)

    return rows_of_table((places, heads, device), 0, heads, make, like)[0]
