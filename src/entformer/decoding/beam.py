"""Batched beam search.

Every live hypothesis is one row of the model's state; a sentence has `beam` adjacent rows. One step:

    1. compute the log-probabilities of the next token for all rows;
    2. select the 2 * beam best of the beam * V continuations of each sentence. At most `beam` of them are EOS (one per row), so
       at least `beam` others stay live;
    3. add those that end, if among the `beam` best, to the finished ones, of which the n_best with the highest score are kept;
    4. a sentence is done when no live hypothesis can beat the worst kept one at any length it may still reach
       (`LengthPenalty.bound`), when no hypothesis is live, or at its length limit. Its rows are removed from the batch.

The search never stops early: with a beam as wide as the number of sequences it is exhaustive search. A beam of 1 is greedy
search: only the best continuation is selected in step 2.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from entformer.decoding.candidates import Decodable, DecodingConstraints, best_continuations
from entformer.decoding.length_penalty import LengthPenalty, MaxLength
from entformer.decoding.records import Hypothesis
from entformer.errors import ArgumentError
from entformer.text.tokenizer import BOS, EOS, PAD

LOOP = 12  # repeated tokens that count as a loop
LONGEST_PERIOD = 4


@dataclass
class _Sentence:
    """State of the search for one sentence."""

    index: int  # in the batch
    limit: int  # maximum number of tokens
    prefix: Sequence[int]
    finished: list[tuple[float, int, Hypothesis]] = field(default_factory=list)  # (-score, when found, ...): best first

    def keep(self, hypothesis: Hypothesis, found: int, n_best: int) -> None:
        """Inserts a finished hypothesis; among equal scores the one found first ranks higher."""
        insort(self.finished, (-hypothesis.score, found, hypothesis), key=lambda entry: entry[:2])
        del self.finished[n_best:]


@torch.no_grad()
def beam_search(
    model: Decodable,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    beam: int = 5,
    length_penalty: str = "average",
    length_penalty_alpha: float | None = None,
    max_length: MaxLength | int | None = None,
    min_length: int = 0,
    n_best: int = 1,
    prefix: Sequence[Sequence[int]] | None = None,
    cut_loops: bool = False,
    must_end: bool = True,
) -> list[list[Hypothesis]]:
    """Returns at least one and at most `n_best` hypotheses for each sentence, best score first.

    Args:
        model: A model with `start`, `step` and `log_probs` (`candidates.Decodable`).
        source: Ids (B, S), each sentence ending in EOS, padded with PAD.
        source_mask: Mask (B, S), True = token. Default: everything but PAD.
        beam: Number of live hypotheses; 1 is greedy search.
        length_penalty: "average", "gnmt" or "none", see `length_penalty.py`.
        length_penalty_alpha: Exponent of the length penalty. Default: 1.
        max_length: Maximum number of tokens without EOS: a `MaxLength`, or one number for all. Default: 2 * source + 10.
        min_length: Minimum number of tokens without EOS.
        n_best: Maximum number of hypotheses to return.
        prefix: Ids that the translation of each sentence must start with. `log_prob` and the length penalty apply to what
            follows.
        cut_loops: With a beam of 1, cut a translation that only repeats itself, as those of untrained models do.
        must_end: False: what is live at the maximum length is returned as it is, instead of ending there.

    Raises:
        ArgumentError: An argument is invalid.
    """
    penalty = LengthPenalty.of(length_penalty, length_penalty_alpha)
    sentences, source_mask = _check(source, source_mask, beam, n_best, min_length, max_length, prefix)
    if not sentences:
        return []
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    count = 2 * beam if beam > 1 else 1  # greedy search ends when EOS is the best continuation
    device = source.device
    state = model.start(source, source_mask)
    # At first a sentence has one hypothesis; the common length of all prefixes is read in one step.
    start = min(len(s.prefix) for s in sentences)
    tokens = torch.tensor([[*s.prefix[:start]] for s in sentences], dtype=torch.int64, device=device).view(
        len(sentences), 1, start
    )
    feed = torch.cat([torch.full((len(sentences), 1), BOS, device=device), tokens[:, 0]], 1)  # (B, 1 + start)
    so_far = torch.zeros((len(sentences), 1), device=device)  # (B, width), log-probability of the live hypotheses
    length = start
    while sentences:
        width = so_far.shape[1]
        logits = model.step(feed, state)  # (B * width, V)
        vocabulary = logits.shape[-1]
        constraints = DecodingConstraints.at(
            length,
            limits=[s.limit if must_end else math.inf for s in sentences],
            prefixes=[s.prefix for s in sentences],
            min_length=min_length,
            device=device,
        )
        renormalize = torch.tensor([not s.finished for s in sentences], device=device)
        values, indices = best_continuations(model, logits, so_far, constraints, renormalize, count)
        rows = indices // vocabulary  # (B, count), the continued hypothesis
        chosen = indices - rows * vocabulary  # the token
        # A log-softmax may round to just above zero; the bound requires sums that never increase.
        values = torch.minimum(values, so_far.gather(1, rows))

        ends = chosen == EOS
        for b, at in (ends[:, :beam] & (values[:, :beam] > -math.inf)).nonzero().tolist():
            sentence, log_prob = sentences[b], float(values[b, at])
            if not must_end and length >= sentence.limit:
                continue  # it is returned below, without EOS
            score = penalty.score(log_prob, length + 1 - len(sentence.prefix))
            text = tuple(tokens[b, int(rows[b, at])].tolist())
            sentence.keep(Hypothesis(text, score, log_prob), length * beam + at, n_best)
        best_live = values.masked_fill(ends, -math.inf).amax(1).tolist()  # -inf: none
        staying = []
        for b, sentence in enumerate(sentences):
            given = len(sentence.prefix)
            if _done(sentence, best_live[b], length, penalty, n_best):
                if not must_end and length >= sentence.limit:
                    for row in (so_far[b] > -math.inf).nonzero()[:, 0].tolist():
                        sentence.keep(_cut(tokens[b, row : row + 1], so_far[b, row : row + 1], penalty, given), row, n_best)
                elif not sentence.finished:
                    sentence.keep(_cut(tokens[b], so_far[b], penalty, given), 0, n_best)
            elif cut_loops and beam == 1 and in_loop([*tokens[b, 0].tolist(), int(chosen[b, 0])]):
                sentence.keep(_cut(torch.cat([tokens[b], chosen[b, :, None]], 1), values[b], penalty, given), 0, n_best)
            else:
                staying.append(b)
                continue
            results[sentence.index] = [hypothesis for _, _, hypothesis in sentence.finished]
        if not staying:
            break

        # The `beam` best live ones: EOS is moved to the end, the order of the others is kept.
        stay = torch.tensor(staying, dtype=torch.int64, device=device)
        order = ends[stay].to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
        sentences = [sentences[b] for b in staying]
        so_far = values[stay].gather(1, order).masked_fill(ends[stay].gather(1, order), -math.inf)
        rows, chosen = rows[stay].gather(1, order), chosen[stay].gather(1, order)  # (B', beam)
        chosen = chosen.masked_fill(so_far == -math.inf, PAD)  # an unused row stays at -inf
        parents = (stay[:, None] * width + rows).flatten()  # rows of the model's state
        if parents.shape[0] != logits.shape[0] or not torch.equal(parents, torch.arange(len(parents), device=device)):
            state.reorder(parents)
        tokens = torch.cat([tokens.flatten(0, 1)[parents].view(*rows.shape, length), chosen[..., None]], 2)
        feed = chosen.flatten()
        length += 1
    return results


def _check(
    source: Tensor,
    source_mask: Tensor | None,
    beam: int,
    n_best: int,
    min_length: int,
    max_length: MaxLength | int | None,
    prefix: Sequence[Sequence[int]] | None,
) -> tuple[list[_Sentence], Tensor]:
    """Checks the arguments; returns one record per sentence, and the mask."""
    if source.dim() != 2:
        raise ArgumentError(f"source must have shape (B, S), not {tuple(source.shape)}.")
    mask = source != PAD if source_mask is None else source_mask
    if mask.shape != source.shape or mask.dtype != torch.bool:
        raise ArgumentError(f"source_mask must be boolean with the shape of source, {tuple(source.shape)}, True = a token.")
    if beam < 1:
        raise ArgumentError(f"beam={beam} must be at least 1.")
    if not 1 <= n_best <= beam:
        raise ArgumentError(f"n_best={n_best} must be between 1 and the beam, {beam}; increase the beam for more.")
    longest = MaxLength() if max_length is None else MaxLength(0.0, max_length) if isinstance(max_length, int) else max_length
    given: Sequence[Sequence[int]] = [()] * len(source) if prefix is None else prefix
    if len(given) != len(source):
        raise ArgumentError(f"prefix must have one entry per sentence ({len(source)}), got {len(given)}.")
    if any(token in (PAD, BOS, EOS) or token < 0 for tokens in given for token in tokens):
        raise ArgumentError("prefix must not contain PAD, BOS, EOS or negative ids.")
    lengths = (mask.sum(1) - 1).clamp(min=0).tolist()  # EOS is not counted
    sentences = [_Sentence(b, max(longest(n), len(given[b])), given[b]) for b, n in enumerate(lengths)]
    if any(min_length > sentence.limit for sentence in sentences) or min_length < 0:
        least = min(sentence.limit for sentence in sentences)
        raise ArgumentError(
            f"min_length={min_length} must be between 0 and the maximal length, {least} for the shortest source."
        )
    return sentences, mask


def _done(sentence: _Sentence, best_live: float, length: int, penalty: LengthPenalty, n_best: int) -> bool:
    if length >= sentence.limit or best_live == -math.inf:
        return True
    if len(sentence.finished) < n_best:
        return False
    worst_kept = sentence.finished[-1][2].score
    return penalty.bound(best_live, sentence.limit + 1 - len(sentence.prefix)) <= worst_kept


def _cut(tokens: Tensor, so_far: Tensor, penalty: LengthPenalty, given: int) -> Hypothesis:
    """Returns the best unfinished hypothesis. tokens (width, length), so_far (width,)."""
    best = int(so_far.argmax())
    log_prob = float(so_far[best])
    text = tuple(tokens[best].tolist())
    return Hypothesis(text, penalty.score(log_prob, len(text) - given), log_prob, finished=False)


def in_loop(tokens: Sequence[int]) -> bool:
    """Returns whether the last LOOP tokens repeat with a period of at most LONGEST_PERIOD."""
    return len(tokens) >= LOOP and any(
        tokens[-LOOP + period :] == tokens[-LOOP:-period] for period in range(1, LONGEST_PERIOD + 1)
    )
