"""Masks of Hugging Face models in the terms of `attention`, which skips keys that a causal limit or a window excludes.

Models pass a boolean (B, 1, Lq, Lk). Most are a causal limit, a sliding window, padding, packed sequences, or several of them:
`recognized` finds which, and compares every element. It looks once at each tensor, which all layers of a model share.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST_QUERIES = 32  # below, looking at a mask takes longer than it saves
FORM = "_entformer_form"  # on a tensor: its version and the recognized form, or None


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may attend to."""

    causal: bool = False  # query i attends to keys j <= i + offset
    offset: int = 0
    window: tuple[int | None, int | None] | None = None  # and to keys from i + offset - left to i + offset + right
    keys: Tensor | None = None  # boolean (B or 1, Lk), True = may be attended to
    packed: tuple[Tensor, Tensor] | None = None  # where packed sequences of queries and of keys begin, and the end
    elements: Tensor | None = None  # boolean, broadcasts to (B, H, Lq, Lk), True = may attend

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `attention`, but for `attn_mask`."""
        found: dict[str, Any] = {"is_causal": self.causal, "causal_offset": self.offset, "key_mask": self.keys}
        if self.window is not None:
            found["window"] = self.window
        if self.packed is not None:
            found["cu_seqlens_q"], found["cu_seqlens_k"] = self.packed
        return found

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Returns a boolean tensor that broadcasts to (B, H, Lq, Lk)."""
        found = limits(queries, keys, self.offset, self.causal, self.window, device)[None, None]
        if self.packed is not None:
            found = found & _same_sequence(*self.packed, queries, keys)
        if self.keys is not None:
            found = found & self.keys[:, None, None, :]
        return found if self.elements is None else found & self.elements

    def counts(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Returns how many keys each query may attend to, broadcasts to (B, H, Lq)."""
        if any(part is not None for part in (self.window, self.keys, self.packed, self.elements)):
            return self.dense(queries, keys, device).sum(-1)
        places = torch.arange(1 + self.offset, queries + 1 + self.offset, device=device)
        return (places.clamp_max(keys) if self.causal else torch.full_like(places, keys))[None, None]


def limits(
    queries: int, keys: int, offset: int, causal: bool, window: tuple[int | None, int | None] | None, device: torch.device
) -> Tensor:
    """Returns what a causal limit and a window allow, boolean (Lq, Lk)."""
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    distance = torch.arange(keys, device=device) - torch.arange(offset, offset + queries, device=device)[:, None]
    found = torch.ones((), dtype=torch.bool, device=device).expand(queries, keys)
    if right is not None:
        found = distance <= right
    return found if left is None else found & (distance >= -left)


def _same_sequence(cu_q: Tensor, cu_k: Tensor, queries: int, keys: int) -> Tensor:
    """Returns whether query and key belong to one packed sequence, boolean (Lq, Lk)."""
    sides = ((queries, cu_q), (keys, cu_k))
    rows, columns = (torch.searchsorted(cu, torch.arange(size, device=cu.device), right=True) for size, cu in sides)
    return rows[:, None] == columns[None, :]


def boundaries(position_ids: Tensor | None, queries: int, keys: int) -> Tensor | None:
    """Returns where packed sequences begin, and the end, (n + 1,) int32; None if positions never restart.

    With several rows in a batch, which may be packed differently, the result is (B, L): the number of each token's sequence.
    """
    if position_ids is None or position_ids.dim() != 2 or not position_ids.shape[1] == queries == keys > 1:
        return None
    restarts = position_ids[:, 1:] <= position_ids[:, :-1]
    if not bool(restarts.any()):
        return None
    if len(position_ids) > 1:
        return F.pad(restarts.cumsum(1), (1, 0))
    return F.pad(F.pad(restarts[0].nonzero()[:, 0] + 1, (1, 0)), (0, 1), value=queries).int()


def recognized(mask: Tensor, starts: Tensor | None) -> Mask:
    """Returns a boolean mask (B, 1 or H, Lq, Lk) as a `Mask`, in other terms than its elements where these are equal to it.

    Args:
        mask: What the model passes, True = may attend.
        starts: Where packed sequences begin, and the end, or None.
    """
    if mask.shape[1] != 1:
        return Mask(elements=mask)
    if mask.shape[2] == 1:
        return Mask(keys=mask[:, 0, 0])
    if mask.shape[2] < FEWEST_QUERIES or mask.device.type != "cpu" or torch.compiler.is_compiling():
        return Mask(elements=mask)
    version = 0 if mask.is_inference() else mask._version
    seen, form = getattr(mask, FORM, (None, None))
    if seen != version:
        form = _form(mask[:, 0], starts)
        setattr(mask, FORM, (version, form))
    return Mask(elements=mask) if form is None else form


def _form(rows: Tensor, starts: Tensor | None) -> Mask | None:
    """Returns the form of a boolean mask (B, Lq, Lk), or None."""
    _, queries, keys = rows.shape
    attended = rows.any(1)  # (B, Lk)
    if not bool(attended.any()):
        return None
    offset = int(attended.any(0).nonzero().max()) + 1 - queries  # the last query attends to itself, if to anything later
    if offset < 0:
        return None
    padding = None if bool(attended.all()) else attended
    causal = not bool(rows.triu(offset + 1).any())
    width = int(rows.sum(-1).max())
    sides = (width - 1, 0) if causal else ((width - 1) // 2,) * 2
    forms = [Mask(causal, offset if causal else 0, None, padding), Mask(causal, offset, sides, padding)]
    if starts is not None and starts.dim() == 1 and queries == keys and padding is None:
        forms.append(Mask(causal, packed=(starts, starts)))
    for form in forms:
        if torch.equal(form.dense(queries, keys, rows.device).expand(len(rows), 1, queries, keys)[:, 0], rows):
            return form
    return None
