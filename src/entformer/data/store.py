"""Memory-mapped token ids of a parallel corpus.

Files of a split in the prepared directory, little-endian:

    train.source.bin        ids of all sentences, concatenated (uint16, or uint32 for large vocabularies)
    train.source.index.bin  int64, N + 1 offsets: sentence i is ids[index[i] : index[i + 1]]
    train.target.bin, train.target.index.bin
    train.lines.bin         int64, line number of each pair in the corpus
    train.json              counts, dtype of the ids, fingerprint
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from entformer.errors import DataError
from entformer.files import read_json

SIDES = ("source", "target")
FORMAT = 1
AGAIN = "run `entformer prep` again"

Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Side:
    """All sentences of one language, concatenated."""

    ids: Ids  # (tokens,)
    index: NDArray[np.int64]  # (N + 1,)

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self.index).astype(np.int32)


class TokenStore:
    """A sequence of pairs of id arrays without BOS and EOS; the arrays are views of the files."""

    def __init__(self, source: Side, target: Side, lines: NDArray[np.int64], *, fingerprint: str, name: str) -> None:
        self.source = source
        self.target = target
        self.lines = lines
        self.fingerprint = fingerprint
        self.name = name
        self.source_lengths = source.lengths  # (N,) int32, without EOS
        self.target_lengths = target.lengths

    @classmethod
    def open(cls, directory: Path, split: str) -> "TokenStore":
        """Opens one split of a prepared directory."""
        directory = Path(directory)
        path = directory / f"{split}.json"
        if not path.exists():
            raise DataError(f"{path}: there is no such split of the prepared data; create it with `entformer prep`.")
        facts = read_object(path)
        if facts.get("format") != FORMAT:
            raise DataError(f"{path}: written by another version of entformer; {AGAIN}.")
        sides = [
            Side(
                map_array(directory / f"{split}.{side}.bin", facts["dtype"], facts[f"{side}_tokens"]),
                map_array(directory / f"{split}.{side}.index.bin", "<i8", facts["examples"] + 1),
            )
            for side in SIDES
        ]
        lines = map_array(directory / f"{split}.lines.bin", "<i8", facts["examples"])
        return cls(sides[0], sides[1], lines, fingerprint=facts["fingerprint"], name=f"{directory.name}/{split}")

    @classmethod
    def from_examples(cls, examples: Iterable[tuple[Sequence[int], Sequence[int]]], *, name: str = "examples") -> "TokenStore":
        """Returns an in-memory store, for synthetic tasks and tests."""
        pairs = list(examples)
        digest = hashlib.sha256()
        sides = []
        for which in (0, 1):
            arrays = [np.asarray(pair[which], dtype=np.uint32) for pair in pairs]
            index = np.zeros(len(pairs) + 1, dtype=np.int64)
            np.cumsum([len(array) for array in arrays], out=index[1:])
            ids = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.uint32)
            digest.update(index.tobytes() + ids.tobytes())
            sides.append(Side(ids, index))
        lines = np.arange(1, len(pairs) + 1, dtype=np.int64)
        return cls(sides[0], sides[1], lines, fingerprint=digest.hexdigest()[:16], name=name)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, i: int) -> tuple[Ids, Ids]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"example {i} is not in {self.name}, which has {len(self)}")
        i %= len(self)
        source, target = self.source, self.target
        return source.ids[source.index[i] : source.index[i + 1]], target.ids[target.index[i] : target.index[i + 1]]


class StoreWriter:
    """Context manager that writes a store; the store is valid once the block ends without an error."""

    def __init__(self, directory: Path, split: str, *, vocab_size: int) -> None:
        self.directory, self.split = directory, split
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.examples = 0
        self.tokens = [0, 0]
        self._digest = hashlib.sha256()
        self._files: list[BinaryIO] = []
        self.fingerprint = ""

    def __enter__(self) -> "StoreWriter":
        self._files = [(self.directory / name).open("wb") for name in store_files(self.split)[:-1]]
        for file in (self._files[1], self._files[3]):
            file.write(np.zeros(1, dtype="<i8").tobytes())
        return self

    def add(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], lines: Sequence[int]) -> None:
        """Appends pairs of id lists and their line numbers."""
        if not pairs:
            return
        for which in (0, 1):
            lengths = np.array([len(pair[which]) for pair in pairs], dtype="<i8")
            ids = np.fromiter((i for pair in pairs for i in pair[which]), dtype=self.dtype, count=int(lengths.sum()))
            index = self.tokens[which] + np.cumsum(lengths)
            self._files[2 * which].write(ids.tobytes())
            self._files[2 * which + 1].write(index.astype("<i8").tobytes())
            self._digest.update(lengths.tobytes() + ids.astype("<u4").tobytes())
            self.tokens[which] = int(index[-1])
        self._files[4].write(np.asarray(lines, dtype="<i8").tobytes())
        self.examples += len(pairs)

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        for file in self._files:
            file.close()
        if kind is not None:
            return
        self.fingerprint = self._digest.hexdigest()[:16]
        facts = {
            "format": FORMAT,
            "examples": self.examples,
            "source_tokens": self.tokens[0],
            "target_tokens": self.tokens[1],
            "dtype": self.dtype.str,
            "fingerprint": self.fingerprint,
        }
        (self.directory / f"{self.split}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def store_files(split: str) -> list[str]:
    """Returns the file names of a store."""
    return [f"{split}.{side}{kind}.bin" for side in SIDES for kind in ("", ".index")] + [f"{split}.lines.bin", f"{split}.json"]


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a prepared directory."""
    try:
        return read_json(path)
    except DataError as err:
        raise DataError(f"{path}: damaged ({err}); {AGAIN}.") from err


def check_size(path: Path, size: int) -> None:
    """Raises `DataError` if a file is missing or has another size."""
    try:
        found = path.stat().st_size
    except OSError as err:
        raise DataError(f"{path}: missing ({err.strerror}); {AGAIN}.") from err
    if found != size:
        raise DataError(f"{path}: has {found} bytes, expected {size} (truncated copy or full disk); {AGAIN}.")


def map_array(path: Path, dtype: str, count: int) -> NDArray[Any]:
    """Returns the file as a memory-mapped array, after checking its size."""
    check_size(path, count * np.dtype(dtype).itemsize)
    if count == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype=dtype)
    try:
        # asarray: a plain array over the map is several times faster to index than numpy's memmap class.
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(count,)))
    except (OSError, ValueError) as err:
        raise DataError(f"{path}: cannot be read ({err}).") from err
