"""Small corpora on disk, and a short way to prepare them."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from entformer.data import datasets, downloads
from entformer.data.corpus import ParallelCorpus, ParallelText

from .web import Web, serve, small_dataset

Pairs = Sequence[tuple[str, str]]


def good_pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Different pairs of sentences that differ in length."""
    numbers = random.Random(seed).sample(range(10_000), count)
    return [
        (
            f"The dog {n % 89} follows the {'small ' * (n % 6)}friend {n} .",
            f"Der hund {n % 89} jagt den {'kleinen ' * (n % 6)}freund {n} .",
        )
        for n in numbers
    ]


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str, Pairs], ParallelText]:
    """Writes pairs as two files and names them."""

    def write(name: str, pairs: Pairs) -> ParallelText:
        paths = tmp_path / f"{name}.en", tmp_path / f"{name}.de"
        for path, side in zip(paths, zip(*pairs, strict=True) if pairs else ((), ()), strict=True):
            path.write_bytes("".join(line + "\n" for line in side).encode())
        return ParallelText(*paths)

    return write


@pytest.fixture
def corpus(text: Callable[[str, Pairs], ParallelText]) -> Callable[..., ParallelCorpus]:
    """A corpus of the pairs given for training, and small held-out texts."""

    def make(train: Pairs, valid: Pairs | None = None, test: Pairs | None = None) -> ParallelCorpus:
        held_out = [text(name, pairs) if pairs is not None else None for name, pairs in (("valid", valid), ("test", test))]
        return ParallelCorpus("en", "de", (text("train", train),), held_out[0], held_out[1])

    return make


@pytest.fixture
def pairs() -> Callable[[int, int], list[tuple[str, str]]]:
    return good_pairs


@pytest.fixture
def web() -> Iterator[Web]:
    yield from serve()


@pytest.fixture
def known(web: Web, monkeypatch: pytest.MonkeyPatch) -> datasets.DatasetInfo:
    """The only dataset."""
    made = small_dataset(web)
    monkeypatch.setattr(downloads, "get_dataset", lambda name: made)
    return made
