"""Text of language models: documents, splits, labels, and rows whose order is a function of (seed, epoch, index)."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entformer.data.text import PreparedText, TextBatch, TextBatches, TextConfig, prepare_text, windows
from entformer.errors import ArgumentError, DataError
from entformer.text.documents import BpeTokenizer, ByteTokenizer
from entformer.text.tokenizer import BOS, EOS

WORDS = "the cat sees a dog and the dog sees a cat\n\nthen both sleep\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_documents_keep_their_text_and_have_borders(tmp_path: Path) -> None:
    files = [write(tmp_path, "a.txt", "ab\ncd"), write(tmp_path, "b.txt.gz", "\ufeffxyz\r\n"), write(tmp_path, "v.txt", "é")]
    facts = prepare_text({"train": files[:2], "valid": files[2:]}, tmp_path / "out", TextConfig("bytes"))
    text = PreparedText.open(tmp_path / "out")
    ids = text.ids("train")
    starts = (ids == BOS).nonzero()[0].tolist()
    assert [text.tokenizer.decode(part.tolist()) for part in np.split(ids, starts[1:])] == ["ab\ncd", "xyz"]
    assert facts["splits"]["train"] == {"documents": 2, "tokens": 10, "bytes": 8}
    assert text.splits["valid"]["bytes"] == 2
    batch = TextBatch.cut(ids, [0], 10)
    assert batch.labels[0, starts[1] - 1] == batch.labels[0, -1] == EOS  # the next document is never predicted
    assert (batch.labels != BOS).all()
    assert batch.cu_seqlens is not None
    assert batch.cu_seqlens.tolist() == [0, starts[1], 10]


@pytest.mark.parametrize(
    ("config", "documents"),
    [
        ({"documents": "paragraph"}, 21),
        ({"documents": "line"}, 40),
        ({"documents": "line", "split": "document", "valid_share": 0.25}, 30),
    ],
)
def test_validation_text_is_set_aside(tmp_path: Path, config: dict[str, Any], documents: int) -> None:
    file = write(tmp_path, "a.txt", WORDS * 20)
    facts = prepare_text({"train": [file]}, tmp_path / "out", TextConfig("bytes", **config))
    assert facts["splits"]["train"]["documents"] == documents
    both = sum(split["bytes"] for split in facts["splits"].values())
    assert 0.9 * len(WORDS) * 20 < both <= len(WORDS) * 20  # without blank lines and the spaces where documents are cut


def test_a_directory_stands_for_its_files_however_their_lines_end(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / ".hidden").write_bytes(b"\xff")
    (folder / "c.txt").write_bytes(b"")
    (folder / "b.txt").write_bytes(b"\xef\xbb\xbfa cat\r\nsits\r\n")
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"no newline"))
    (folder / "more" / "d.txt").write_bytes(b"x" * ((1 << 20) + 1))  # one long line
    prepare_text({"train": [folder], "valid": [folder / "b.txt"]}, tmp_path / "out", TextConfig("bytes"))
    text = PreparedText.open(tmp_path / "out")
    ids = text.ids("train")
    starts = (ids == BOS).nonzero()[0].tolist()
    found = [text.tokenizer.decode(part.tolist()) for part in np.split(ids, starts[1:])]
    assert found == ["no newline", "a cat\nsits", "x" * ((1 << 20) + 1)]


def test_mistakes_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", WORDS)
    with pytest.raises(DataError, match="there is no such file"):
        prepare_text({"train": [tmp_path / "none"]}, tmp_path / "out", TextConfig("bytes"))
    (tmp_path / "empty").mkdir()
    for content, message in (
        (b"a\xff\xff", r"damaged\.txt:1: byte 2 of the line .* is not UTF-8"),
        ("a b".encode("utf-16"), "this is UTF-16"),
        (gzip.compress(WORDS.encode())[:-9], "the compressed file is damaged or truncated"),
        (b"a\0b", "is a NUL character"),
        (b"\n \n", "there is no train text"),
    ):
        (tmp_path / "damaged.txt").write_bytes(content)
        with pytest.raises(DataError, match=message):
            prepare_text({"train": [tmp_path / "damaged.txt"]}, tmp_path / "out", TextConfig("bytes"))
    with pytest.raises(DataError, match="this directory has no files"):
        prepare_text({"train": [tmp_path / "empty"]}, tmp_path / "out", TextConfig("bytes"))
    with pytest.raises(DataError, match="there is no valid text"):
        prepare_text({"train": [file]}, tmp_path / "out", TextConfig("bytes", split="document"))
    with pytest.raises(ArgumentError, match="vocab_size must be at least"):
        TextConfig("bpe", 100)
    prepare_text({"train": [file]}, tmp_path / "out", TextConfig("bytes"))
    with pytest.raises(ArgumentError, match="exists"):
        prepare_text({"train": [file]}, tmp_path / "out", TextConfig("bytes"))
    (tmp_path / "out" / "train.bin").write_bytes(b"x")
    with pytest.raises(DataError, match=r"train\.bin"):
        PreparedText.open(tmp_path / "out").ids("train")
    with pytest.raises(DataError, match="not a prepared directory"):
        PreparedText.open(tmp_path)


def test_line_breaks_are_tokens_of_both_tokenizers() -> None:
    text = "A cat.\n\n  Two  dogs.\nÄ"
    bpe = BpeTokenizer.train(["A cat.", "Two dogs."] * 9, vocab_size=290)
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text
    assert bpe.decode(bpe.encode(text)) == "A cat.\n\nTwo dogs.\nÄ"  # runs of spaces become one
    assert max(bpe.encode(text)) < bpe.size
    for tokenizer in (ByteTokenizer(), bpe):
        pieces = "".join(tokenizer.pieces(tokenizer.encode("a\nÄ")))
        assert pieces.replace("▁", "") == "a↵<0xC3><0x84>"
    assert ByteTokenizer().pieces(ByteTokenizer().encode("; ")) == [";", "▁"]


def ids(total: int = 103) -> Any:
    found = np.random.default_rng(0).integers(4, 50, total).astype(np.uint16)
    found[[0, 30, 64]] = BOS
    return found


def test_batches_are_a_function_of_seed_epoch_and_index() -> None:
    source = TextBatches(ids(), length=8, rows=3, seed=4)
    for epoch in (0, 1, 2):
        whole = list(source.epoch(epoch))
        assert len(whole) == source.batches_in(epoch) == 4
        assert [one.examples for one in TextBatches(ids(), length=8, rows=3, seed=4).epoch(epoch, 2)] == [
            one.examples for one in whole[2:]
        ]
        rows = [tuple(row.tolist()) for batch in whole for row in batch.inputs]
        assert len(set(rows)) == 12  # no row twice
    first, second = ([batch.inputs.tolist() for batch in source.epoch(epoch)] for epoch in (0, 1))
    assert first != second
    halves = [TextBatches(ids(), length=8, rows=3, seed=4, rank=rank, world_size=2) for rank in (0, 1)]
    assert halves[0].batches_in(0) == halves[1].batches_in(0) == 2
    both = [row for half in halves for batch in half.epoch(0) for row in batch.inputs.tolist()]
    assert sorted(both) == sorted(row for batch in first for row in batch)
    with pytest.raises(DataError, match="fewer than a row of 200"):
        TextBatches(ids(), length=200, rows=1, seed=1)


@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 3), (10, 1), (200, 50)])
def test_windows_score_every_token_once(length: int, stride: int) -> None:
    text = ids()
    found: list[int] = []
    for batch, new in windows(text, length, stride, 4):
        found += batch.labels[:, batch.labels.shape[1] - new :].flatten().tolist()
    expected = [EOS if token == BOS else token for token in [*text[1:].tolist(), BOS]]
    assert found == expected


def test_splitting_a_batch_keeps_borders() -> None:
    batch = TextBatch.cut(ids(), [24, 40, 60, 80], 8)
    first, second = batch.split()
    assert torch.equal(torch.cat([first.inputs, second.inputs]), batch.inputs)
    assert first.cu_seqlens is not None
    assert first.cu_seqlens.tolist() == [0, 6, 8, 16]
    assert (first.num_labels, second.examples) == (16, batch.examples[2:])
