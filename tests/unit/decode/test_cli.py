"""`entformer translate` and `entformer score` as functions: what they read, write and refuse."""

import io
import json
import sys
import warnings
from pathlib import Path

import pytest

from entformer.cli import score, translate
from entformer.cli.test_sets import TestSet
from entformer.data.builtin import builtin_corpus
from entformer.data.corpus import Corpus, ParallelText
from entformer.data.prep import prepare
from entformer.decode.records import AttentionRecord
from entformer.errors import ArgumentError, DataError
from entformer.text.subwords import Subwords

LINES = ["two dogs", "", "a\u2028man \x0b in 👍", "a hat"]


def options(**given: object) -> translate.Options:
    return translate.Options(**{"beam": 2, "max_ratio": 0.0, "max_extra": 6, **given})  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_bytes("\n".join(LINES).encode())  # no newline at the end
    return path


def test_1_a_file_in_a_file_out_line_for_line(
    run_folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out.txt"
    translate.run(run_folder, options(input=source, output=out))
    text = out.read_text(encoding="utf-8")
    assert text.count("\n") == len(LINES) == len(text.splitlines())
    assert text.split("\n")[1] == ""
    notes = capsys.readouterr()
    assert notes.out == ""
    assert "en -> de" in notes.err
    assert "best (step 7)" in notes.err
    assert "1 line empty, kept as empty lines (line 2)" in notes.err
    assert not list(out.parent.glob("*.partial"))


def test_a_pipe_in_a_pipe_out(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"two dogs\r\n\n\xef\xbb\xbfa man\n")))
    translate.run(run_folder, options())
    assert capfdbinary.readouterr().out.count(b"\n") == 3


