"""The two records that leave this room: a pair of sentences, and a batch of pairs as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SentencePair:
    """A sentence and its translation, and the line of the corpus they came from (counted from 1)."""

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class Batch:
    """Pairs of about equal length, padded with PAD. The decoder reads `target[:, :-1]` and is to say `target[:, 1:]`."""

    source: Tensor  # (B, S) int64: tokens, EOS, padding
    target: Tensor  # (B, T) int64: BOS, tokens, EOS, padding
    source_lengths: Tensor  # (B,) int64, EOS counted
    target_lengths: Tensor  # (B,) int64 of the labels: EOS counted, BOS not
    examples: tuple[int, ...]  # where in the store, to name the batch in messages

    @property
    def source_mask(self) -> Tensor:
        """(B, S) bool, True = a token."""
        return torch.arange(self.source.shape[1], device=self.source.device) < self.source_lengths.unsqueeze(1)

    @property
    def target_tokens(self) -> int:
        """Labels in this batch, padding not counted."""
        return int(self.target_lengths.sum())

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(
            source=self.source.to(device, non_blocking=True),
            target=self.target.to(device, non_blocking=True),
            source_lengths=self.source_lengths.to(device, non_blocking=True),
            target_lengths=self.target_lengths.to(device, non_blocking=True),
            examples=self.examples,
        )
