"""`entformer translate` and `entformer score` as functions: what they read, write and refuse."""

import gzip
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from entformer.checkpoint import average_checkpoints, load_run
from entformer.cli.score import score
from entformer.cli.test_sets import TestSet, in_direction_of
from entformer.cli.translate import translate
from entformer.data.builtin import builtin_corpus
from entformer.data.corpus import ParallelCorpus, ParallelText
from entformer.data.prep import prepare
from entformer.decoding.defaults import DecodingDefaults
from entformer.decoding.records import AttentionRecord
from entformer.decoding.translate import Translator
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import SubwordTokenizer

LINES = ["two dogs", "", "a\u2028man \x0b in 👍", "a hat"]


SHORT: dict[str, Any] = {"beam": 2, "max_ratio": 0.0, "max_extra": 6}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_bytes("\n".join(LINES).encode())  # no newline at the end
    return path


def test_a_file_in_a_file_out_line_for_line(
    run_folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out.txt"
    translate(run_folder, input_file=source, output=out, **SHORT)
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
    translate(run_folder, **SHORT)
    assert capfdbinary.readouterr().out.count(b"\n") == 3


@pytest.mark.parametrize("interactive", [False, True], ids=["pipe", "interactive"])
def test_characters_outside_the_vocabulary_are_a_note(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], interactive: bool
) -> None:
    lines = "two dogs\na \N{DOG FACE}\u200b man\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    translate(run_folder, interactive=interactive, **SHORT)
    shown = capfd.readouterr()
    assert shown.out.count("\n") == 2
    note = "1 line with characters that are not in the vocabulary, read as bytes (line 2): \N{DOG FACE} U+200B"
    assert note in shown.err.splitlines()
    assert ("not in the vocabulary, read as bytes: \N{DOG FACE} U+200B" in shown.err.splitlines()) == interactive


def test_n_best_is_one_line_of_json_per_line(run_folder: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    translate(run_folder, input_file=source, output=out, n_best=2, **SHORT)
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [entry["line"] for entry in found] == [1, 2, 3, 4]
    assert [entry["source"] for entry in found] == LINES
    assert len(found[0]["candidates"]) == 2
    assert found[0]["text"] == found[0]["candidates"][0]["text"]
    assert (found[1]["text"], found[1]["candidates"], found[1]["score"]) == ("", [], None)


def test_attention_of_every_head_as_json_lines(run_folder: Path, source: Path, tmp_path: Path) -> None:
    out, heads = tmp_path / "out.txt", tmp_path / "heads.jsonl"
    translate(run_folder, input_file=source, output=out, attention=heads, **SHORT)
    lines = heads.read_text(encoding="utf-8").split("\n")[:-1]
    assert [(json.loads(line)["line"], json.loads(line)["part"]) for line in lines] == [(1, 1), (3, 1), (4, 1)]
    record = AttentionRecord.from_json(lines[0])
    assert record.head("cross", 1, 0).keys == len(record.source)
    assert record.head("cross", 1, 0).queries == len(record.target) - 1


def test_prefix_of_every_line(run_folder: Path, source: Path, tmp_path: Path) -> None:
    out, prefixes = tmp_path / "out.txt", tmp_path / "prefixes.txt"
    prefixes.write_text("red\n\nball\n\n", encoding="utf-8")
    translate(run_folder, input_file=source, output=out, prefix_file=prefixes, **SHORT)
    found = out.read_text(encoding="utf-8").split("\n")
    assert found[0].startswith("red")
    assert found[2].startswith("ball")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefix": "a", "prefix_file": Path("x")}, "not both"),
        ({"input_file": Path("nowhere.txt")}, "no such file"),
        ({"interactive": True, "input_file": Path("x")}, "remove --input"),
        ({"interactive": True, "nproc": 2}, "--nproc is for files and pipes"),
        ({"output": Path("a"), "attention": Path("a")}, "same file"),
        ({"n_best": 3}, "increase the beam"),
    ],
)
def test_invalid_arguments_are_reported(run_folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, DataError), match=message):
        translate(run_folder, **{**SHORT, **given})


def test_the_input_is_never_overwritten(run_folder: Path, source: Path) -> None:
    with pytest.raises(ArgumentError, match="would be overwritten"):
        translate(run_folder, input_file=source, output=source, **SHORT)
    assert source.read_bytes() == "\n".join(LINES).encode()


