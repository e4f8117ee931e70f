"""Reader of a prepared directory: languages, vocabulary, token ids and held-out text.

Each file is compared with its checksum on first use.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from entformer.data.prep_folder import read_checksums, read_facts, verify
from entformer.data.store import AGAIN, TokenStore, store_files
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
        self._facts = facts
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
        subwords = SubwordTokenizer.load(self.folder / "subwords.model")
        expected = self._facts["report"].get("subwords_fingerprint", subwords.fingerprint)
        if subwords.fingerprint != expected:
            raise DataError(
                f"{self.folder / 'subwords.model'}: the vocabulary (fingerprint {subwords.fingerprint}) is not that of the ids "
                f"({expected}); {AGAIN}."
            )
        return subwords

    def store(self, split: str) -> TokenStore:
        """Returns the token ids of "train", "valid" or "test"."""
        self._check(split)
        if split not in self._stores:
            files = store_files(split)
            self._verify(*files)
            store = TokenStore.open(self.folder, split)
            if not self._checksums:  # written by an older version: check at least the range of the ids
                store.check_ids(self.subwords.size)
            self._stores[split] = store
        return self._stores[split]

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """Returns the source and target lines of "valid" or "test", cleaned and lowercased like the training text."""
        self._check(split)
        if split == "train":
            raise DataError(f"{self.folder}: the training text is stored as ids only; use store('train').")
        names = [f"{split}.{side}.txt" for side in ("source", "target")]
        self._verify(*names)
        both = [list(read_lines(self.folder / name, nul="keep")) for name in names]
        pairs = len(self.store(split))
        for name, lines in zip(names, both, strict=True):
            if len(lines) != pairs:
                raise DataError(
                    f"{self.folder / name}: has {len(lines)} lines, and the ids of {split!r} are of {pairs}; {AGAIN}."
                )
        return both[0], both[1]

    def _verify(self, *names: str) -> None:
        for name in names:
            if name in self._checksums:
                verify(self.folder / name, *self._checksums[name])

    def _check(self, split: str) -> None:
        if split not in self.splits:
            raise DataError(
                f"{self.folder}: no {split!r} split, only {', '.join(self.splits)}: pass the files to `entformer prep`."
            )
