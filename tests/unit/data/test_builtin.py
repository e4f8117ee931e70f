"""The built-in corpus: stable, with disjoint splits."""

import pytest

from entformer.data.builtin import builtin_corpus
from entformer.errors import ArgumentError


def test_the_corpus_does_not_change() -> None:
    pairs = builtin_corpus()
    assert {split: len(own) for split, own in pairs.items()} == {"train": 9000, "valid": 500, "test": 500}
    assert pairs["test"][0] == ("A policeman is writing Eva's report.", "Ein Polizist schreibt Evas Bericht.")
    assert pairs["train"][-1] == ("Who is photographing engineers in the park?", "Wer fotografiert im Park Ingenieurinnen?")
    assert len({source for own in pairs.values() for source, _ in own}) == 10_000  # no sentence occurs twice
    assert builtin_corpus(20)["train"] == pairs["train"][:20]


@pytest.mark.parametrize("train", [-1, 9001])
def test_impossible_sizes_are_errors(train: int) -> None:
    with pytest.raises(ArgumentError, match="9000 training pairs"):
        builtin_corpus(train)
