"""Parallel text: files that belong together are zipped, files that do not are refused with the line to look at."""

import gzip
import random
from pathlib import Path

import pytest

from entformer.data.batch import SentencePair
from entformer.data.corpus import Found, ParallelCorpus, ParallelText
from entformer.errors import ArgumentError, DataError


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def sentences(count: int) -> tuple[list[str], list[str]]:
    """Pairs whose lengths go together, as in real text."""
    rng = random.Random(1)
    lengths = [rng.randint(2, 40) for _ in range(count)]
    return ["word " * n + "." for n in lengths], ["wort " * max(n + rng.randint(-1, 1), 1) + "." for n in lengths]


def test_pairs_in_order_with_line_numbers(tmp_path: Path) -> None:
    text = ParallelText(write(tmp_path / "a", ["one", "", "three"]), write(tmp_path / "b", ["eins", "zwei", ""]))
    assert list(text.pairs()) == [SentencePair("one", "eins", 1), SentencePair("", "zwei", 2), SentencePair("three", "", 3)]


def test_line_count_mismatch_tells_both_counts_and_where(tmp_path: Path) -> None:
    source, target = sentences(400)
    del target[149]  # line 150 is lost on one side, and everything behind it is misaligned
    text = ParallelText(write(tmp_path / "train.en", source), write(tmp_path / "train.de", target))
    with pytest.raises(DataError) as caught:
        list(text.pairs())
    sentence = str(caught.value)
    assert sentence.startswith(f"{text.source} has 400 lines and {text.target} has 399; they get out of step near line ")
    near = int(sentence.split("near line ")[1].split(".")[0])
    assert abs(near - 150) <= 3
    assert "never delete empty lines from one file alone" in sentence


def test_surplus_lines_at_the_end_are_named(tmp_path: Path) -> None:
    source, target = sentences(60)
    text = ParallelText(write(tmp_path / "a", source), write(tmp_path / "b", [*target, "more", "and more"]))
    with pytest.raises(DataError, match=r"has 60 lines and .* has 62; they get out of step near line 61"):
        list(text.pairs())


def test_truncation_only_when_asked_for(tmp_path: Path) -> None:
    text = ParallelText(write(tmp_path / "a", ["one", "two", "three"]), write(tmp_path / "b", ["eins"]))
    with pytest.raises(DataError, match=r"has 3 lines and .* has 1\. Each line must be the translation"):
        list(text.pairs())
    found = Found()
    assert len(list(text.pairs(allow_truncate=True, found=found))) == 1
    assert found.left_over == 2


def test_the_same_file_for_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path / "train.en", ["one"])
    (tmp_path / "link.de").symlink_to(path)
    for other in (path, tmp_path / "link.de", tmp_path / ".." / tmp_path.name / "train.en"):
        with pytest.raises(ArgumentError, match=r"train\.en is given for both sides; pass a source file and a target file"):
            list(ParallelText(path, other).pairs())


def test_tsv_columns(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(gzip.compress(b"1\tone\teins\r\n2\ttwo\tzwei\r\n"))
    assert [(p.source, p.target) for p in ParallelText(path, columns=(2, 3)).pairs()] == [("one", "eins"), ("two", "zwei")]
    assert [(p.source, p.target) for p in ParallelText(path, columns=(3, 2)).pairs()] == [("eins", "one"), ("zwei", "two")]


def test_tsv_with_a_stray_or_missing_tab(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", ["one\teins", "two\tzwei\tstray", "three", "four\tvier"])
    with pytest.raises(DataError) as caught:
        list(ParallelText(path).pairs())
    assert str(caught.value) == (
        f"{path}:2: expected 2 tab-separated columns, got 3. Fix the row, or pass --clean to skip malformed rows."
    )
    found = Found()
    assert [pair.line for pair in ParallelText(path).pairs(drop_malformed=True, found=found)] == [1, 4]
    assert found.malformed_rows.lines == [2, 3]


def test_a_plain_file_given_as_tsv(tmp_path: Path) -> None:
    path = write(tmp_path / "train.en", ["a plain line"])
    with pytest.raises(DataError, match=r"train\.en:1: expected tab-separated columns 1 and 2, got 1 column"):
        list(ParallelText(path).pairs())
    with pytest.raises(ArgumentError, match="columns must be two different numbers"):
        ParallelText(path, columns=(0, 1))


def test_a_corpus_needs_training_text() -> None:
    with pytest.raises(ArgumentError, match="at least one training text"):
        ParallelCorpus("en", "de", ())
