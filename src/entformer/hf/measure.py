"""Density of the attention of converted models: nonzero weights over the pairs of query and key that masks allow."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.hf.function import Call, listening
from entformer.hf.heads import SparseHeads, active_heads, sparse_heads
from entformer.hf.names import HEADS
from entformer.hf.texts import Text, model_inputs
from entformer.nn.density_price import chord_end


class DensityMeter:
    """Counts nonzero weights of every head while a model runs; with `slopes`, also at the other end of a chord of alpha.

    Padding counts like any other query.
    """

    def __init__(self, *, slopes: bool = False) -> None:
        self._slopes = slopes
        self._counts: dict[int, tuple[SparseHeads, Tensor, Tensor]] = {}  # nonzero (2, H), pairs (H,)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts in this context."""
        with listening(self.listen):
            yield

    @torch.no_grad()
    def listen(self, module: nn.Module, call: Call, output: Tensor, keywords: dict[str, Any]) -> None:
        """Counts one call of an attention module."""
        owned = module._modules.get(HEADS)
        heads = None if owned is None else active_heads(owned)
        if heads is None:
            return
        batch, count, queries, _ = call.query.shape
        pairs = call.visible.expand(batch, count, queries).sum((0, 2)).double()
        other = self.chord(heads)
        sizes = [call.support_size()] + ([call.support_size(1.0 + other)] if self._slopes else [])
        nonzero = torch.stack([size.sum((0, 2)).double() for size in sizes])
        if id(heads) in self._counts:
            _, before, pairs_before = self._counts[id(heads)]
            nonzero, pairs = nonzero + before, pairs + pairs_before
        self._counts[id(heads)] = heads, nonzero, pairs

    def sum_over_processes(self, owners: Iterable[SparseHeads]) -> None:
        """Adds the counts of all processes of distributed training, so that each of them has the same density and slopes.

        Args:
            owners: The `SparseHeads` of the model, in the same order in each process.
        """
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return
        every = list(owners)
        counts = [self._counted(heads) for heads in every]
        total = torch.cat(counts, 1).to(every[0].log_scale.device)
        dist.all_reduce(total)
        for heads, found in zip(every, total.split([heads.num_heads for heads in every], 1), strict=True):
            self._counts[id(heads)] = heads, found[:-1], found[-1]

    def _counted(self, heads: SparseHeads) -> Tensor:
        """Returns counts of nonzero weights, and of allowed pairs in the last row, (2 or 3, H)."""
        if id(heads) not in self._counts:
            return torch.zeros(3 if self._slopes else 2, heads.num_heads, dtype=torch.float64, device=heads.log_scale.device)
        _, nonzero, pairs = self._counts[id(heads)]
        return torch.cat((nonzero, pairs[None]))

    @staticmethod
    def chord(heads: SparseHeads) -> Tensor:
        """Returns alpha - 1 at the other end of the chord, (H,)."""
        return chord_end(heads.alpha_minus_1().detach(), heads.alpha_minus_1.high)

    def density(self) -> float:
        """Returns the density of all heads together.

        Raises:
            ArgumentError: Nothing was counted.
        """
        if not self._counts:
            raise ArgumentError("no call of a converted attention module was counted.")
        nonzero = sum(float(counted[0].sum()) for _, counted, _ in self._counts.values())
        return nonzero / sum(float(pairs.sum()) for _, _, pairs in self._counts.values())

    def of(self, heads: SparseHeads) -> Tensor | None:
        """Returns the density of each head of a module, (H,); None if it was not called."""
        found = self._counts.get(id(heads))
        return None if found is None else found[1][0] / found[2]

    def slopes(self) -> Iterator[tuple[SparseHeads, Tensor]]:
        """Yields the slope of the density of each head in its alpha, (H,), per module."""
        for heads, nonzero, pairs in self._counts.values():
            change = self.chord(heads).double() - heads.alpha_minus_1().detach().double()
            yield heads, (nonzero[1] - nonzero[0]) / pairs.clamp_min(1.0) / change


@torch.no_grad()
def densities(
    model: nn.Module, texts: Iterable[Text], *, tokenizer: Any = None, length: int = 512, max_tokens: int | None = None
) -> dict[str, Tensor]:
    """Measures the density of every head on texts: tensors (heads,) by the qualified names of attention modules.

    Args:
        model: A model converted by `sparsify`.
        texts: As for `calibrate`.
        tokenizer, length, max_tokens: As for `calibrate`.
    """
    meter = _measure(model, texts, tokenizer, length, max_tokens)
    found = {name: meter.of(heads) for name, heads in sparse_heads(model)}
    return {name: values for name, values in found.items() if values is not None}


def density(
    model: nn.Module, texts: Iterable[Text], *, tokenizer: Any = None, length: int = 512, max_tokens: int | None = None
) -> float:
    """Measures the density of all heads together on texts; see `densities`."""
    return _measure(model, texts, tokenizer, length, max_tokens).density()


@torch.no_grad()
def _measure(model: nn.Module, texts: Iterable[Text], tokenizer: Any, length: int, max_tokens: int | None) -> DensityMeter:
    meter = DensityMeter()
    training = model.training
    model.eval()
    try:
        with meter.counting():
            for entry in model_inputs(model, texts, tokenizer=tokenizer, length=length, max_tokens=max_tokens):
                model(**entry)
    finally:
        model.train(training)
    return meter
