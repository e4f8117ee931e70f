"""Prepared data that was changed, cut short or exchanged: found when it is opened, and told in one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entformer.data.corpus import ParallelCorpus
from entformer.data.filters import PreprocessConfig
from entformer.data.prep import prepare
from entformer.data.prep_folder import CHECKSUMS
from entformer.data.prepared import Prepared
from entformer.errors import DataError
from entformer.files import staged_directory

Make = Callable[..., ParallelCorpus]
Pairs = Callable[[int, int], list[tuple[str, str]]]


@pytest.fixture
def folder(corpus: Make, pairs: Pairs, tmp_path: Path) -> Path:
    prepare(corpus(pairs(60, 1), pairs(20, 2), pairs(10, 3)), tmp_path / "out", PreprocessConfig(vocab_size=300))
    return tmp_path / "out"


def use_all(folder: Path) -> None:
    """Everything training and scoring read."""
    prepared = Prepared.open(folder)
    assert prepared.subwords.size
    for split in prepared.splits:
        store = prepared.store(split)
        for i in range(len(store)):
            for ids in store[i]:
                assert ids.max(initial=0) < prepared.subwords.size
        if split != "train":
            assert len(prepared.text(split)[0]) == len(store)


def refused(folder: Path, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        use_all(folder)
    assert "\n" not in str(caught.value)


def test_any_change_of_any_file_is_found(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in ("prep.json", CHECKSUMS):
            continue
        before = path.read_bytes()
        middle = len(before) // 2
        flipped = before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :]
        for changed, message in ((flipped, "checksum"), (before[:middle], "bytes, expected"), (None, "missing")):
            path.unlink() if changed is None else path.write_bytes(changed)
            refused(folder, rf"{path.name}: .*{message}.*run `entformer prep` again\.$")
        path.write_bytes(before)
    use_all(folder)
    (folder / CHECKSUMS).unlink()  # as an older version made it
    use_all(folder)


@pytest.mark.parametrize(
    "facts", [{"splits": 3}, {"corpus": None}, {"request": {}}, {"request": {"files": {"train": [1]}}}, {"report": []}]
)
def test_a_description_of_other_types_names_the_key(folder: Path, facts: dict[str, Any]) -> None:
    path = folder / "prep.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | facts), encoding="utf-8")
    refused(folder, rf"prep\.json: damaged \({next(iter(facts))}.*\); run `entformer prep` again\.")


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, '{"x": 3}', '{"x": {"bytes": "a", "sha256": 1}}'])
def test_broken_files_of_facts_are_one_sentence(folder: Path, content: str) -> None:
    for name in (CHECKSUMS, "prep.json"):
        before = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(content)
        refused(folder, rf"{name}: ")
        (folder / name).write_text(before, encoding="utf-8")


def test_damaged_data_can_be_made_again_in_place(folder: Path, corpus: Make, pairs: Pairs) -> None:
    (folder / "prep.json").write_text("{")
    prepare(corpus(pairs(60, 1), pairs(20, 2), pairs(10, 3)), folder, PreprocessConfig(vocab_size=300), overwrite=True)
    use_all(folder)


# ---- what kill -9 leaves ------------------------------------------------------------------------------------------------


def test_folders_of_killed_processes_are_removed_and_those_in_use_stay(tmp_path: Path) -> None:
    out = tmp_path / "out[1]"
    for left in (".out[1].77.partial", ".out[1].78.old", f".out[1].{os.getpid()}.partial"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "train.source.bin").touch()
    (tmp_path / ".out2.77.partial").mkdir()  # of another folder
    with staged_directory(out) as work:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".out2.77.partial", work.name])
        assert not list(work.iterdir())
        other = work.with_name(".out[1].99.partial")
        os.replace(work, other)  # in use by another process, as far as the next can tell
        with staged_directory(out):
            assert other.is_dir()
        os.replace(other, work)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out2.77.partial", "out[1]"]
