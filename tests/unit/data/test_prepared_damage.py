"""Prepared data that was changed, cut short or exchanged: found when it is opened, and told in one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entformer.data.corpus import ParallelCorpus
from entformer.data.prep import prepare
from entformer.data.prep_folder import CHECKSUMS
from entformer.data.prepared import Prepared
from entformer.errors import DataError
from entformer.files import staged_directory
from entformer.text.tokenizer import SubwordTokenizer

Make = Callable[..., ParallelCorpus]
Pairs = Callable[[int, int], list[tuple[str, str]]]


@pytest.fixture
def folder(corpus: Make, pairs: Pairs, tmp_path: Path) -> Path:
    prepare(corpus(pairs(60, 1), pairs(20, 2), pairs(10, 3)), tmp_path / "out", vocab_size=300)
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


def without_checksums(folder: Path) -> None:
    """As an older version made it."""
    (folder / CHECKSUMS).unlink()


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("prep.json", CHECKSUMS))


def test_whole_data_are_read_with_and_without_checksums(folder: Path) -> None:
    use_all(folder)
    without_checksums(folder)
    use_all(folder)


@pytest.mark.parametrize("kind", ["flipped", "halved", "missing", "longer"])
def test_any_change_of_any_file_is_found(folder: Path, kind: str) -> None:
    for name in files_of(folder):
        path = folder / name
        before = path.read_bytes()
        if kind == "missing":
            path.unlink()
        else:
            middle = len(before) // 2
            flipped = before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :]
            path.write_bytes({"flipped": flipped, "halved": before[:middle], "longer": before + before}[kind])
        refused(folder, rf"{name}: .*(checksum|bytes, expected|missing).*run `entformer prep` again\.$")
        path.write_bytes(before)
    use_all(folder)


def test_damage_is_found_without_checksums(folder: Path) -> None:
    """As in directories of older versions."""
    (folder / CHECKSUMS).unlink()

    def refused_with(name: str, content: bytes, message: str) -> None:
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        refused(folder, message)
        (folder / name).write_bytes(before)

    for name in ("valid.source.txt", "test.target.txt"):
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        message = rf"{name}: has \d+ lines, and the ids of '\w+' are of \d+; run"
        refused_with(name, b"".join(lines[: len(lines) // 2]), message)
    index = np.fromfile(folder / "train.source.index.bin", dtype="<i8")
    for position, value in ((0, 5), (3, -1), (3, 1 << 40), (-1, int(index[-1]) + 1)):
        bad = index.copy()
        bad[position] = value
        refused_with("train.source.index.bin", bad.tobytes(), r"index\.bin: damaged, it does not partition the \d+ ids")
    ids = np.fromfile(folder / "valid.target.bin", dtype="<u2")
    ids[2] = 60_000
    refused_with("valid.target.bin", ids.tobytes(), r"target\.bin: damaged, it has the id 60000 in a vocabulary")
    other = SubwordTokenizer.train(["x y z hello world"] * 5, vocab_size=276).model
    refused_with("subwords.model", other, r"subwords\.model: the vocabulary \(fingerprint .* is not that of the ids")


@pytest.mark.parametrize(
    "facts",
    [{"examples": "many"}, {"examples": -1}, {"dtype": "<f8"}, {"dtype": None}, {"source_tokens": 1.5}, {"fingerprint": 0}],
)
def test_facts_of_a_store_of_other_types_are_one_sentence(folder: Path, facts: dict[str, Any]) -> None:
    without_checksums(folder)
    path = folder / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    refused(folder, r"train\.json: damaged \(invalid counts, dtype or fingerprint\)")


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
    prepare(corpus(pairs(60, 1), pairs(20, 2), pairs(10, 3)), folder, vocab_size=300, overwrite=True)
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