def test_n_best_is_one_line_of_json_per_line(run_folder: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    translate.run(run_folder, options(input=source, output=out, n_best=2))
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [entry["line"] for entry in found] == [1, 2, 3, 4]
    assert [entry["source"] for entry in found] == LINES
    assert len(found[0]["candidates"]) == 2
    assert found[0]["text"] == found[0]["candidates"][0]["text"]
    assert (found[1]["text"], found[1]["candidates"], found[1]["score"]) == ("", [], None)


def test_attention_of_every_head_as_json_lines(run_folder: Path, source: Path, tmp_path: Path) -> None:
    out, heads = tmp_path / "out.txt", tmp_path / "heads.jsonl"
    translate.run(run_folder, options(input=source, output=out, attention=heads))
    lines = heads.read_text(encoding="utf-8").split("\n")[:-1]
    assert [(json.loads(line)["line"], json.loads(line)["part"]) for line in lines] == [(1, 1), (3, 1), (4, 1)]
    record = AttentionRecord.from_json(lines[0])
    assert record.head("cross", 1, 0).keys == len(record.source)
    assert record.head("cross", 1, 0).queries == len(record.target) - 1


def test_prefix_of_every_line(run_folder: Path, source: Path, tmp_path: Path) -> None:
    out, prefixes = tmp_path / "out.txt", tmp_path / "prefixes.txt"
    prefixes.write_text("red\n\nball\n\n", encoding="utf-8")
    translate.run(run_folder, options(input=source, output=out, prefix_file=prefixes))
    found = out.read_text(encoding="utf-8").split("\n")
    assert found[0].startswith("red")
    assert found[2].startswith("ball")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefix": "a", "prefix_file": Path("x")}, "not both"),
        ({"input": Path("nowhere.txt")}, "no such file"),
        ({"interactive": True, "input": Path("x")}, "leave --input out"),
        ({"output": Path("a"), "attention": Path("a")}, "same file"),
        ({"n_best": 3}, "raise the beam"),
    ],
)
def test_mistakes_are_told_in_one_sentence(run_folder: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises((ArgumentError, DataError), match=message):
        translate.run(run_folder, options(**given))


def test_the_input_is_never_overwritten(run_folder: Path, source: Path) -> None:
    with pytest.raises(ArgumentError, match="would be overwritten"):
        translate.run(run_folder, options(input=source, output=source))
    assert source.read_bytes() == "\n".join(LINES).encode()


def test_what_was_translated_before_a_failure_is_kept(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source.txt", tmp_path / "out.txt"
    source.write_bytes(b"two dogs\na man\nbad \xff byte\n")
    out.write_text("old\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"source\.txt:3"):
        translate.run(run_folder, options(input=source, output=out, window=1))
    assert out.read_text(encoding="utf-8") == "old\n"
    assert (tmp_path / "out.txt.partial").read_text(encoding="utf-8").count("\n") == 2
    assert "out.txt.partial" in capsys.readouterr().err


# ---- score -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    reference, good, bad = tmp_path / "ref.txt", tmp_path / "good.txt", tmp_path / "bad.txt"
    reference.write_text("The cat sits on the mat.\nA dog runs in the park.\n" * 10, encoding="utf-8")
    good.write_text("The cat sits on the mat.\nA dog walks in the park.\n" * 10, encoding="utf-8")
    bad.write_text("The cat lies on a mat.\nA dog goes to a park.\n" * 10, encoding="utf-8")
    return reference, good, bad


def test_score_of_two_files(files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    reference, good, bad = files
    score.run(score.Options(hypotheses=good, references=(reference,), compare=bad, resamples=100), options())
    out = capsys.readouterr().out
    assert "BLEU = " in out
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in out
    assert "chrF = " in out
    assert "significant at 0.05" in out


def test_19_score_as_json_has_signatures_and_doubts(
    files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, _, bad = files
    pieces = tmp_path / "pieces.txt"
    pieces.write_text("▁The ▁cat\nA dog runs.\n" * 10, encoding="utf-8")
    with pytest.warns(UserWarning, match="subwords, not text"):
        score.run(
            score.Options(hypotheses=pieces, references=(reference,), compare=bad, resamples=20, tokenized=True, as_json=True),
            options(),
        )
    content = json.loads(capsys.readouterr().out)
    assert content["main"] == "tokenized_bleu"
    assert all("version:" in entry["signature"] for entry in content["scores"].values())
    assert all("bs:20" in entry["signature"] for entry in content["comparison"]["scores"].values())
    assert "▁" in content["warnings"][0]


def test_different_line_counts_name_both_files(files: tuple[Path, Path, Path]) -> None:
    reference, good, _ = files
    good.write_text("one line\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"good.txt has 1 lines and the references \(.*ref.txt\) have 20"):
        score.run(score.Options(hypotheses=good, references=(reference,)), options())


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, subwords: Subwords) -> Path:
    where = tmp_path_factory.mktemp("score")
    texts = {}
    for split, count in (("train", 30), ("valid", 4), ("test", 6)):
        for side, text in (("source", "a man {}"), ("target", "Der Mann {}")):
            texts[split, side] = where / f"{split}.{side}"
            texts[split, side].write_text("".join(text.format(f"{split} {i}") + "\n" for i in range(count)), encoding="utf-8")
    pairs = {split: ParallelText(texts[split, "source"], texts[split, "target"]) for split in ("train", "valid", "test")}
    corpus = Corpus("en", "de", (pairs["train"],), pairs["valid"], pairs["test"])
    prepare(corpus, where / "prepared", subwords=subwords)
    return where / "prepared"


def test_score_of_a_run_translates_its_test_set(
    run_folder: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "translations.txt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an untrained model's translations are doubtful in every way
        score.run(score.Options(run=run_folder, data=prepared, output=out, as_json=True), options())
    content = json.loads(capsys.readouterr().out)
    assert content["lines"] == 6
    assert "step 7" in content["translations"]
    assert out.read_text(encoding="utf-8").count("\n") == 6


def test_a_run_whose_data_are_gone_says_where_it_looked(run_folder: Path) -> None:
    with pytest.raises(DataError, match="give them with --data"):
        score.run(score.Options(run=run_folder), options())


def test_an_unknown_test_set_is_named(run_folder: Path, prepared: Path) -> None:
    with pytest.raises(DataError, match="no 'test2017' part, only"):
        score.run(score.Options(run=run_folder, data=prepared, test_set="test2017"), options())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "say what to score"),
        ({"hypotheses": Path("a")}, "say what to score against"),
        ({"hypotheses": Path("a"), "references": (Path("b"),), "data": Path("c")}, "not both"),
        ({"run": Path("a"), "references": (Path("b"),)}, "--ref goes with a file"),
    ],
)
def test_score_says_what_is_missing(given: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score.run(score.Options(**given), options())  # type: ignore[arg-type]


def test_a_named_test_set_needs_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    german = tmp_path / "german.txt"
    german.write_text("".join(f"{target}\n" for _, target in builtin_corpus()["test"]), encoding="utf-8")
    score.run(score.Options(hypotheses=german, test_set="builtin", as_json=True), options())
    content = json.loads(capsys.readouterr().out)
    assert content["scores"]["bleu"]["score"] == pytest.approx(100)
    assert content["references"] == "test of builtin"


def test_a_run_takes_a_named_test_set_in_its_own_direction(run_folder: Path) -> None:
    english = builtin_corpus()["valid"][0][0]
    way = TestSet([english], ["x"], "test of toy", "de", "en", False, False)
    assert score._as_run_translates(way, run_folder).references == [english]
    with pytest.raises(ArgumentError, match="translates en -> de, test of toy is fr -> en"):
        score._as_run_translates(TestSet(["a"], ["b"], "test of toy", "fr", "en", False, False), run_folder)


@pytest.mark.parametrize(("name", "message"), [("multi30q", "multi30"), ("builtin:train", "must be test or valid")])
def test_a_wrong_test_set_is_named(name: str, message: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match=message):
        score.run(score.Options(hypotheses=lines, test_set=name), options())
