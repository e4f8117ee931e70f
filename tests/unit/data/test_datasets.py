"""The table of named datasets is complete and consistent."""

import re

import pytest

from entformer.data.datasets import CORPORA, SPLITS, DatasetInfo, get_dataset
from entformer.errors import ArgumentError


def test_names() -> None:
    assert list(CORPORA) == ["multi30k", "iwslt17-de-en", "kftt-ja-en", "wmt16-ro-en", "wmt14-en-de"]
    with pytest.raises(ArgumentError, match=r"no corpus 'multi3k'; choose builtin .*multi30k, iwslt17-de-en"):
        get_dataset("multi3k")


@pytest.mark.parametrize("info", CORPORA.values(), ids=lambda info: info.name)
def test_entries_are_consistent(info: DatasetInfo) -> None:
    if info.name != "multi30k":  # the datasets of the paper
        assert info.vocab_size == 32000
        assert info.name.endswith(f"{info.source_language}-{info.target_language}")
    for layout in info.layouts:
        assert tuple(layout.splits) == SPLITS
        parts = [part for parts in layout.splits.values() for part in parts]
        assert set.union(*(part.downloads for part in parts)) == {entry.file for entry in layout.downloads}
        for entry in layout.downloads:
            assert entry.sha256 is None or re.fullmatch("[0-9a-f]{64}", entry.sha256)
            assert entry.url.startswith("https://") or entry.sha256
        for part in parts:
            for name, language in ((part.source, info.source_language), (part.target, info.target_language)):
                assert re.sub(r"\.(gz|sgm|xml)$", "", name).endswith(f".{language}")
