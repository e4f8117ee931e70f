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
    def num_labels(self) -> int:
        """Number of labels, without padding."""
        return int(self.target_lengths.sum())

    def lengths(self, kind: str) -> tuple[Tensor, Tensor]:
        """Returns the numbers of queries and keys (B,) of each pair in "encoder", "decoder" or "cross" attention."""
        return (
            self.source_lengths if kind == "encoder" else self.target_lengths,
            self.target_lengths if kind == "decoder" else self.source_lengths,
        )

    def describe(self) -> str:
        """Returns the padded sizes, for messages."""
        return f"{self.source.shape[1]} source and {self.target.shape[1]} target tokens"

    def split(self) -> tuple["Batch", "Batch"]:
        """Returns the batch as two, each without padding it no longer needs."""
        middle = len(self.examples) // 2
        return self._part(slice(None, middle)), self._part(slice(middle, None))

    def _part(self, part: slice) -> "Batch":
        source_lengths, target_lengths = self.source_lengths[part], self.target_lengths[part]
        return Batch(
            source=self.source[part, : int(source_lengths.max())],
            target=self.target[part, : int(target_lengths.max()) + 1],  # BOS besides the labels
            source_lengths=source_lengths,
            target_lengths=target_lengths,
            examples=self.examples[part],
        )

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch on another device."""
        return Batch(
            source=self.source.to(device, non_blocking=True),
            target=self.target.to(device, non_blocking=True),
            source_lengths=self.source_lengths.to(device, non_blocking=True),
            target_lengths=self.target_lengths.to(device, non_blocking=True),
            examples=self.examples,
        )
