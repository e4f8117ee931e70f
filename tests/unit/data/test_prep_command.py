"""`entformer prep` as people meet it: how texts are named, what the report says, and JSON for programs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.cli.prep import parse_columns, parse_languages, prep
from entformer.data.corpus import ParallelText
from entformer.data.prepared import Prepared
from entformer.data.texts import find_text
from entformer.errors import ArgumentError, DataError

Text = Callable[..., ParallelText]
Good = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def messy(text: Text, pairs: Good, tmp_path: Path) -> str:
    """A training text with something wrong of every kind that is no reason to stop. Returns its prefix."""
    good = pairs(60)
    train = [
        *good[:40],
        ("", "x"),
        ("Berlin", "Berlin"),
        good[1],
        ("a\0b", "c"),
        ("w " * 300, "v " * 300),
        good[50],
        ("a\u2028b", "c"),
    ]
    train.append(("one two three four five six seven eight nine ten eleven twelve", "z"))
    text("train", train)
    text("test", good[50:])
    source = tmp_path / "train.en"
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n", 2).removesuffix(b"\n"))
    return str(tmp_path / "train")


def test_the_report_names_counts_and_lines(
    messy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    test = str(tmp_path / "test")
    prep(tmp_path / "out", languages="en-de", train=[messy], test=test, vocab_size=500)
    said = " ".join(capsys.readouterr().out.split())
    for sentence in (
        "dropped 1: a side is empty (line 41)",
        "dropped 1: both sides are the same text (--keep-identical keeps them) (line 42)",
        "dropped 1: it holds a NUL byte",
        "dropped 1: a side has more subwords than --max-length (line 45)",
        "dropped 1: one side is more than --max-ratio times as long as the other (line 48)",
        "sources of the test text that are also in the training text: 1 of 10, with the same translation: 1 (training line 46; "
        "--dedup drops them)",
        "1 training pairs repeat an earlier one (line 43)",
        "train, source side: a byte-order mark was removed",
        "2 lines end in \\r\\n (Windows); the \\r was removed",
        "the last line has no newline",
        "1 lines contain characters that other programs treat as line ends, such as U+2028 (line 47)",
        "the longest sentence has",
        "subwords for both languages",
        "% padding",
        "prepared in",
    ):
        assert sentence in said, said
    assert len(Prepared.open(tmp_path / "out").store("train")) == 43


def test_json_is_one_object_on_standard_output(messy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prep(tmp_path / "out", languages="en-de", train=[messy], vocab_size=500, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["train"][0]["dropped"]["empty"] == {"count": 1, "lines": [41]}
    assert report["folder"] == str(tmp_path / "out")
    assert {"vocabulary", "padding_share", "overlap", "sides", "fingerprint"} <= set(report)


def test_a_text_is_named_by_prefix_by_two_files_or_by_a_tsv(text: Text, tmp_path: Path) -> None:
    made = text("train", [("a", "b")])
    prefix = str(tmp_path / "train")
    assert find_text(prefix, "en", "de") == made
    assert find_text(f"{prefix}.de,{prefix}.en", "de", "en") == ParallelText(tmp_path / "train.de", tmp_path / "train.en")
    assert find_text("x/pairs.tsv.gz", "en", "de", (2, 3)) == ParallelText(Path("x/pairs.tsv.gz"), None, (2, 3))
    made.source.rename(tmp_path / "train.en.gz")
    assert find_text(prefix, "en", "de").source == tmp_path / "train.en.gz"


def test_wrong_names_are_explained(text: Text, tmp_path: Path) -> None:
    text("train", [("a", "b")])
    with pytest.raises(DataError, match=r"train\.fr: there is no such file, nor train\.fr\.gz; pass the path without \.fr"):
        find_text(str(tmp_path / "train"), "en", "fr")
    with pytest.raises(DataError, match=r"is a file: pass both sides as SOURCE,TARGET, or rename it to \.tsv"):
        find_text(str(tmp_path / "train.en"), "en", "de")
    with pytest.raises(ArgumentError, match="expected SOURCE,TARGET"):
        find_text("a,b,c", "en", "de")
    with pytest.raises(ArgumentError, match="'english' is not of the form en-de"):
        parse_languages("english")
    with pytest.raises(ArgumentError, match="'2' is not of the form 1,2"):
        parse_columns("2")


def test_the_built_in_corpus_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prep(tmp_path / "out", corpus="builtin", vocab_size=2000, as_json=True)
    assert json.loads(capsys.readouterr().out)["overlap"]["test"]["pairs"] == 0
    opened = Prepared.open(tmp_path / "out")
    assert opened.corpus == "builtin"
    assert opened.splits == ("train", "valid", "test")


def test_options_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    for arguments, sentence in [
        ({}, "give --languages en-de and --train, or a named corpus with --corpus"),
        ({"corpus": "builtin", "train": ["x"], "valid": "y"}, "has its own languages and files; remove --train, --valid"),
        ({"languages": "en-de", "train": ["x"], "from_": "y"}, "--from and --layout require a named corpus"),
        ({"corpus": "builtin", "layout": "raw"}, "the built-in corpus needs no download and has one layout"),
        ({"corpus": "multi40k"}, "here is no corpus 'multi40k'"),
        ({"languages": "en-de", "train": ["x"], "vocab_size": 300, "subwords": "y"}, "--vocab-size 300 has no effect"),
        ({"languages": "en-de", "train": ["x"], "columns": "2,3"}, r"--columns 2,3 has no effect: no text is a \.tsv file"),
    ]:
        with pytest.raises(ArgumentError, match=sentence):
            prep(tmp_path / "out", **arguments)  # type: ignore[arg-type]


def test_swapped_sides_are_refused_by_their_endings(text: Text, tmp_path: Path) -> None:
    text("train", [("a man", "ein Mann")] * 3)
    prefix = tmp_path / "train"
    swapped = [f"{prefix}.de,{prefix}.en"]
    with pytest.raises(
        ArgumentError, match=r"train\.de is given as the en side and ends in \.de: source and target are swapped"
    ):
        prep(tmp_path / "out", languages="en-de", train=swapped)
    (tmp_path / "train.de").rename(tmp_path / "other.txt")
    with pytest.raises(ArgumentError, match=r"train\.en is given as the de side and ends in \.en"):
        prep(tmp_path / "out", languages="en-de", train=[f"{tmp_path / 'other.txt'},{prefix}.en"])
    assert not (tmp_path / "out").exists()


def test_swapped_sides_are_detected_by_their_words(tmp_path: Path) -> None:
    english = tmp_path / "one.txt"
    german = tmp_path / "two.txt"
    english.write_text("the man and the dog is in the house with the cat\n" * 9, encoding="utf-8")
    german.write_text("der Mann und der Hund ist in dem Haus mit der Katze\n" * 9, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"the source side of .*one\.txt and .* looks like en, but the languages are de-en"):
        prep(tmp_path / "out", languages="de-en", train=[f"{english},{german}"], vocab_size=300, as_json=True)
