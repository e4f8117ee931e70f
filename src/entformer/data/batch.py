"""Records of the data package: a sentence pair, and a padded batch of pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SentencePair:
    """A sentence, its translation, and their line number in the corpus, counted from 1."""

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class Batch:
    """A padded batch. The decoder reads `target[:, :-1]` and predicts `target[:, 1:]`."""

    source: Tensor  # (B, S) int64: tokens, EOS, padding
    target: Tensor  # (B, T) int64: BOS, tokens, EOS, padding
    source_lengths: Tensor  # (B,) int64, EOS counted
    target_lengths: Tensor  # (B,) int64 of the labels: EOS counted, BOS not
    examples: tuple[int, ...]  # indices in the store, for messages

    @property
    def source_mask(self) -> Tensor:
        """Mask (B, S), True = token."""
        return torch.arange(self.source.shape[1], device=self.source.device) < self.source_lengths.unsqueeze(1)

    @property
    def target_tokens(self) -> int:
        """Number of labels, without padding."""
        return int(self.target_lengths.sum())

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch on another device."""
        return Batch(
            source=self.source.to(device, non_blocking=True),
            target=self.target.to(device, non_blocking=True),
            source_lengths=self.source_lengths.to(device, non_blocking=True),
            target_lengths=self.target_lengths.to(device, non_blocking=True),
            examples=self.examples,
        )
