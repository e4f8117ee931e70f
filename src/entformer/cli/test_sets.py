"""Texts to score on. In: a name such as "multi30k" or "multi30k/tok:valid", or a part of a prepared folder. Out: `TestSet`."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from entformer.checkpoint import RunFolder
from entformer.checkpoint.atomic import read_json
from entformer.data.builtin import SOURCE_LANGUAGE, TARGET_LANGUAGE, builtin_corpus
from entformer.data.corpus import ParallelText
from entformer.data.downloads import fetch
from entformer.data.prepared import Prepared
from entformer.data.texts import find_text, is_pair, is_tsv, refuse_swapped
from entformer.errors import ArgumentError, DataError
from entformer.training.corpora import cache_folder

PARTS = ("test", "valid")


@dataclass(frozen=True)
class TestSet:
    """Sources and one set of references, line by line."""

    __test__ = False  # not a class of tests, whatever pytest thinks of its name

    sources: list[str]
    references: list[str]
    shown: str
    source_language: str
    target_language: str
    tokenized: bool
    lowercase: bool

    def turned(self) -> "TestSet":
        """The other direction."""
        return replace(
            self,
            sources=self.references,
            references=self.sources,
            source_language=self.target_language,
            target_language=self.source_language,
        )


def named_test_set(name: str, source: str | None = None) -> TestSet:
    """A test set of a corpus known by name: NAME, NAME:valid, NAME/LAYOUT, NAME/LAYOUT:valid. `source`: a folder or mirror."""
    corpus, _, part = name.partition(":")
    corpus, _, layout = corpus.partition("/")
    part = part or "test"
    if part not in PARTS:
        raise ArgumentError(f"the test set {name!r} ends in {part!r}; it must be {' or '.join(PARTS)}.")
    if corpus == "builtin":
        pairs = builtin_corpus()[part]
        sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
        return TestSet(sources, references, f"{part} of builtin", SOURCE_LANGUAGE, TARGET_LANGUAGE, False, False)
    files = fetch(corpus, cache_folder(), source=source, layout=layout or None)
    text = list(ParallelText(*files.files[part]).pairs(nul="keep"))
    return TestSet(
        [pair.source for pair in text],
        [pair.target for pair in text],
        f"{part} of {corpus} ({files.layout})",
        files.source_language,
        files.target_language,
        files.tokenized,
        files.lowercase,
    )


def text_test_set(name: str, run: Path | None) -> TestSet:
    """A test set in files, named as `entformer prep` takes them; the run's model.json gives languages and kind of text."""
    facts = {} if run is None else run_facts(run)
    source_language, target_language = str(facts.get("source_language", "")), str(facts.get("target_language", ""))
    if not facts and not (is_tsv(name) or is_pair(name)):
        raise ArgumentError(
            f"--test {name} is a prefix, which needs the languages of a run; add --run RUN, or name SOURCE,REFERENCE."
        )
    text = find_text(name, source_language, target_language)
    if facts:
        refuse_swapped(text, source_language, target_language)
    pairs = list(text.pairs(nul="keep"))
    return TestSet(
        [pair.source for pair in pairs],
        [pair.target for pair in pairs],
        text.name,
        source_language,
        target_language,
        bool(facts.get("tokenized")),
        bool(facts.get("lowercase")),
    )


def run_facts(run: Path) -> dict[str, Any]:
    """model.json of a run."""
    folder = RunFolder(run)
    if not folder.model.is_file():
        raise DataError(f"{run} is not a run of entformer: it has no model.json.")
    return read_json(folder.model)


def prepared_test_set(part: str, data: Path | None, run: Path | None) -> TestSet:
    """ "test" or "valid" of a prepared folder: the one given, or the one the run was trained from."""
    prepared = Prepared.open(data) if data is not None else prepared_of_run(run)
    sources, references = prepared.text(part)
    languages = prepared.source_language, prepared.target_language
    return TestSet(sources, references, f"{part} of {prepared.folder}", *languages, prepared.tokenized, prepared.lowercase)


def prepared_of_run(run: Path | None) -> Prepared:
    """The prepared data a run was trained on, wherever its recipe says they are; a warning if they have changed since."""
    if run is None:
        raise ArgumentError("a prepared test set needs --run or --data.")
    facts = run_facts(run)
    folder = RunFolder(run)
    places = [folder.prepared]
    if folder.recipe.is_file():
        try:
            recipe = yaml.safe_load(folder.recipe.read_text(encoding="utf-8"))
            stored = (recipe["data"] or {}).get("prepared")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as err:
            raise DataError(f"{folder.recipe} is damaged; restore it, or give the data with --data FOLDER.") from err
        if stored:
            places.insert(0, Path(stored))
    found = next((place for place in places if (place / "prep.json").is_file()), None)
    if found is None:
        looked = " and ".join(str(place) for place in places)
        raise DataError(f"the prepared data of {run} are not there (looked in {looked}); give them with --data FOLDER.")
    prepared = Prepared.open(found)
    if prepared.fingerprint != facts.get("data_fingerprint"):
        warnings.warn(f"the data in {found} have changed since {run} was trained.", stacklevel=3)
    return prepared