def test_what_was_translated_before_a_failure_is_kept(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source.txt", tmp_path / "out.txt"
    source.write_bytes(b"two dogs\na man\nbad \xff byte\n")
    out.write_text("old\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"source\.txt:3"):
        translate(run_folder, input_file=source, output=out, window=1, **SHORT)
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
    score(hypotheses=good, references=[reference], compare=bad, resamples=100, beam=2)
    out = capsys.readouterr().out
    assert "BLEU = " in out
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in out
    assert "chrF = " in out
    assert "significant at 0.05" in out


def test_score_as_json_has_signatures_and_language_warnings(
    files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, _, bad = files
    pieces = tmp_path / "pieces.txt"
    pieces.write_text("▁The ▁cat\nA dog runs.\n" * 10, encoding="utf-8")
    with pytest.warns(UserWarning, match="subwords, not text"):
        score(hypotheses=pieces, references=[reference], compare=bad, resamples=20, tokenized=True, as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["main"] == "tokenized_bleu"
    assert all("version:" in entry["signature"] for entry in content["scores"].values())
    assert all("bs:20" in entry["signature"] for entry in content["comparison"]["scores"].values())
    assert "▁" in content["warnings"][0]


def test_different_line_counts_name_both_files(files: tuple[Path, Path, Path]) -> None:
    reference, good, _ = files
    good.write_text("one line\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"good.txt has 1 lines and the references \(.*ref.txt\) have 20"):
        score(hypotheses=good, references=[reference], beam=2)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, subwords: SubwordTokenizer) -> Path:
    where = tmp_path_factory.mktemp("score")
    texts = {}
    for split, count in (("train", 30), ("valid", 4), ("test", 6)):
        for side, text in (("source", "a man {}"), ("target", "Der Mann {}")):
            texts[split, side] = where / f"{split}.{side}"
            texts[split, side].write_text("".join(text.format(f"{split} {i}") + "\n" for i in range(count)), encoding="utf-8")
    pairs = {split: ParallelText(texts[split, "source"], texts[split, "target"]) for split in ("train", "valid", "test")}
    corpus = ParallelCorpus("en", "de", (pairs["train"],), pairs["valid"], pairs["test"])
    prepare(corpus, where / "prepared", subwords=subwords)
    return where / "prepared"


@pytest.mark.filterwarnings("ignore")  # an untrained model's translations are doubtful in every way
def test_score_of_a_run_translates_its_test_set(
    run_folder: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "translations.txt"
    score(run=run_folder, data=prepared, output=out, as_json=True, beam=2)
    content = json.loads(capsys.readouterr().out)
    assert content["lines"] == 6
    assert "step 7" in content["translations"]
    assert out.read_text(encoding="utf-8").count("\n") == 6


def test_a_run_whose_data_are_gone_says_where_it_looked(run_folder: Path) -> None:
    with pytest.raises(DataError, match="give it with --data"):
        score(run=run_folder, beam=2)


def test_an_unknown_test_set_is_named(run_folder: Path, prepared: Path) -> None:
    with pytest.raises(DataError, match="no 'test2017' split, only"):
        score(run=run_folder, data=prepared, test_set="test2017", beam=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to score"),
        ({"hypotheses": Path("a")}, "no references"),
        ({"hypotheses": Path("a"), "references": [Path("b")], "data": Path("c")}, "not both"),
        ({"run": Path("a"), "test": "x", "test_set": "valid"}, "--test and --test-set each name the references"),
        ({"run": Path("a"), "source": "x"}, "--from has no effect without a named corpus"),
        ({"run": Path("a"), "language": "en"}, "--language en has no effect without --moses"),
        ({"hypotheses": Path("a"), "test": "x"}, "--test x is a prefix, which needs the languages of a run"),
        ({"run": Path("a"), "references": [Path("b")]}, "with --run, use --test SOURCE,REFERENCE"),
    ],
)
def test_score_says_what_is_missing(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score(**given)


def test_a_named_test_set_needs_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    german = tmp_path / "german.txt"
    german.write_text("".join(f"{target}\n" for _, target in builtin_corpus()["test"]), encoding="utf-8")
    score(hypotheses=german, test_set="builtin", as_json=True, beam=2)
    content = json.loads(capsys.readouterr().out)
    assert content["scores"]["bleu"]["score"] == pytest.approx(100)
    assert content["references"] == "test of builtin"


def test_a_run_takes_a_named_test_set_in_its_own_direction(run_folder: Path) -> None:
    english = builtin_corpus()["valid"][0][0]
    way = TestSet([english], ["x"], "test of toy", "de", "en", False, False)
    assert in_direction_of(way, run_folder).references == [english]
    with pytest.raises(ArgumentError, match="translates en -> de, test of toy is fr -> en"):
        in_direction_of(TestSet(["a"], ["b"], "test of toy", "fr", "en", False, False), run_folder)


@pytest.mark.parametrize(("name", "message"), [("multi30q", "multi30"), ("builtin:train", "must be test or valid")])
def test_a_wrong_test_set_is_named(name: str, message: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match=message):
        score(hypotheses=lines, test_set=name, beam=2)


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_scored_on_files_named_as_prep_takes_them(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "news.en.gz").write_bytes(gzip.compress(b"a man\ntwo dogs\n"))
    (tmp_path / "news.de.gz").write_bytes(gzip.compress(b"Ein Mann.\nZwei Hunde.\n"))
    (tmp_path / "pairs.tsv").write_text("a man\tEin Mann.\ntwo dogs\tZwei Hunde.\n", encoding="utf-8")
    found = []
    for name in ("news", "news.en.gz,news.de.gz", "pairs.tsv"):
        test = ",".join(str(tmp_path / part) for part in name.split(","))
        score(run=run_folder, test=test, moses=True, as_json=True, beam=2)
        found.append(json.loads(capsys.readouterr().out))
    assert [content["lines"] for content in found] == [2, 2, 2]
    assert found[0]["scores"] == found[1]["scores"] == found[2]["scores"]
    assert found[0]["main"] == "moses_bleu"
    assert "tok:moses.de-sacremoses" in found[0]["scores"]["moses_bleu"]["signature"]
    with pytest.raises(ArgumentError, match=r"news\.de\.gz is given as the en side"):
        score(run=run_folder, test=f"{tmp_path}/news.de.gz,{tmp_path}/news.en.gz", beam=2)


def test_moses_needs_a_language_for_files(files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    reference, good, _ = files
    with pytest.raises(ArgumentError, match="--moses needs the language of the references"):
        score(hypotheses=good, references=[reference], moses=True, beam=2)
    score(hypotheses=good, references=[reference], moses=True, language="en", beam=2)
    out = capsys.readouterr().out
    assert "Moses-tokenized BLEU = " in out
    assert "the tokenized BLEU of papers before sacreBLEU" in out


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "mps", "xpu", "meta", "gpu", ""])
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_here_is_told_in_one_sentence(run_folder: Path, source: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=r"use cpu"):
        translate(run_folder, input_file=source, device=name, **SHORT)
    with pytest.raises(ArgumentError, match=r"use cpu"):
        score(hypotheses=source, references=[source], beam=2, device=name)
    with pytest.raises(ArgumentError, match=r"use cpu"):
        load_run(run_folder, device=name)


def test_decoding_is_that_of_the_recipe_unless_told_otherwise(run_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    assert Translator(run).decoding == DecodingDefaults(5, "average", None)
    (run / "recipe.yaml").write_text("decoding: {beam: 3, length_penalty: gnmt, alpha: 0.6}", encoding="utf-8")  # an old run
    assert Translator(run).decoding == DecodingDefaults(3, "gnmt", 0.6)
    assert Translator(run, beam=2, length_penalty_alpha=0.5).decoding == DecodingDefaults(2, "gnmt", 0.5)
    assert Translator(run, length_penalty="none").decoding == DecodingDefaults(3, "none", None)
    (run / "recipe.yaml").write_text("decoding: {beam: 4, length_penalty: none}", encoding="utf-8")
    assert Translator(run).decoding == DecodingDefaults(4, "none", None)
    (run / "recipe.yaml").write_text("[", encoding="utf-8")
    assert Translator(run).decoding == DecodingDefaults()


def test_messages_tell_an_average_from_a_checkpoint(
    run_folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    average_checkpoints(run, ["7"])
    translate(run, input_file=source, output=tmp_path / "out", **SHORT)
    assert f"{run}, best (step 7), beam 2" in capsys.readouterr().err
    (run / "best.json").write_text('{"checkpoint": "averaged", "step": 7}', encoding="utf-8")
    translate(run, input_file=source, output=tmp_path / "out", **SHORT)
    assert f"{run}, best (average up to step 7), beam 2" in capsys.readouterr().err
