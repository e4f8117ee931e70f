"""Greedy search: beam search with one hypothesis, which ends when EOS is the most probable token."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from entformer.decoding.candidates import Decodable, DecodingConstraints, best_continuations
from entformer.decoding.length_penalty import LengthPenalty
from entformer.decoding.records import Hypothesis
from entformer.text.tokenizer import BOS, EOS

LOOP = 12  # repeated tokens that count as a loop
LONGEST_PERIOD = 4


def greedy_search(
    model: Decodable,
    source: Tensor,
    source_mask: Tensor,
    penalty: LengthPenalty,
    limits: Sequence[int],
    min_length: int,
    prefix: Sequence[Sequence[int]],
    *,
    cut_loops: bool = False,
) -> list[Hypothesis]:
    """Returns the greedy hypothesis of each sentence. Called by `beam_search`, which checks the arguments."""
    device = source.device
    batch = len(limits)
    found: list[Hypothesis | None] = [None] * batch
    tokens: list[list[int]] = [[] for _ in range(batch)]
    state = model.start(source, source_mask)
    live = list(range(batch))  # sentence of each row of the state
    so_far = torch.zeros((batch, 1), device=device)
    feed = torch.full((batch,), BOS, device=device)
    for length in range(max(limits) + 1):
        logits = model.step(feed, state)  # (rows, V)
        constraints = DecodingConstraints.at(
            length,
            limits=[limits[s] for s in live],
            prefixes=[prefix[s] for s in live],
            min_length=min_length,
            device=device,
        )
        values, indices = best_continuations(model, logits, so_far, constraints, torch.ones_like(constraints.must_end), 1)
        stay = []
        for row, (token, log_prob) in enumerate(zip(indices[:, 0].tolist(), values[:, 0].tolist(), strict=True)):
            sentence = live[row]
            generated = length - len(prefix[sentence])
            if log_prob == -math.inf:  # EOS has zero probability at the length limit
                before = float(so_far[row])
                found[sentence] = Hypothesis(tuple(tokens[sentence]), penalty.score(before, generated), before, finished=False)
            elif token == EOS:
                found[sentence] = Hypothesis(tuple(tokens[sentence]), penalty.score(log_prob, generated + 1), log_prob)
            else:
                tokens[sentence].append(token)
                if cut_loops and in_loop(tokens[sentence]):
                    score = penalty.score(log_prob, generated + 1)
                    found[sentence] = Hypothesis(tuple(tokens[sentence]), score, log_prob, finished=False)
                else:
                    stay.append(row)
        if not stay:
            break
        index = torch.tensor(stay, dtype=torch.int64, device=device)
        if len(stay) < len(live):
            state.reorder(index)
            live = [live[row] for row in stay]
        so_far, feed = values[index], indices[index, 0]
    return [hypothesis for hypothesis in found if hypothesis is not None]


def in_loop(tokens: Sequence[int]) -> bool:
    """Returns whether the last LOOP tokens repeat with a period of at most LONGEST_PERIOD."""
    return len(tokens) >= LOOP and any(
        tokens[-LOOP + period :] == tokens[-LOOP:-period] for period in range(1, LONGEST_PERIOD + 1)
    )
