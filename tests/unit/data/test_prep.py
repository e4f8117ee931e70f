"""`prepare`: what is left out and reported, what is never touched, and that the folder appears whole or not at all."""

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from entformer.data import prep as prep_module
from entformer.data.corpus import ParallelCorpus, ParallelText
from entformer.data.filters import PreprocessConfig
from entformer.data.prep import prepare
from entformer.data.prep_report import PrepReport
from entformer.data.prepared import Prepared
from entformer.errors import ArgumentError, DataError, RunFailed
from entformer.text.tokenizer import SubwordTokenizer

Make = Callable[..., ParallelCorpus]
Good = Callable[..., list[tuple[str, str]]]
SMALL = PreprocessConfig(vocab_size=400)


def lines_left_out(report: PrepReport) -> dict[str, list[int]]:
    return {reason: counter.lines for text in report.train for reason, counter in text.dropped.items()}


def test_a_prepared_folder_gives_everything_back(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    good = pairs(60)
    report = prepare(corpus(good[:40], good[40:50], good[50:]), tmp_path / "out", SMALL)
    opened = Prepared.open(tmp_path / "out")
    assert (opened.source_language, opened.target_language) == ("en", "de")
    assert opened.splits == ("train", "valid", "test")
    assert opened.fingerprint == report.fingerprint
    assert opened.text("valid") == ([s for s, _ in good[40:50]], [t for _, t in good[40:50]])
    for split, expected in (("train", good[:40]), ("valid", good[40:50]), ("test", good[50:])):
        store = opened.store(split)
        decoded = [tuple(opened.subwords.decode(ids) for ids in store[i]) for i in range(len(store))]
        assert decoded == expected
        assert list(store.lines) == list(range(1, len(expected) + 1))
    assert report.kept == report.pairs == 40
    assert not opened.lowercase
    assert opened.tokenized  # seen: " ." at the ends


def test_training_pairs_are_filtered_and_held_out_text_is_not(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    good = pairs(40)
    good[3], good[7] = ("", "leer"), (good[7][0], "  \t")
    good[4] = ("a dog .", "der " * 48)
    good[5] = ("dog", "der alte rote hund")  # short ones may differ in length
    good[9] = ("Berlin", "Berlin")
    good[11] = ("word " * 5000, "wort " * 5000)
    held_out = [("", "leer"), ("x", ""), ("lang " * 3000 + ".", "long " * 3000 + ".")]
    config = replace(SMALL, max_length=50)
    report = prepare(corpus(good, held_out), tmp_path / "out", config)
    assert lines_left_out(report) == {"empty": [4, 8], "identical": [10], "ratio": [5], "too long": [12]}
    assert report.longest_seen >= 5000
    opened = Prepared.open(tmp_path / "out")
    assert opened.store("train").lines.tolist() == [n for n in range(1, 41) if n not in (4, 5, 8, 10, 12)]
    assert opened.text("valid") == tuple(map(list, zip(*held_out, strict=True)))
    assert [len(ids) for ids in opened.store("valid")[0]] == [0, len(opened.subwords.encode("leer"))]
    assert prepare(corpus(good), tmp_path / "kept", replace(config, keep_identical=True)).kept == report.kept + 1
    with pytest.raises(DataError, match="source and target are equal in 40 of 40 lines; was one text given twice"):
        prepare(corpus([(source, source) for source, _ in pairs(40)]), tmp_path / "never", SMALL)


def test_a_mismatch_stops_before_anything_is_made(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    spec = corpus(pairs(30))
    with spec.train[0].source.open("a") as file:
        file.write("one line more\n")
    with pytest.raises(DataError, match=r"train\.en has 31 lines and .*train\.de has 30"):
        prepare(spec, tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))
    report = prepare(spec, tmp_path / "out", replace(SMALL, allow_truncate=True))
    assert report.train[0].found.left_over == 1


def test_nul_bytes_drop_the_pair_or_are_cleaned(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    good = pairs(30)
    broken = [*good[:5], (good[5][0].replace("the", "t\0he"), good[5][1]), *good[6:]]
    report = prepare(corpus(broken), tmp_path / "dropped", SMALL)
    assert lines_left_out(report) == {"nul": [6]}
    report = prepare(corpus(broken), tmp_path / "cleaned", replace(SMALL, clean=True))
    assert report.kept == 30
    opened = Prepared.open(tmp_path / "cleaned")
    assert opened.subwords.decode(opened.store("train")[5][0]) == good[5][0]
    with pytest.raises(DataError, match=r"valid\.en:2: byte 2 of the line .* is a NUL.* --clean` removes it"):
        prepare(corpus(good, [("x", "y"), ("a\0b", "c")]), tmp_path / "never", SMALL)


def test_a_large_corpus_is_never_whole_in_memory(
    corpus: Make, pairs: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = pairs(200)
    prepare(corpus(good), tmp_path / "before", SMALL)  # modules that load at their first use are not counted
    spec = corpus([(source * 8, target * 8) for source, target in good])
    for path in spec.train[0].files:  # 1,000 lines of about 350 characters
        path.write_bytes(path.read_bytes() * 5)
    vocabulary = SubwordTokenizer.train((pair.source for pair in spec.train[0].pairs()), vocab_size=400, sample=200)
    size = sum(path.stat().st_size for path in spec.train[0].files)
    monkeypatch.setattr(prep_module, "CHUNK", 8)
    tracemalloc.start()
    prepare(spec, tmp_path / "out", PreprocessConfig(max_length=1000, max_ratio=50), subwords=vocabulary)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 1.5  # whole, it would take more than its size: every line is an object
    store = Prepared.open(tmp_path / "out").store("train")
    assert len(store) == 1_000
    assert isinstance(store.source.ids.base, np.memmap)


def test_overlap_is_reported_and_dedup_removes_it(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    good = pairs(50)
    train = [*good[:30], good[2], good[2], (good[41][0], "anders übersetzt ."), good[45]]
    spec = corpus(train, good[30:40], good[40:])
    report = prepare(spec, tmp_path / "out", SMALL)
    assert report.kept == 34
    assert report.train[0].duplicates.lines == [31, 32]
    assert (report.overlap["test"].sources, report.overlap["test"].pairs) == (2, 1)
    assert report.overlap["test"].train_lines.lines == [34]
    assert (report.overlap["valid"].sources, report.overlap["valid"].pairs) == (0, 0)
    report = prepare(spec, tmp_path / "dedup", replace(SMALL, dedup=True))
    assert lines_left_out(report) == {"duplicate": [31, 32], "held out": [34]}
    assert report.kept == 31


def test_malformed_tsv_rows_are_left_out_with_clean(pairs: Good, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    rows = [f"{source}\t{target}" for source, target in pairs(30)]
    rows[9] += "\tstray"
    path.write_text("\n".join(rows), encoding="utf-8")
    spec = ParallelCorpus("en", "de", (ParallelText(path),))
    with pytest.raises(DataError, match=r"pairs\.tsv:10: expected 2 tab-separated columns, got 3"):
        prepare(spec, tmp_path / "out", SMALL)
    report = prepare(spec, tmp_path / "out", replace(SMALL, clean=True))
    assert (report.pairs, report.kept, lines_left_out(report)) == (30, 29, {"malformed row": [10]})
    assert report.train[0].found.source.no_last_newline


def test_an_existing_folder_is_not_overwritten_by_chance(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spec = corpus(pairs(30))
    prepare(spec, out, SMALL)
    with pytest.raises(ArgumentError, match="out exists; choose another directory, or pass --overwrite"):
        prepare(spec, out, SMALL)
    assert prepare(spec, out, PreprocessConfig(vocab_size=390), overwrite=True).vocabulary == 390
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(ArgumentError, match="thesis is not a prepared directory and is not overwritten"):
        prepare(spec, precious, SMALL, overwrite=True)
    assert (precious / "thesis.tex").exists()


def test_unusable_files_and_directories_are_errors_before_any_work(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    spec = replace(corpus(pairs(30)), test=ParallelText(tmp_path / "test.en", tmp_path / "test.de"))
    with pytest.raises(DataError, match=r"test\.en: there is no such file"):
        prepare(spec, tmp_path / "out")
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"the directory .*file/out cannot be created \(.*\); choose another one"):
        prepare(corpus(pairs(30)), tmp_path / "file" / "out", SMALL)


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    corpus: Make, pairs: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = corpus(pairs(30))

    def no_space(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(prep_module.StoreWriter, "add", no_space)
    with pytest.raises(RunFailed, match=r"the disk is full: .*out could not be written"):
        prepare(spec, tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_empty_files_and_nothing_left(corpus: Make, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the training text is empty"):
        prepare(corpus([]), tmp_path / "out", SMALL)
    with pytest.raises(DataError, match=r"all 2 training pairs were dropped by the filters \(2 empty\)"):
        prepare(corpus([("", "a"), ("b", "")]), tmp_path / "out", SMALL)
    with pytest.raises(DataError, match=r"all 1 training pairs were dropped by the filters \(1 too long\)"):
        prepare(corpus([("a long one", "ein langer")]), tmp_path / "out", replace(SMALL, max_length=1))
    with pytest.raises(DataError, match="the valid text is empty"):
        prepare(corpus([("a", "b")], []), tmp_path / "out", SMALL)


# ---- options ---------------------------------------------------------------------------------------------------------------


def test_equal_input_gives_equal_folders(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    spec = corpus(pairs(30), pairs(10, 2))
    fingerprints = {prepare(spec, tmp_path / name, SMALL).fingerprint for name in ("one", "two")}
    assert len(fingerprints) == 1
    assert prepare(corpus(pairs(29), pairs(10, 2)), tmp_path / "three", SMALL).fingerprint not in fingerprints


def test_lowercase_is_done_or_found(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    good = pairs(30)
    prepare(corpus(good, good[:3]), tmp_path / "done", replace(SMALL, lowercase=True))
    opened = Prepared.open(tmp_path / "done")
    assert opened.lowercase
    assert opened.text("valid")[0] == [source.lower() for source, _ in good[:3]]
    lower = [(source.lower(), target.lower()) for source, target in good]
    report = prepare(corpus(lower), tmp_path / "found", SMALL)
    assert report.lowercase
    assert any("no capital letter" in note for note in report.notes)


def test_a_given_vocabulary_is_used(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    given = SubwordTokenizer.train(["abc def"], vocab_size=300)
    prepare(corpus(pairs(30)), tmp_path / "out", subwords=given)
    opened = Prepared.open(tmp_path / "out")
    assert opened.subwords.fingerprint == given.fingerprint


def test_several_training_texts_are_one_corpus(
    text: Callable[..., ParallelText], corpus: Make, pairs: Good, tmp_path: Path
) -> None:
    good = pairs(40)
    spec = replace(corpus(good[:20]), train=(text("one", good[:20]), text("two", [*good[20:], ("", "x"), good[0]])))
    report = prepare(spec, tmp_path / "out", replace(SMALL, dedup=True))
    assert [part.kept for part in report.train] == [20, 20]
    assert lines_left_out(report) == {"empty": [21], "duplicate": [22]}


def test_folders_that_are_not_prepared_are_named(corpus: Make, pairs: Good, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such directory; create one with `entformer prep`"):
        Prepared.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"not a prepared directory: prep\.json is missing"):
        Prepared.open(tmp_path)
    prepare(corpus(pairs(30)), tmp_path / "out", SMALL)
    with pytest.raises(DataError, match="no 'test' split, only train: pass the files to `entformer prep`"):
        Prepared.open(tmp_path / "out").store("test")
