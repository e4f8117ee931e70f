"""Positional encodings.

    sinusoidal  added to the embeddings: sin and cos of t / 10000^(2i/d)                          (Vaswani et al. 2017)
    rotary      q and k rotated by angles t / base^(2i/D), so q k^T depends on the distance only   (Su et al. 2021)
    alibi       adds -slope_h |t_query - t_key| to the scores; slopes are geometric over the heads (Press et al. 2022)
    nape        some heads alibi with slopes 1, 1/2, 1/3 ..., the others without any position      (Vasylenko et al. 2025)

None has a longest sequence, and none is state of a module: a buffer that grows would be broadcast by DistributedDataParallel,
averaged, stacked, rounded by `.bfloat16()` and left uninitialized by `to_empty`. Tables are computed in float64 when they are
needed, and cached per process.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn.execution_mode import normal_tensors

__all__ = ["IN_ATTENTION", "Positions", "Rotary", "Sinusoidal", "alibi_slopes", "get_slopes", "nape_slopes"]

IN_ATTENTION = ("none", "rotary", "alibi", "nape")
"""The positional encodings inside attention."""
BASE = 10000.0
MAX_TABLES = 64
"""Cached at a time; a process with more kinds of models than this computes some of them again."""
MIN_ROWS = 64

Tables = tuple[Tensor, ...]
# Key -> tables of equal length. Only single operations on the dictionary, so threads need no lock and no fork can copy a held
# one: two threads may compute the same table, and either result is right.
_tables: dict[Hashable, Tables] = {}


def table_rows(key: Hashable, start: int, end: int, make: Callable[[int, int], Tables], like: Tensor) -> Tables:
    """Returns rows start to end of the tables that `make(first, last)` computes.

    Args:
        key: everything the tables depend on but their length: encoding, sizes, device, dtype.
        like: the tensor the tables are for. If it is not an ordinary tensor, or under a compiler, just these rows are computed,
            so that a compiled or exported graph contains no table of a certain length.
    """
    if torch.compiler.is_compiling() or type(like) not in (Tensor, nn.Parameter):
        return make(start, end)
    found = _tables.get(key)
    if found is None or found[0].shape[0] < end:
        with normal_tensors():
            found = make(0, max(MIN_ROWS, 2 * end))
        if torch.func.debug_unwrap(found[0]) is found[0]:  # torch.func.grad wraps what is made inside it
            if len(_tables) >= MAX_TABLES:
                _tables.clear()
            _tables[key] = found
    return tuple(table[start:end] for table in found)


@dataclass(frozen=True)
class Positions:
    """Positional encoding inside attention, with its options.

    Args:
        kind: "none", "rotary", "alibi" or "nape".
        base: of rotary angles. Larger bases rotate more slowly, for longer contexts.
        slopes: of NAPE's heads with ALiBi: "linear", 1, 1/2, 1/3, ..., or "exponential", 1, 1/2, 1/4, ...
        share: fraction of NAPE's heads that have ALiBi, rounded down; they are the first ones.
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
            raise ArgumentError(f"share={self.share} of heads with ALiBi must lie between 0 and 1.")

    @classmethod
    def of(cls, requested: "str | Positions") -> "Positions":
        """Returns `requested` as `Positions`; a name alone has the published options."""
        return requested if isinstance(requested, Positions) else cls(requested)


def _angles(start: int, end: int, size: int, base: float, device: torch.device | None) -> Tensor:
    """t / base^(2i / size) for t in start..end, (end - start, ceil(size / 2)); in float64, since t may be large."""
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64, device=device) / size)
    return torch.arange(start, end, dtype=torch.float64, device=device)[:, None] * rates


class Sinusoidal(nn.Module):
    """Sinusoidal positions, (length, width): first all sines, then all cosines. No parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, length: int, start: int = 0, *, like: Tensor | None = None) -> Tensor:
        """Computes the rows of positions start, start + 1, ....

        Args:
            length: how many rows.
            start: the first position.
            like: a tensor whose device the table is on, and whose dtype it has if that is more precise than float32. None:
                float32 on the CPU.

        Returns:
            (length, width), not to be changed in place.
        """
        like = torch.empty(0, device="cpu") if like is None else like
        device, dtype = like.device, torch.promote_types(like.dtype, torch.float32)

        def make(first: int, last: int) -> tuple[Tensor]:
            angles = _angles(first, last, self.width, BASE, device)
            return (torch.cat([angles.sin(), angles.cos()], 1)[:, : self.width].to(dtype),)

        return table_rows(("sinusoidal", self.width, device, dtype), start, start + length, make, like)[0]

    def extra_repr(self) -> str:
        return f"{self.width}"


class Rotary(nn.Module):
    """Rotary positions for heads of `size` numbers: the pair (i, i + size / 2) is rotated by its angle. No parameters."""

    def __init__(self, size: int, base: float = BASE) -> None:
        super().__init__()
        if size % 2:
            raise ArgumentError(f"rotary positions rotate pairs of numbers; the head size {size} must be even.")
        self.size = size
        self.base = base

    def forward(self, t: Tensor, start: int = 0) -> Tensor:
        """Rotates t (B, H, L, size), whose first token is at position `start`. Angles are exact to float32 or better."""
        device, dtype = t.device, torch.promote_types(t.dtype, torch.float32)

        def make(first: int, last: int) -> tuple[Tensor, Tensor]:
            """Cosines (length, size), both halves alike, and sines, the first half with a minus."""
            angles = _angles(first, last, self.size, self.base, device)
            cosines, sines = angles.cos(), angles.sin()
            return torch.cat([cosines, cosines], 1).to(dtype), torch.cat([-sines, sines], 1).to(dtype)

        key = ("rotary", self.size, self.base, device, dtype)
        cosines, sines = table_rows(key, start, start + t.shape[2], make, t)
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
    """Returns the ALiBi slopes of the heads, (H,) in float32 on the device of `like`; None for encodings without them."""
    encoding = Positions.of(positions)
    if encoding.kind not in ("alibi", "nape"):
        return None
    like = torch.empty(0, device="cpu") if like is None else like
    device = like.device

    def make(_first: int, _last: int) -> tuple[Tensor]:
        nape = encoding.kind == "nape"
        return (nape_slopes(heads, encoding.slopes, encoding.share, device) if nape else alibi_slopes(heads, device),)

    return table_rows((encoding, heads, device), 0, heads, make, like)[0]
