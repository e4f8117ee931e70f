"""Reader of a prepared directory: languages, vocabulary, token ids and held-out text.

Each file is compared with its checksum on first use.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from entformer.data.prep_folder import read_checksums, read_facts, verify
from entformer.data.store import SIDES, TokenStore, store_files
from entformer.errors import DataError
from entformer.text.lines import read_lines
from entformer.text.tokenizer import SubwordTokenizer


class Prepared:
    """A directory written by `prepare`."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.corpus: str = facts["corpus"]
        self.source_language: str = facts["source_language"]
        self.target_language: str = facts["target_language"]
        self.tokenized: bool = facts["tokenized"]  # punctuation is separated by spaces: score the tokens as they are
        self.lowercase: bool = facts["lowercase"]  # text to translate must be lowercased first
        self.splits: tuple[str, ...] = tuple(facts["splits"])
        self.fingerprint: str = facts["fingerprint"]
        self._checksums = read_checksums(folder)
        self._stores: dict[str, TokenStore] = {}

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        """Opens a prepared directory.

        Raises:
            DataError: The directory is not a prepared one, or prep.json is damaged.
        """
        folder = Path(folder)
        return cls(folder, read_facts(folder))

    @cached_property
    def subwords(self) -> SubwordTokenizer:
        self._verify("subwords.model")
        return SubwordTokenizer.load(self.folder / "subwords.model")

    def store(self, split: str) -> TokenStore:
        """Returns the token ids of "train", "valid" or "test"."""
        self._check(split)
        if split not in self._stores:
            self._verify(*store_files(split))
            self._stores[split] = TokenStore.open(self.folder, split)
        return self._stores[split]

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """Returns the source and target lines, cleaned and lowercased. Those of "train" are decoded from the token ids."""
        self._check(split)
        if split == "train":
            store = self.store("train")
            pairs = [[self.subwords.decode(side.tolist()) for side in store[i]] for i in range(len(store))]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        names = [f"{split}.{side}.txt" for side in SIDES]
        self._verify(*names)
        source, target = (list(read_lines(self.folder / name, nul="keep")) for name in names)
        return source, target

    def _verify(self, *names: str) -> None:
        for name in names:
            if name in self._checksums:
                verify(self.folder / name, *self._checksums[name])

    def _check(self, split: str) -> None:
        if split not in self.splits:
            raise DataError(
                f"{self.folder}: no {split!r} split, only {', '.join(self.splits)}: pass the files to `entformer prep`."
            )
