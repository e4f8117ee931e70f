"""The built-in corpus: stable, disjoint splits, one translation per sentence, and the constructions the analysis looks for."""

import re

import pytest

from entformer.data.builtin import SPLITS, builtin_corpus
from entformer.errors import ArgumentError

Pairs = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return builtin_corpus()


@pytest.fixture(scope="module")
def both(pairs: Pairs) -> list[tuple[str, str]]:
    return [pair for split in SPLITS for pair in pairs[split]]


def test_sizes(pairs: Pairs) -> None:
    assert {split: len(pairs[split]) for split in SPLITS} == {"train": 9000, "valid": 500, "test": 500}
    assert builtin_corpus(20)["train"] == pairs["train"][:20]


@pytest.mark.parametrize("train", [-1, 9001])
def test_impossible_sizes_are_refused(train: int) -> None:
    with pytest.raises(ArgumentError, match="9000 training pairs"):
        builtin_corpus(train)


def test_results_reported_on_it_stay_comparable(pairs: Pairs) -> None:
    assert pairs["test"][0] == ("A policeman is writing Eva's report.", "Ein Polizist schreibt Evas Bericht.")
    assert pairs["train"][-1] == ("Who is photographing engineers in the park?", "Wer fotografiert im Park Ingenieurinnen?")


def test_no_sentence_occurs_twice_in_or_across_splits(both: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in both]
    assert len(set(sources)) == len(sources)


def test_text_is_cased_with_final_punctuation(both: list[tuple[str, str]]) -> None:
    for line in (line for pair in both for line in pair):
        assert re.fullmatch(r"[A-ZÄÖÜ][^.?\n]*[.?]", line), line


def test_a_fifth_of_the_pairs_are_questions_on_both_sides(both: list[tuple[str, str]]) -> None:
    assert all(source.endswith("?") == target.endswith("?") for source, target in both)
    assert 0.17 < sum(source.endswith("?") for source, _ in both) / len(both) < 0.24
