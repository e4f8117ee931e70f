"""Beam search: exact where it can be, never early, never empty, and the same whatever else is in the batch."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entformer.decoding.beam import beam_search, in_loop
from entformer.decoding.candidates import top_candidates
from entformer.decoding.length_penalty import LengthPenalty, MaxLength
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import BOS, EOS, PAD, UNK

Table = Callable[[int, tuple[int, ...]], list[float]]  # (first source id, tokens so far) -> log-probability of each id


@dataclass
class ToyState:
    sentences: list[int]
    prefixes: list[tuple[int, ...]]

    def reorder(self, index: Tensor) -> None:
        self.sentences = [self.sentences[i] for i in index.tolist()]
        self.prefixes = [self.prefixes[i] for i in index.tolist()]


@dataclass
class ToyModel:
    """`rows` counts the rows of every step, to see sentences leave the batch."""

    table: Table
    rows: list[int] = field(default_factory=list)
    memo: dict[tuple[int, tuple[int, ...]], list[float]] = field(default_factory=dict)

    def start(self, source: Tensor, source_mask: Tensor | None) -> ToyState:
        return ToyState(source[:, 0].tolist(), [()] * len(source))

    def step(self, tokens: Tensor, state: ToyState) -> Tensor:
        given = tokens.view(len(tokens), -1).tolist()
        self.rows.append(len(given))
        state.prefixes = [(*prefix, *new) for prefix, new in zip(state.prefixes, given, strict=True)]
        assert all(prefix[0] == BOS and BOS not in prefix[1:] for prefix in state.prefixes)
        return torch.tensor(
            [self.look_up(s, p[1:]) for s, p in zip(state.sentences, state.prefixes, strict=True)], dtype=torch.float64
        )

    def look_up(self, sentence: int, tokens: tuple[int, ...]) -> list[float]:
        key = (sentence, tokens)
        if key not in self.memo:
            self.memo[key] = self.table(sentence, tokens)
        return self.memo[key]

    def log_probs(self, logits: Tensor) -> Tensor:
        return logits


def random_table(seed: int, vocabulary: int, *, zeros: float = 0.0, coarse: bool = False) -> Table:
    """Random distributions; a share `zeros` of the entries is exactly zero; coarse ones hold many equal numbers."""

    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        generator = torch.Generator().manual_seed(hash((seed, sentence, tokens)) % 2**40)
        weights = torch.rand(vocabulary, generator=generator, dtype=torch.float64) ** 3
        if coarse:
            weights = torch.ceil(weights * 3)
        weights[torch.rand(vocabulary, generator=generator) < zeros] = 0.0
        total = float(weights.sum())
        return [math.log(w / total) if w > 0 else -math.inf for w in weights.tolist()] if total else [-math.inf] * vocabulary

    return table


def all_sequences(
    model: ToyModel, sentence: int, vocabulary: int, longest: int, given: tuple[int, ...] = (), shortest: int = 0
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every finished translation with positive probability, and the log-probability of what follows `given`."""

    def extend(tokens: tuple[int, ...], log_prob: float) -> Iterator[tuple[tuple[int, ...], float]]:
        row = model.look_up(sentence, tokens)
        if row[EOS] > -math.inf and len(tokens) >= shortest:
            yield tokens, log_prob + row[EOS]
        if len(tokens) < longest:
            for token in range(EOS + 1, vocabulary):
                if row[token] > -math.inf:
                    yield from extend((*tokens, token), log_prob + row[token])

    yield from extend(given, 0.0)


VOCABULARY = 7  # four controls and three words
WIDE = 120  # more than the 3 * 3 * 3 * 4 sequences of three words and whatever comes next


