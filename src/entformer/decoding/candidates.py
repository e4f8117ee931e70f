"""One decoding step: from logits (rows, V) to the best continuations of each sentence.

The rows of a sentence are its live hypotheses. PAD, UNK and BOS are never generated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from entformer.errors import DataError
from entformer.text.tokenizer import BOS, EOS, PAD, UNK


class DecoderStateProtocol(Protocol):
    """State of a model between steps, one entry per row."""

    def reorder(self, index: Tensor) -> None:
        """Reindices row r by row index[r]; the number of rows may change."""


class Decodable(Protocol):
    """Interface of a model for decoding."""

    def start(self, source: Tensor, source_mask: Tensor | None) -> Any:
        """Encodes (B, S) and returns a `DecoderStateProtocol` with B rows."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Appends tokens (rows,) or (rows, n) to each row and returns the logits (rows, V) of the next token."""

    def log_probs(self, logits: Tensor) -> Tensor:
        """Returns log-probabilities, -inf where the probability is exactly zero."""


@dataclass(frozen=True)
class DecodingConstraints:
    """Constraints on the next token of each sentence."""

    may_end: bool  # EOS is allowed
    must_end: Tensor  # (B,) bool: only EOS is allowed
    forced: Tensor  # (B,) int64: next token of the prefix, or -1
    any_forced: bool
    any_end: bool

    @classmethod
    def at(
        cls, length: int, *, limits: Sequence[float], prefixes: Sequence[Sequence[int]], min_length: int, device: torch.device
    ) -> "DecodingConstraints":
        """Returns the constraints for sentences with `length` tokens so far."""
        must_end = [length >= limit for limit in limits]
        forced = [int(prefix[length]) if length < len(prefix) else -1 for prefix in prefixes]
        return cls(
            may_end=length >= min_length,
            must_end=torch.tensor(must_end, device=device),
            forced=torch.tensor(forced, dtype=torch.int64, device=device),
            any_forced=any(token >= 0 for token in forced),
            any_end=any(must_end),
        )


def best_continuations(
    model: Decodable, logits: Tensor, so_far: Tensor, constraints: DecodingConstraints, renormalize: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Returns the `count` most probable continuations of each sentence: log-probabilities and indices, (B, count) each.

    An index is row * V + token, rows counted within the sentence. The log-probability is -inf if there are fewer.

    Args:
        model: The model.
        logits: Logits (B * width, V) of `width` hypotheses per sentence.
        so_far: Log-probabilities (B, width) of the hypotheses, -inf for an unused row.
        constraints: Constraints on the next token.
        renormalize: Mask (B,) of sentences without a finished hypothesis. A sparse output layer can give all probability to
            tokens that are not allowed; these sentences then use the distribution over the allowed tokens.
        count: Number of continuations.
    """
    batch, width = so_far.shape
    total = _log_probs(model, logits) + so_far.view(-1, 1)
    _forbid(total, constraints, width)
    if constraints.any_forced:
        _force(total, so_far, constraints.forced, width)
    values, indices = top_candidates(total.view(batch, -1), count)
    impossible = renormalize & ~constraints.must_end & (values[:, 0] == -math.inf)
    if bool(impossible.any()):
        allowed = logits.view(batch, width, -1)[impossible].flatten(0, 1)
        some = replace(constraints, must_end=constraints.must_end[impossible])
        _forbid(allowed, some, width)
        again = _log_probs(model, allowed) + so_far[impossible].view(-1, 1)
        _forbid(again, some, width)
        values[impossible], indices[impossible] = top_candidates(again.view(len(some.must_end), -1), count)
    return values, indices


def _log_probs(model: Decodable, logits: Tensor) -> Tensor:
    log_probs = model.log_probs(logits)
    return log_probs.float() if log_probs.dtype in (torch.float16, torch.bfloat16) else log_probs


def _forbid(scores: Tensor, constraints: DecodingConstraints, width: int) -> None:
    """Sets the scores (B * width, V) of tokens that are not allowed to -inf, in place."""
    scores[:, [PAD, UNK, BOS]] = -math.inf
    if not constraints.may_end:
        scores[:, EOS] = -math.inf
    if constraints.any_end:
        end = scores[:, EOS].clone()
        scores.masked_fill_(constraints.must_end.repeat_interleave(width)[:, None], -math.inf)
        scores[:, EOS] = end


def _force(total: Tensor, so_far: Tensor, forced: Tensor, width: int) -> None:
    """Makes the token of the prefix the only continuation, at no cost."""
    rows = (forced >= 0).repeat_interleave(width).nonzero()[:, 0]
    total[rows] = -math.inf
    total[rows, forced.repeat_interleave(width)[rows]] = so_far.flatten()[rows].to(total.dtype)


def top_candidates(total: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the `count` highest values of each row and their indices, equal values in order of their indices.

    `topk` does not define the order of equal values. One more than needed is computed: if the last two are equal, that row
    (rare) is sorted.
    """
    count = min(count, total.shape[1])
    values, indices = total.topk(min(count + 1, total.shape[1]), dim=1)
    if bool(values[:, 0].isnan().any()):
        raise DataError("the model returns NaN; its weights are damaged or training diverged.")
    indices, order = indices.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, order)
    if values.shape[1] > count:
        tied = (values[:, count] == values[:, count - 1]) & (values[:, count] > -math.inf)
        if bool(tied.any()):
            sorted_values, sorted_indices = total[tied].sort(dim=1, descending=True, stable=True)
            values[tied] = sorted_values[:, : count + 1]
            indices[tied] = sorted_indices[:, : count + 1]
    return values[:, :count], indices[:, :count]
