"""A prepared folder, opened. In: a folder written by `prepare`. Out: its languages, vocabulary, ids and held-out text."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from entformer.data.prep_folder import FORMAT
from entformer.data.prep_report import PrepReport
from entformer.data.store import TokenStore
from entformer.errors import DataError
from entformer.text.lines import read_lines
from entformer.text.subwords import Subwords


class Prepared:
    """What training and scoring need to know about their data."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.corpus: str = facts["corpus"]
        self.source_language: str = facts["source_language"]
        self.target_language: str = facts["target_language"]
        self.tokenized: bool = facts["tokenized"]  # punctuation is parted from the words: score the tokens as they are
        self.lowercase: bool = facts["lowercase"]  # text to translate must be lower-cased first
        self.splits: tuple[str, ...] = tuple(facts["splits"])
        self.fingerprint: str = facts["fingerprint"]
        self._facts = facts

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        folder = Path(folder)
        path = folder / "prep.json"
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as problem:
            what = "is no prepared folder: prep.json is missing" if folder.is_dir() else "there is no such folder"
            raise DataError(f"{folder}: {what}; make one with `entformer prep`.") from problem
        except (OSError, ValueError) as problem:
            raise DataError(f"{path}: cannot be read ({problem}); run `entformer prep` again.") from problem
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise DataError(f"{path}: written by another version of entformer; run `entformer prep` again.")
        return cls(folder, facts)

    @cached_property
    def subwords(self) -> Subwords:
        return Subwords.load(self.folder / "subwords.model")

    @property
    def report(self) -> PrepReport:
        return PrepReport.from_dict(self._facts["report"])

    def store(self, split: str) -> TokenStore:
        """The ids of "train", "valid" or "test"."""
        self._check(split)
        return TokenStore.open(self.folder, split)

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """Source and target lines of "valid" or "test", cleaned and lower-cased as the training text is."""
        self._check(split)
        if split == "train":
            raise DataError(f"{self.folder}: the training text is kept as ids only; use store('train').")
        both = [list(read_lines(self.folder / f"{split}.{side}.txt", nul="keep")) for side in ("source", "target")]
        return both[0], both[1]

    def _check(self, split: str) -> None:
        if split not in self.splits:
            raise DataError(
                f"{self.folder}: there is no {split!r} part, only {', '.join(self.splits)}; give the files to `entformer prep`."
            )
