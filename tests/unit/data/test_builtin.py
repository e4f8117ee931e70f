"""The built-in corpus: the same every time, splits that share nothing, one translation per sentence, and what is in it."""

import re

import pytest

from entformer.data.builtin import SPLITS, WORDS, builtin_corpus, split_of
from entformer.data.builtin_english import english
from entformer.data.builtin_german import german
from entformer.data.builtin_sampler import Sampler
from entformer.errors import ArgumentError

Pairs = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return builtin_corpus()


@pytest.fixture(scope="module")
def both(pairs: Pairs) -> list[tuple[str, str]]:
    return [pair for split in SPLITS for pair in pairs[split]]


def test_the_sizes_are_those_asked_for(pairs: Pairs) -> None:
    assert {split: len(pairs[split]) for split in SPLITS} == {"train": 9000, "valid": 500, "test": 500}
    assert {split: len(found) for split, found in builtin_corpus(7, 20, 0, 3).items()} == {"train": 20, "valid": 0, "test": 3}


def test_it_is_the_same_for_the_same_seed_and_another_for_another(pairs: Pairs) -> None:
    assert builtin_corpus(1, 200, 20, 20)["train"] == pairs["train"][:200]
    assert builtin_corpus(2, 200, 20, 20)["train"] != pairs["train"][:200]


def test_it_is_the_same_on_every_machine_and_python(pairs: Pairs) -> None:
    """These lines were drawn when the grammar was written; whoever changes the grammar changes them knowingly."""
    assert pairs["test"][0] == (
        "A policeman is writing Eva's report.",
        "Ein Polizist schreibt Evas Bericht.",
    )
    assert pairs["train"][-1] == (
        "Who is photographing engineers in the park?",
        "Wer fotografiert im Park Ingenieurinnen?",
    )


def test_no_sentence_comes_twice_in_or_across_splits(both: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in both]
    assert len(set(sources)) == len(sources)


def test_a_sentence_has_its_split_whatever_the_seed(pairs: Pairs) -> None:
    other = builtin_corpus(2, 1000, 100, 100)
    for corpus in (pairs, other):
        for split in SPLITS:
            assert all(split_of(source) == split for source, _ in corpus[split])


def test_one_english_sentence_has_one_german_translation() -> None:
    sampler = Sampler(99)
    translations: dict[str, str] = {}
    for _ in range(20_000):
        meaning = sampler.sentence()
        assert translations.setdefault(english(meaning), german(meaning)) == german(meaning)


def test_lengths_are_within_the_bounds(both: list[tuple[str, str]]) -> None:
    assert all(WORDS[0] <= len(source.split()) <= WORDS[1] for source, _ in both)
    assert all(3 <= len(target.split()) <= WORDS[1] for _, target in both)


def test_text_is_natural_cased_text(both: list[tuple[str, str]]) -> None:
    for line in (line for pair in both for line in pair):
        assert re.fullmatch(r"[A-ZÄÖÜ][^.?\n]*[.?]", line), line
        assert "  " not in line
        assert " ," not in line
        assert ",," not in line
        assert " ." not in line
        assert "|" not in line
        assert "~" not in line


def test_both_sides_ask_or_neither_does_in_a_fifth_of_the_pairs(both: list[tuple[str, str]]) -> None:
    assert all(source.endswith("?") == target.endswith("?") for source, target in both)
    assert 0.17 < sum(source.endswith("?") for source, _ in both) / len(both) < 0.24


@pytest.mark.parametrize(
    ("pattern", "at_least"),
    [
        (r"Was |Wer |Wen |Wem |Wo |Wohin |Wann |Warum |Welche|Wie viel|Um wie viel Uhr", 500),  # wh-questions
        (r"\bnicht\b|\bkein", 200),
        (r", (dass|weil|obwohl|während) ", 600),
        (r", (der|die|das|den) .*, ", 150),  # relative clauses
        (r"\d", 300),
        (r"(Fahrer|fahrer|verkäufer|Verkäufer|fabrik|laden|dieb)", 500),  # people and shops of several parts
        (r"\w-\w", 200),
        (r" (an|auf|aus|ab|ein|zu|weg)[.?]", 300),  # separable verbs
        (r"(hat|haben|ist|sind) .*(ge\w+|iert|kauft|sucht|üßt|tellt)[.?]", 500),  # the perfect
        (r"(kann|können|will|wollen|muss|müssen|darf|dürfen|wird|werden) .*en[.?]", 500),
    ],
)
def test_what_the_analysis_looks_for_is_there(both: list[tuple[str, str]], pattern: str, at_least: int) -> None:
    assert sum(re.search(pattern, target) is not None for _, target in both) >= at_least


def test_compounds_are_many_and_long(both: list[tuple[str, str]]) -> None:
    words = {word.strip(".,?") for _, target in both for word in target.split()}
    assert sum(len(word) >= 13 for word in words) >= 150
    assert {"Feuerwehrwagenfahrer", "Handtaschenverkäufer", "T-Shirt-Verkäufer", "Schlafzimmerfenster"} <= words


def test_every_word_of_the_test_set_was_seen_in_training(pairs: Pairs) -> None:
    seen = {word.strip(".,?") for _, target in pairs["train"] for word in target.split()}
    words = [word.strip(".,?") for _, target in pairs["test"] for word in target.split()]
    assert sum(word in seen for word in words) / len(words) > 0.98


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="valid = -1 pairs cannot be made"):
        builtin_corpus(valid=-1)
