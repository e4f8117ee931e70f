"""The table of named corpora: complete, consistent in itself, and clear about a name it does not know."""

import re

import pytest

from entformer.data.datasets import CORPORA, SPLITS, Corpus, corpus
from entformer.errors import ArgumentError


def test_the_papers_four_and_multi30k_are_there() -> None:
    assert list(CORPORA) == ["multi30k", "iwslt17-de-en", "kftt-ja-en", "wmt16-ro-en", "wmt14-en-de"]


@pytest.mark.parametrize("known", CORPORA.values(), ids=lambda known: known.name)
def test_every_split_is_made_of_files_that_are_downloaded(known: Corpus) -> None:
    for layout in known.layouts:
        files = [entry.file for entry in layout.downloads]
        assert len(set(files)) == len(files)
        assert tuple(layout.splits) == SPLITS
        used = set()
        for pieces in layout.splits.values():
            assert pieces
            for piece in pieces:
                assert piece.source != piece.target
                used |= {piece.archive} if piece.archive else {piece.source, piece.target}
        assert used == set(files)


@pytest.mark.parametrize("known", CORPORA.values(), ids=lambda known: known.name)
def test_addresses_and_checksums_have_their_form(known: Corpus) -> None:
    for layout in known.layouts:
        for entry in layout.downloads:
            assert entry.url.startswith(("http://", "https://"))
            assert entry.url.endswith("/" + entry.file)
            assert entry.sha256 is None or re.fullmatch("[0-9a-f]{64}", entry.sha256)


@pytest.mark.parametrize("name", ["iwslt17-de-en", "kftt-ja-en", "wmt16-ro-en", "wmt14-en-de"])
def test_the_papers_corpora_use_its_bpe_and_direction(name: str) -> None:
    known = corpus(name)
    assert known.vocab_size == 32000
    assert name.endswith(f"{known.source_language}-{known.target_language}")


def test_source_comes_first_in_every_piece() -> None:
    for known in CORPORA.values():
        for layout in known.layouts:
            for piece in (piece for pieces in layout.splits.values() for piece in pieces):
                source = piece.source.removesuffix(".gz").removesuffix(".sgm").removesuffix(".xml")
                target = piece.target.removesuffix(".gz").removesuffix(".sgm").removesuffix(".xml")
                assert source.endswith("." + known.source_language)
                assert target.endswith("." + known.target_language)


def test_an_unknown_name_gets_the_list() -> None:
    with pytest.raises(ArgumentError, match=r"no corpus 'multi3k'; known are builtin .*multi30k, iwslt17-de-en"):
        corpus("multi3k")