def sources(*sentences: int, length: int = 3) -> Tensor:
    return torch.tensor([[s, *([5] * (length - 2)), EOS] for s in sentences])


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    zeros=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    coarse=st.booleans(),
    penalty=st.sampled_from(
        [("average", 1.0), ("average", 0.5), ("gnmt", 0.6), ("gnmt", 2.0), ("average", 0.0), ("none", None)]
    ),
    longest=st.integers(1, 3),
    shortest=st.integers(0, 1),
    n_best=st.sampled_from([1, 3, 10]),
    prefixes=st.lists(st.lists(st.integers(4, 6), max_size=2), min_size=2, max_size=2),
)
def test_equals_exhaustive_search(
    seed: int,
    zeros: float,
    coarse: bool,
    penalty: tuple[str, float | None],
    longest: int,
    shortest: int,
    n_best: int,
    prefixes: list[list[int]],
) -> None:
    model = ToyModel(random_table(seed, VOCABULARY, zeros=zeros, coarse=coarse))
    kind, alpha = penalty
    found = beam_search(
        model,
        sources(10, 11),
        beam=WIDE,
        length_penalty=kind,
        length_penalty_alpha=alpha,
        max_length=longest,
        min_length=shortest,
        n_best=n_best,
        prefix=prefixes,
    )
    scale = LengthPenalty.of(kind, alpha)
    for sentence, given_tokens, hypotheses in zip((10, 11), prefixes, found, strict=True):
        start = tuple(given_tokens)
        everything = {
            tokens: (scale.score(log_prob, len(tokens) - len(start) + 1), log_prob)
            for tokens, log_prob in all_sequences(model, sentence, VOCABULARY, max(longest, len(start)), start, shortest)
        }
        assert len(hypotheses) >= 1
        if not everything:
            assert [h.finished for h in hypotheses] == [False]
            continue
        best = sorted((score for score, _ in everything.values()), reverse=True)[:n_best]
        assert [h.score for h in hypotheses] == pytest.approx(best, rel=1e-9)
        assert len({h.tokens for h in hypotheses}) == len(hypotheses)
        for h in hypotheses:
            assert h.finished
            assert (h.score, h.log_prob) == pytest.approx(everything[h.tokens], rel=1e-9)


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("zeros", [0.0, 0.7])
def test_a_sentence_gets_the_same_alone_and_in_a_batch(beam: int, zeros: float) -> None:
    model = ToyModel(random_table(3, 9, zeros=zeros))
    numbers = list(range(20, 32))
    prefixes = [(), (7,), (4, 5, 6), (8, 8)] * 3
    together = beam_search(model, sources(*numbers), beam=beam, max_length=8, n_best=min(beam, 2), prefix=prefixes)
    for number, prefix, found in zip(numbers, prefixes, together, strict=True):
        assert beam_search(model, sources(number), beam=beam, max_length=8, n_best=min(beam, 2), prefix=[prefix]) == [found]
        assert all(hypothesis.tokens[: len(prefix)] == prefix for hypothesis in found)


def greedy_by_hand(model: ToyModel, sentence: int, longest: int) -> tuple[int, ...]:
    tokens: tuple[int, ...] = ()
    while len(tokens) < longest:
        row = model.look_up(sentence, tokens)
        best = max(range(EOS, len(row)), key=lambda token: row[token])
        if best == EOS:
            break
        tokens = (*tokens, best)
    return tokens


def test_a_beam_of_one_is_greedy_search() -> None:
    model = ToyModel(random_table(5, 9))
    found = beam_search(model, sources(*range(40, 60)), beam=1, max_length=6)
    assert [h.tokens for [h] in found] == [greedy_by_hand(model, s, 6) for s in range(40, 60)]


@pytest.mark.parametrize("beam", [1, 4])
def test_controls_are_never_generated_even_if_the_model_wants_nothing_else(beam: int) -> None:
    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [-1.1, -1.1, -1.1, -40.0 if len(tokens) < 3 else -30.0, -41.0, -42.0]

    [[best, *_]] = beam_search(ToyModel(table), sources(9), beam=beam, max_length=5, n_best=beam)
    assert not {PAD, UNK, BOS, EOS} & set(best.tokens)


@pytest.mark.parametrize("beam", [1, 3])
def test_stops_late_enough_for_a_longer_translation_with_a_better_mean(beam: int) -> None:
    """EOS looks good at once; the better mean comes two steps later. Stopping at the first finished one would miss it."""

    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        sure = {(4,): 5, (4, 5): 6, (4, 5, 6): EOS}.get(tokens)
        start, lost = {EOS: 0.5, 4: 0.49}, {EOS: 0.01, 5: 0.01}
        probabilities = start if tokens == () else lost if sure is None else {sure: 0.99}
        return [math.log(probabilities.get(i, 1e-5)) for i in range(7)]

    [[best]] = beam_search(ToyModel(table), sources(9), beam=beam, max_length=6)
    assert best.tokens == (() if beam == 1 else (4, 5, 6))
    [[short]] = beam_search(ToyModel(table), sources(9), beam=beam, length_penalty="none", max_length=6)
    assert short.tokens == ()


class SparseOutput(ToyModel):
    """The output layer gives all probability to the largest logit, as entmax does when it is far ahead."""

    def log_probs(self, logits: Tensor) -> Tensor:
        return torch.where(logits == logits.amax(-1, keepdim=True), 0.0, -math.inf).to(logits.dtype)


