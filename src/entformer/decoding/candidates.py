"""One step of a search: from the model's logits to the best continuations. In: logits (rows, V). Out: the top candidates.

The rows of a sentence are its live hypotheses. PAD, UNK and BOS are never generated, whatever the model thinks of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from entformer.errors import DataError
from entformer.text.tokenizer import BOS, EOS, PAD, UNK


class DecoderState(Protocol):
    """What a model remembers between steps; one entry per row."""

    def reorder(self, index: Tensor) -> None:
        """Row r becomes what row index[r] was; the number of rows may change."""


class Decodable(Protocol):
    """All that the searches ask of a model."""

    def start(self, source: Tensor, source_mask: Tensor | None) -> Any:
        """Encode (B, S) and give a `DecoderState` with B rows."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Append tokens (rows,) or (rows, n) to each row and give the logits (rows, V) of the next token."""

    def log_probs(self, logits: Tensor) -> Tensor:
        """Logits to log-probabilities, -inf where the probability is exactly zero."""


@dataclass(frozen=True)
class Rules:
    """What each sentence may do in this step."""

    may_end: Tensor  # (B,) bool: long enough for EOS
    must_end: Tensor  # (B,) bool: as long as it may be, so EOS or nothing
    forced: Tensor  # (B,) int64: the next token of the prefix, or -1
    any_forced: bool
    any_limit: bool  # some sentence may not end, or must

    @classmethod
    def at(
        cls, length: int, *, limits: Sequence[int], prefixes: Sequence[Sequence[int]], min_length: int, device: torch.device
    ) -> "Rules":
        """For sentences of which `length` tokens are there."""
        must_end = [length >= limit for limit in limits]
        forced = [int(prefix[length]) if length < len(prefix) else -1 for prefix in prefixes]
        return cls(
            may_end=torch.full((len(limits),), length >= min_length, device=device),
            must_end=torch.tensor(must_end, device=device),
            forced=torch.tensor(forced, dtype=torch.int64, device=device),
            any_forced=any(token >= 0 for token in forced),
            any_limit=length < min_length or any(must_end),
        )


def best_continuations(
    model: Decodable, logits: Tensor, so_far: Tensor, rules: Rules, rescue: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The `count` most probable continuations of each sentence: their log-probabilities and places, (B, count) each.

    A place is row * V + token, rows counted inside the sentence. -inf: there are no more.

    Args:
        logits: (B * width, V), `width` hypotheses per sentence.
        so_far: (B, width), log-probability of the hypotheses; -inf marks a row that holds none.
        rescue: (B,) bool, sentences that have nothing finished yet. A sparse output layer can give all its probability to
            tokens that are not allowed. Such a sentence would end with nothing, so it takes the distribution over the allowed
            tokens instead.
    """
    batch, width = so_far.shape
    total = _log_probs(model, logits) + so_far.view(-1, 1)  # a new tensor: what the model returned stays as it is
    _forbid(total, rules, width)
    if rules.any_forced:
        _force(total, so_far, rules.forced, width)
    values, places = top_candidates(total.view(batch, -1), count)
    hopeless = rescue & ~rules.must_end & (values[:, 0] == -math.inf)
    if bool(hopeless.any()):
        allowed = logits.view(batch, width, -1)[hopeless].flatten(0, 1)
        some = Rules(rules.may_end[hopeless], rules.must_end[hopeless], rules.forced[hopeless], False, rules.any_limit)
        _forbid(allowed, some, width)
        again = _log_probs(model, allowed) + so_far[hopeless].view(-1, 1)
        _forbid(again, some, width)
        values[hopeless], places[hopeless] = top_candidates(again.view(len(some.forced), -1), count)
    return values, places


def _log_probs(model: Decodable, logits: Tensor) -> Tensor:
    log_probs = model.log_probs(logits)
    return log_probs.float() if log_probs.dtype in (torch.float16, torch.bfloat16) else log_probs


def _forbid(scores: Tensor, rules: Rules, width: int) -> None:
    """-inf in place for tokens that may not come next, in scores (B * width, V)."""
    scores[:, [PAD, UNK, BOS]] = -math.inf
    if rules.any_limit:
        may_end = rules.may_end.repeat_interleave(width)
        scores[:, EOS].masked_fill_(~may_end, -math.inf)
        must_end = rules.must_end.repeat_interleave(width)
        if bool(must_end.any()):
            end = scores[:, EOS].clone()
            scores.masked_fill_(must_end[:, None], -math.inf)
            scores[:, EOS] = end


def _force(total: Tensor, so_far: Tensor, forced: Tensor, width: int) -> None:
    """The token of the prefix is given, not chosen: it is the one continuation and costs nothing."""
    rows = (forced >= 0).repeat_interleave(width).nonzero()[:, 0]
    total[rows] = -math.inf
    total[rows, forced.repeat_interleave(width)[rows]] = so_far.flatten()[rows].to(total.dtype)


def top_candidates(total: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row and where they stand; of equal values the one further left comes first.

    topk promises no order among equal values. So one more than needed is taken: if the last two are equal, equal values may
    have been left out, and that row (rare) is sorted whole.
    """
    count = min(count, total.shape[1])
    values, places = total.topk(min(count + 1, total.shape[1]), dim=1)
    if bool(values[:, 0].isnan().any()):
        raise DataError("the model gives NaN where a probability should be; its weights are damaged or training diverged.")
    places, order = places.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    if values.shape[1] > count:
        unclear = (values[:, count] == values[:, count - 1]) & (values[:, count] > -math.inf)
        if bool(unclear.any()):
            sorted_values, sorted_places = total[unclear].sort(dim=1, descending=True, stable=True)
            values[unclear] = sorted_values[:, : count + 1]
            places[unclear] = sorted_places[:, : count + 1]
    return values[:, :count], places[:, :count]
