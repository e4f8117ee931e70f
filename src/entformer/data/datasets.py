"""Datasets known by name, read from `datasets.yaml`: their files, checksums, splits and layouts."""

from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml

from entformer.errors import ArgumentError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Download:
    """A file on the network."""

    url: str
    sha256: str | None = None  # None: not published; recorded at the first download and compared from then on

    @property
    def file(self) -> str:
        """Name of the file in the cache and on a mirror."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Part:
    """Two files with the same number of lines that make up a split or a part of one."""

    source: str
    target: str
    archive: str | None = None  # the download that contains both; None: they are downloads themselves
    markup: str = "none"  # "none"; "segments" (SGML or XML: the text of <seg>); "tagged" (lines that start with < are dropped)

    @property
    def downloads(self) -> set[str]:
        return {self.archive} if self.archive else {self.source, self.target}


@dataclass(frozen=True)
class Layout:
    """One form of a dataset's text, such as "raw" or "tok"."""

    name: str
    downloads: tuple[Download, ...]
    splits: dict[str, tuple[Part, ...]]
    tokenized: bool = False
    lowercase: bool = False


@dataclass(frozen=True)
class DatasetInfo:
    """A named dataset."""

    name: str
    source_language: str
    target_language: str
    layouts: tuple[Layout, ...]  # the first one is downloaded by default
    vocab_size: int = 32000
    pairs: dict[str, int] = field(default_factory=dict)  # sentence pairs of each split, where known


def get_dataset(name: str) -> DatasetInfo:
    """Returns the dataset of this name.

    Raises:
        ArgumentError: There is no such dataset.
    """
    if name not in CORPORA:
        raise ArgumentError(f"there is no corpus {name!r}; choose builtin (needs no download), {', '.join(CORPORA)}.")
    return CORPORA[name]


def _parse_dataset(name: str, entry: dict[str, Any]) -> DatasetInfo:
    source, target = entry["languages"]
    layouts = []
    for layout_name, layout in entry["layouts"].items():
        splits = {}
        for split, parts in layout.pop("splits").items():
            found = []
            for part in parts:
                files = part.pop("files")
                pair = (files.format(source), files.format(target)) if isinstance(files, str) else files
                found.append(Part(*pair, **part))
            splits[split] = tuple(found)
        downloads = tuple(Download(url, sha256) for url, sha256 in layout.pop("downloads").items())
        layouts.append(Layout(layout_name, downloads, splits, **layout))
    sizes = {key: entry[key] for key in ("vocab_size", "pairs") if key in entry}
    return DatasetInfo(name, source, target, tuple(layouts), **sizes)


def _load() -> dict[str, DatasetInfo]:
    text = resources.files("entformer.data").joinpath("datasets.yaml").read_text(encoding="utf-8")
    return {name: _parse_dataset(name, entry) for name, entry in yaml.safe_load(text).items()}


CORPORA: dict[str, DatasetInfo] = _load()