@pytest.mark.parametrize("beam", [1, 4])
def test_never_empty_handed_when_all_probability_is_on_what_is_not_allowed(beam: int) -> None:
    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [0.0, 9.0, 0.0, 8.0, 1.0, 2.0] if len(tokens) < 2 else [0.0, 0.0, 0.0, 9.0, 1.0, 2.0]

    [[hypothesis]] = beam_search(SparseOutput(table), sources(9), beam=beam, max_length=4, min_length=2)
    assert hypothesis.tokens == (5, 5)
    assert hypothesis.finished


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_that_cannot_end_is_cut_at_the_limit_and_says_so(beam: int) -> None:
    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [-math.inf, -math.inf, -math.inf, -math.inf, math.log(0.7), math.log(0.3)]

    [[hypothesis]] = beam_search(ToyModel(table), sources(9), beam=beam, max_length=4)
    assert (hypothesis.tokens, hypothesis.finished) == ((4, 4, 4, 4), False)
    assert hypothesis.log_prob == pytest.approx(4 * math.log(0.7))


def test_finished_sentences_leave_the_batch() -> None:
    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        ending = 0.98 if len(tokens) >= sentence else 0.0001
        return [math.log(p) for p in (1e-9, 1e-9, 1e-9, ending, (0.999 - ending) * 0.9 + 1e-9, (0.999 - ending) * 0.1 + 1e-9)]

    model = ToyModel(table)
    found = beam_search(model, sources(5, 1, 3), beam=2, max_length=9, length_penalty="none")
    assert [len(h.tokens) for [h] in found] == [5, 1, 3]
    assert model.rows[:2] == [3, 6]  # one row per sentence until the first choice
    assert model.rows == sorted(model.rows[:1]) + sorted(model.rows[1:], reverse=True)
    assert model.rows[-1] == 2


def test_maximal_length_follows_the_source() -> None:
    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [-9.0, -9.0, -9.0, -9.0, -0.01, -6.0]

    source = torch.tensor([[9, 5, 5, 5, EOS], [9, 5, EOS, PAD, PAD]])
    found = beam_search(ToyModel(table), source, beam=2, max_length=MaxLength(1.5, 1))
    assert [len(h.tokens) for [h] in found] == [7, 4]


@given(st.lists(st.sampled_from([0.0, -1.0, -2.0, -math.inf]), min_size=3, max_size=40), st.integers(1, 6))
def test_top_candidates_prefers_the_left_among_equals(values: list[float], count: int) -> None:
    count = min(count, len(values))
    found, places = top_candidates(torch.tensor([values]), count)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert found[0].tolist() == [values[i] for i in expected]
    alive = sum(value > -math.inf for value in found[0].tolist())
    assert places[0].tolist()[:alive] == expected[:alive]


def test_a_damaged_model_is_named() -> None:
    with pytest.raises(DataError, match="NaN"):
        beam_search(ToyModel(lambda sentence, tokens: [math.nan] * 6), sources(9), beam=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam=0 must be at least 1"),
        ({"beam": 2, "n_best": 3}, "increase the beam"),
        ({"length_penalty": "none", "length_penalty_alpha": 0.6}, "has no effect"),
        ({"length_penalty": "wu"}, "average, gnmt, none"),
        ({"length_penalty_alpha": -1.0}, "at least 0"),
        ({"max_length": 3, "min_length": 4}, "min_length=4"),
        ({"prefix": [[4], [4]]}, "one entry per sentence \\(1\\), got 2"),
        ({"prefix": [[EOS]]}, "must not contain"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        beam_search(ToyModel(random_table(0, 7)), sources(9), **options)


def test_an_empty_batch_gives_nothing() -> None:
    assert beam_search(ToyModel(random_table(0, 7)), torch.zeros((0, 4), dtype=torch.int64)) == []


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [([7] * 12, True), ([7] * 11, False), ([9, *[5, 6] * 6], True), ([4, 5, 6, 7] * 3, True), ([4, 5, 6, 7, 8] * 3, False)],
)
def test_a_translation_that_only_repeats_itself_is_in_a_loop(tokens: list[int], loop: bool) -> None:
    assert in_loop(tokens) is loop


def test_greedy_search_cuts_loops_if_told_to() -> None:
    def table(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        wanted = 5 if sentence == 4 or len(tokens) < 5 else EOS
        return [math.log(0.9) if token == wanted else math.log(0.01) for token in range(8)]

    source = torch.tensor([[4, EOS], [5, EOS]])
    whole = beam_search(ToyModel(table), source, beam=1, max_length=40)
    assert [len(h.tokens) for [h] in whole] == [40, 5]
    cut = beam_search(ToyModel(table), source, beam=1, max_length=40, cut_loops=True)
    assert [(len(h.tokens), h.finished) for [h] in cut] == [(12, False), (5, True)]
    assert cut[0][0].log_prob == pytest.approx(12 * math.log(0.9))
