"""The token store gives back what was written, and sees damage when it is opened."""

from pathlib import Path

import numpy as np
import pytest

from entformer.data.store import StoreWriter, TokenStore
from entformer.errors import DataError

PAIRS = [([5, 6, 7], [8]), ([], [9, 10]), ([11], [])]


def write(folder: Path, vocab_size: int = 1000) -> str:
    with StoreWriter(folder, "train", vocab_size=vocab_size) as writer:
        writer.add(PAIRS[:2], [1, 4])
        writer.add([], [])
        writer.add(PAIRS[2:], [9])
    return writer.fingerprint


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_what_is_written_is_read(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    fingerprint = write(tmp_path, vocab_size)
    assert fingerprint == write(tmp_path, 1000 if vocab_size > 65536 else 70_000)  # of the ids alone
    write(tmp_path, vocab_size)
    store = TokenStore.open(tmp_path, "train")
    assert [tuple(side.tolist() for side in store[i]) for i in range(len(store))] == PAIRS
    assert [side.tolist() for side in store[-1]] == [[11], []]
    assert store.source.ids.dtype == dtype
    assert store.source_lengths.tolist() == [3, 0, 1]
    assert store.target_lengths.dtype == np.int32
    assert store.lines.tolist() == [1, 4, 9]
    assert store.fingerprint == fingerprint
    with pytest.raises(IndexError, match="example 3 is not in"):
        store[3]


def test_a_store_in_memory_is_the_same(tmp_path: Path) -> None:
    store = TokenStore.from_examples(PAIRS)
    assert [tuple(side.tolist() for side in store[i]) for i in range(len(store))] == PAIRS
    assert store.fingerprint != TokenStore.from_examples(PAIRS[:2]).fingerprint


def test_damage_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "train.source.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train\.source\.bin: has 7 bytes, expected 8 \(truncated copy"):
        TokenStore.open(tmp_path, "train")
    path.unlink()
    with pytest.raises(DataError, match=r"train\.source\.bin: missing \(No such file or directory\)"):
        TokenStore.open(tmp_path, "train")
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(DataError, match=r"train\.json: damaged"):
        TokenStore.open(tmp_path, "train")
    with pytest.raises(DataError, match=r"valid\.json: there is no such split"):
        TokenStore.open(tmp_path, "valid")
