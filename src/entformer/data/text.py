"""Text for language models: from files to memory-mapped ids, and batches of them.

A prepared directory holds, little-endian:

    prep.json                    tokenizer, counts, fingerprint, what it was made from
    subwords.model               the vocabulary, unless the tokenizer is "bytes"
    {train,valid,test}.bin       ids (uint16, or uint32 for large vocabularies): BOS and the tokens of each document
    checksums.json               size and SHA-256 of each file above, except prep.json

The label of a token is the next one, and of the last token of a document EOS, so every token has a label and no label crosses
the border of a document.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entformer.data.builtin import builtin_corpus
from entformer.data.prep_folder import FORMAT, read_checksums, verify, write_checksums
from entformer.data.store import AGAIN, check_size, map_array, read_object
from entformer.errors import ArgumentError, DataError
from entformer.files import file_sha256, staged_directory, write_json
from entformer.text.documents import BpeTokenizer, ByteTokenizer, DocumentTokenizer, open_tokenizer
from entformer.text.lines import read_text
from entformer.text.tokenizer import BOS, EOS, SMALLEST, SubwordTokenizer

BUILTIN = "builtin"
SENTENCES = 12  # of a document of the built-in text
HELD_OUT = ("valid", "test")


@dataclass(frozen=True)
class TextConfig:
    """How text is split into documents and tokens.

    Args:
        tokenizer: "bpe" or "bytes".
        vocab_size: Subwords of "bpe".
        documents: What a document is: a "file", a "paragraph" (between blank lines), or a "line".
        split: How validation text is chosen if there are no files of it: the end of every document ("position"), or whole
            documents ("document").
        valid_share: The share of it.
        seed: Seed of the choice of documents, and of the sample that a vocabulary is learned from.
    """

    tokenizer: Literal["bpe", "bytes"] = "bpe"
    vocab_size: int = 8000
    documents: Literal["file", "paragraph", "line"] = "file"
    split: Literal["position", "document"] = "position"
    valid_share: float = 0.05
    seed: int = 1

    def __post_init__(self) -> None:
        if self.tokenizer == "bpe" and self.vocab_size < SMALLEST:
            raise ArgumentError(f"vocab_size must be at least {SMALLEST} (256 of it are bytes), got {self.vocab_size}.")
        if not 0.0 < self.valid_share < 1.0:
            raise ArgumentError(f"valid_share must be above 0 and below 1, got {self.valid_share:g}.")


def prepare_text(
    files: Mapping[str, Sequence[Path]],
    out: Path,
    config: TextConfig,
    *,
    subwords: SubwordTokenizer | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Writes the text of files, or the built-in text, to the directory `out`; returns the content of prep.json.

    Args:
        files: "train", and "valid" and "test" where they have files of their own; without any, the built-in text. A directory
            stands for all files in it.
        out: The directory to create; it appears complete or not at all.
        config: Tokenizer, documents and splits.
        subwords: An existing vocabulary to use, instead of learning one.
        overwrite: Replace `out` if it is a prepared directory.
        say: Called with one line of progress at a time.

    Raises:
        ArgumentError: `out` exists.
        DataError: A file is missing or not text, or a split is empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and (not overwrite or not (out / "prep.json").is_file()):
        raise ArgumentError(f"{out} exists; choose another directory, or pass --overwrite to replace a prepared one.")
    files = {split: list(_files(paths)) for split, paths in files.items()}
    splits = _splits(files, config)
    tokenizer: DocumentTokenizer
    if config.tokenizer == "bytes":
        tokenizer = ByteTokenizer()
    elif subwords is not None:
        tokenizer = BpeTokenizer(subwords)
    else:
        say(f"learning a vocabulary of {config.vocab_size:,}")
        lines = (line for document in splits["train"] for line in document.split("\n"))
        tokenizer = BpeTokenizer.train(lines, vocab_size=config.vocab_size, seed=config.seed)
    dtype = "<u2" if tokenizer.size <= 1 << 16 else "<u4"
    digest = hashlib.sha256(tokenizer.fingerprint.encode())
    counts: dict[str, dict[str, int]] = {}
    with staged_directory(out) as staged:
        for split, documents in splits.items():
            say(f"writing {split}")
            ids = [np.array([BOS, *tokenizer.encode(document)], dtype=dtype) for document in documents]
            size = sum(len(tokenizer.decode(own.tolist()).encode()) for own in ids)  # as the model reads it
            joined = np.concatenate(ids)
            (staged / f"{split}.bin").write_bytes(joined.tobytes())
            digest.update(joined.astype("<u4").tobytes())
            counts[split] = {"documents": len(ids), "tokens": len(joined), "bytes": size}
        if config.tokenizer == "bpe":
            tokenizer.save(staged / "subwords.model")
        write_checksums(staged)
        facts = {
            "format": FORMAT,
            "kind": "text",
            "tokenizer": {"name": tokenizer.name, "size": tokenizer.size, "fingerprint": tokenizer.fingerprint},
            "dtype": dtype,
            "splits": counts,
            "fingerprint": digest.hexdigest()[:16],
            "request": {
                **asdict(config),
                "files": {split: [file_sha256(path) for path in paths] for split, paths in files.items()},
            },
        }
        write_json(staged / "prep.json", facts)
    return facts


def _splits(files: Mapping[str, Sequence[Path]], config: TextConfig) -> dict[str, list[str]]:
    """Returns the documents of each split, none of them empty."""
    if not files.get("train"):
        splits = builtin_documents()
    else:
        splits = {split: _documents(paths, config.documents) for split, paths in files.items() if paths}
        if "valid" not in splits:
            splits["train"], splits["valid"] = _held_out(splits["train"], config)
    for split, documents in splits.items():
        if not documents:
            where = files.get(split) or files["train"]
            raise DataError(f"{where[0]}: there is no {split} text; give more text, or another valid_share.")
    return splits


def builtin_documents() -> dict[str, list[str]]:
    """Returns documents of English sentences of the built-in corpus: text without rights that needs no network."""
    found = {}
    for split, pairs in builtin_corpus().items():
        sentences = [english for english, _ in pairs]
        found[split] = [" ".join(sentences[at : at + SENTENCES]) for at in range(0, len(sentences), SENTENCES)]
    return found


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yields files; those of a directory in the order of their names, hidden ones left out."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not found:
            raise DataError(f"{path}: this directory has no files; name text files, or a directory with some.")
        yield from found


def _documents(paths: Sequence[Path], kind: str) -> list[str]:
    found: list[str] = []
    for path in paths:
        text = read_text(path)
        found += [text] if kind == "file" else re.split(r"\n\s*\n", text) if kind == "paragraph" else text.split("\n")
    return [document for document in (one.strip("\n") for one in found) if document.strip()]


def _held_out(documents: list[str], config: TextConfig) -> tuple[list[str], list[str]]:
    """Splits documents into training and validation text."""
    if config.split == "document":
        order = np.random.default_rng(config.seed).permutation(len(documents))
        count = max(1, round(config.valid_share * len(documents))) if len(documents) > 1 else 0
        chosen = set(order[:count].tolist())
        kept = [document for i, document in enumerate(documents) if i not in chosen]
        return kept, [documents[i] for i in sorted(chosen)]
    train, valid = [], []
    for document in documents:
        at = round((1.0 - config.valid_share) * len(document))
        at = max(document.rfind("\n", 0, at), document.rfind(" ", 0, at)) + 1 or at  # between words
        train.append(document[:at].strip("\n"))
        valid.append(document[at:].strip("\n"))
    return [one for one in train if one.strip()], [one for one in valid if one.strip()]


class PreparedText:
    """A directory written by `prepare_text`."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts = folder, facts
        self.splits: dict[str, dict[str, int]] = facts["splits"]
        self.fingerprint: str = facts["fingerprint"]
        self._checksums = read_checksums(folder)
        self._ids: dict[str, NDArray[Any]] = {}

    @classmethod
    def open(cls, folder: Path) -> "PreparedText":
        """Opens a prepared directory.

        Raises:
            DataError: It is not one with text for language models, or it is damaged.
        """
        path = folder / "prep.json"
        if not path.is_file():
            raise DataError(f"{folder}: not a prepared directory; create it with `entformer prep {folder} --text FILES`.")
        facts = read_object(path)
        if facts.get("kind") != "text":
            raise DataError(f"{folder}: prepared for translation; prepare text with `entformer prep DIR --text FILES`.")
        try:
            found = cls(folder, facts)
            for split in found.splits.values():
                split["tokens"], split["bytes"], split["documents"]
            if facts["format"] != FORMAT:
                raise DataError(f"{path}: written by another version of entformer; {AGAIN}.")
            facts["tokenizer"]["name"], facts["dtype"]
        except (KeyError, TypeError, AttributeError) as err:
            raise DataError(f"{path}: damaged ({err}); {AGAIN}.") from err
        return found

    @cached_property
    def tokenizer(self) -> DocumentTokenizer:
        path = self.folder / "subwords.model"
        if path.name in self._checksums:
            verify(path, *self._checksums[path.name])
        return open_tokenizer(self.facts["tokenizer"]["name"], path)

    def ids(self, split: str) -> NDArray[Any]:
        """Returns the ids of a split, memory-mapped."""
        if split not in self.splits:
            raise DataError(f"{self.folder} has no {split} text, only {', '.join(self.splits)}.")
        if split not in self._ids:
            path = self.folder / f"{split}.bin"
            if path.name in self._checksums:
                verify(path, *self._checksums[path.name])
            tokens = self.splits[split]["tokens"]
            check_size(path, tokens * np.dtype(self.facts["dtype"]).itemsize)
            self._ids[split] = map_array(path, self.facts["dtype"], tokens)
        return self._ids[split]


@dataclass(frozen=True)
class TextBatch:
    """Rows of text. Documents that begin inside a row are separated in attention by `cu_seqlens`."""

    inputs: Tensor  # (B, L) int64
    labels: Tensor  # (B, L) int64, the token after each input, EOS after the last of a document
    cu_seqlens: Tensor | None  # (n + 1,) int32 over all rows; None: every row is one sequence
    examples: tuple[int, ...]  # numbers of the rows

    @classmethod
    def cut(cls, ids: NDArray[Any], starts: Sequence[int] | NDArray[np.int64], length: int) -> "TextBatch":
        """Returns the rows of `length` tokens that begin at `starts`."""
        rows = np.stack([ids[at : at + length + 1].astype(np.int64) for at in starts])
        if rows.shape[1] <= length:  # the end of the text
            rows = np.concatenate([rows, np.full((len(rows), 1), BOS)], 1)
        inputs, labels = rows[:, :-1], np.where(rows[:, 1:] == BOS, EOS, rows[:, 1:])
        return cls.of(torch.from_numpy(inputs.copy()), torch.from_numpy(labels), tuple(int(at) // length for at in starts))

    @classmethod
    def of(cls, inputs: Tensor, labels: Tensor, examples: tuple[int, ...]) -> "TextBatch":
        """Returns a batch with the borders of its documents."""
        begins = inputs == BOS
        packed = None
        if bool(begins[:, 1:].any()):
            begins = begins.clone()
            begins[:, 0] = True  # a row that continues a document begins a sequence too
            ends = torch.tensor([inputs.numel()], device=inputs.device)
            packed = torch.cat([begins.flatten().nonzero()[:, 0], ends]).to(torch.int32)
        return cls(inputs, labels, packed, examples)

    @property
    def num_labels(self) -> int:
        return self.labels.numel()

    def to(self, device: torch.device) -> "TextBatch":
        packed = None if self.cu_seqlens is None else self.cu_seqlens.to(device)
        return TextBatch(self.inputs.to(device), self.labels.to(device), packed, self.examples)

    def split(self) -> tuple["TextBatch", "TextBatch"]:
        middle = len(self.examples) // 2
        parts = [slice(None, middle), slice(middle, None)]
        first, second = (TextBatch.of(self.inputs[part], self.labels[part], self.examples[part]) for part in parts)
        return first, second

    def describe(self) -> str:
        return f"{self.inputs.shape[1]} tokens"

    def lengths(self, kind: str) -> tuple[Tensor, Tensor]:
        """Returns the numbers of queries and keys (B,); of rows without borders of documents."""
        lengths = torch.full(self.inputs.shape[:1], self.inputs.shape[1])
        return lengths, lengths


class TextBatches:
    """Rows of `length` tokens of a text, shuffled; batch i of an epoch is a function of (seed, epoch, i).

    Args:
        ids: The text.
        length: Tokens of a row.
        rows: Rows of a batch.
        seed: Seed of the shuffling, and of the offset at which the rows of an epoch begin.
        rank, world_size: This process and the number of processes; each gets the same number of batches.
        per_step: Batches of all processes in one step, by default one of each; an epoch has a multiple of them.
    """

    def __init__(
        self,
        ids: NDArray[Any],
        *,
        length: int,
        rows: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        per_step: int | None = None,
    ) -> None:
        self.per_step = world_size if per_step is None else per_step
        if len(ids) < length * self.per_step + 1:
            raise DataError(
                f"the training text has {len(ids)} tokens, fewer than a row of {length} for each of {self.per_step} batches of "
                "a step; give more text, or a smaller training.context."
            )
        self.ids, self.length, self.rows, self.seed, self.rank, self.world_size = ids, length, rows, seed, rank, world_size
        self._planned: tuple[int, NDArray[np.int64]] | None = None

    def batches_in(self, epoch: int) -> int:
        steps = max(1, len(self._plan(epoch)) // (self.rows * self.per_step))
        return steps * self.per_step // self.world_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[TextBatch]:
        starts = self._plan(epoch)
        for index in range(start, self.batches_in(epoch)):
            step, part = divmod(index * self.world_size + self.rank, self.per_step)
            of_all = starts[step * self.rows * self.per_step :][: self.rows * self.per_step]
            yield TextBatch.cut(self.ids, of_all[part :: self.per_step], self.length)

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        """Returns where the rows of an epoch begin, shuffled."""
        if self._planned is None or self._planned[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch))
            spare = (len(self.ids) - 1) % self.length if epoch else 0  # other borders of rows in every epoch but the first
            offset = int(rng.integers(0, spare + 1))
            starts = np.arange(offset, len(self.ids) - self.length, self.length, dtype=np.int64)
            self._planned = (epoch, rng.permutation(starts))
        return self._planned[1]


def windows(ids: NDArray[Any], length: int, stride: int, rows: int) -> Iterator[tuple[TextBatch, int]]:
    """Yields all of a text in windows of at most `length` tokens that advance by `stride`, several in a batch.

    Returns:
        Batches, and how many labels at the end of each row were not in an earlier window: all of the first window, `stride` of
        the others, fewer of the last.
    """
    total = len(ids)
    first = min(length, total)
    yield TextBatch.cut(ids, [0], first), first
    starts = np.arange(stride, total - length + 1, stride)  # whole windows after the first
    for at in range(0, len(starts), rows):
        yield TextBatch.cut(ids, starts[at : at + rows], length), stride
    done = first + stride * len(starts)
    if done < total:
        yield TextBatch.cut(ids, [max(total - length, 0)], min(length, total)), total - done
