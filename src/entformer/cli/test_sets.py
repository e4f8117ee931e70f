"""Test sets: of a named corpus ("multi30k/tok:valid"), of a prepared directory or of text files."""

import contextlib
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from entformer.analysis.training_text import TrainingText, read_training_text
from entformer.checkpoint import LoadedRun, RunFolder
from entformer.data.builtin import SOURCE_LANGUAGE, TARGET_LANGUAGE, builtin_corpus
from entformer.data.corpus import ParallelText
from entformer.data.downloads import fetch
from entformer.data.prepared import Prepared
from entformer.data.texts import find_text, is_pair, is_tsv, refuse_swapped
from entformer.errors import ArgumentError, DataError, EntformerError
from entformer.files import read_json
from entformer.tasks.corpora import cache_folder

PARTS = ("test", "valid")
EXAMPLES = 4  # sentences offered on a page
EXAMPLE_LENGTHS = range(20, 90)  # characters


@dataclass(frozen=True)
class TestSet:
    """Sources and one set of references, line by line."""

    __test__ = False  # pytest would collect it by its name

    sources: list[str]
    references: list[str]
    shown: str
    source_language: str
    target_language: str
    tokenized: bool
    lowercase: bool

    def reversed(self) -> "TestSet":
        """Returns the test set of the other direction."""
        return replace(
            self,
            sources=self.references,
            references=self.sources,
            source_language=self.target_language,
            target_language=self.source_language,
        )


def find_test_set(name: str | None, *, test: str | None, data: Path | None, run: Path | None, source: str | None) -> TestSet:
    """Returns the test set that the options of `entformer score` name."""
    if test is not None:
        return text_test_set(test, run)
    if name in (None, *PARTS) or data is not None:
        return prepared_test_set(name or "test", data, run)
    found = named_test_set(str(name), source)
    return found if run is None else in_direction_of(found, run)


def in_direction_of(test_set: TestSet, run: Path) -> TestSet:
    """Returns the test set, reversed if the run translates the other way."""
    facts = run_facts(run)
    direction = facts["source_language"], facts["target_language"]
    for one in (test_set, test_set.reversed()):
        if (one.source_language, one.target_language) == direction:
            return one
    raise ArgumentError(
        f"{run} translates {direction[0]} -> {direction[1]}, {test_set.shown} is "
        f"{test_set.source_language} -> {test_set.target_language}; choose a test set of the run's languages."
    )


def named_test_set(name: str, source: str | None = None) -> TestSet:
    """Returns a test set of a named corpus: NAME, NAME:valid, NAME/LAYOUT or NAME/LAYOUT:valid."""
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
    return TestSet(
        *ParallelText(*files.files[part]).lines(),
        f"{part} of {corpus} ({files.layout})",
        files.source_language,
        files.target_language,
        files.tokenized,
        files.lowercase,
    )


def text_test_set(name: str, run: Path | None) -> TestSet:
    """Returns a test set of files named as for `entformer prep`; languages come from the run."""
    facts = {} if run is None else run_facts(run)
    source_language, target_language = str(facts.get("source_language", "")), str(facts.get("target_language", ""))
    if not facts and not (is_tsv(name) or is_pair(name)):
        raise ArgumentError(
            f"--test {name} is a prefix, which needs the languages of a run; add --run RUN, or give SOURCE,REFERENCE."
        )
    text = find_text(name, source_language, target_language)
    if facts:
        refuse_swapped(text, source_language, target_language)
    return TestSet(
        *text.lines(),
        text.name,
        source_language,
        target_language,
        bool(facts.get("tokenized")),
        bool(facts.get("lowercase")),
    )


def run_facts(run: Path) -> dict[str, Any]:
    """Returns model.json of a run."""
    folder = RunFolder(run)
    folder.check()
    return read_json(folder.model)


def prepared_test_set(part: str, data: Path | None, run: Path | None) -> TestSet:
    """Returns "test", "valid" or "train" of a prepared directory, by default the one the run was trained on."""
    prepared = Prepared.open(data) if data is not None else prepared_of_run(run)
    sources, references = prepared.text(part)
    languages = prepared.source_language, prepared.target_language
    return TestSet(sources, references, f"{part} of {prepared.folder}", *languages, prepared.tokenized, prepared.lowercase)


def prepared_of_run(run: Path | None) -> Prepared:
    """Returns the prepared data a run was trained on; warns if it has changed since."""
    if run is None:
        raise ArgumentError("a prepared test set needs --run or --data.")
    facts = run_facts(run)
    folder = RunFolder(run)
    candidates = [folder.prepared]
    if folder.recipe.is_file():
        try:
            recipe = yaml.safe_load(folder.recipe.read_text(encoding="utf-8"))
            stored = (recipe["data"] or {}).get("prepared")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as err:
            raise DataError(f"{folder.recipe} is damaged; restore it, or give the data with --data DIR.") from err
        if stored:
            candidates.insert(0, Path(stored))
    found = next((path for path in candidates if (path / "prep.json").is_file()), None)
    if found is None:
        looked = " and ".join(str(path) for path in candidates)
        raise DataError(f"the prepared data of {run} was not found (looked in {looked}); give it with --data DIR.")
    prepared = Prepared.open(found)
    if prepared.fingerprint != facts.get("data_fingerprint"):
        warnings.warn(f"the data in {found} has changed since {run} was trained.", stacklevel=3)
    return prepared


def sample_data(run: Path, loaded: LoadedRun) -> tuple[list[str], TrainingText | None]:
    """Returns a few sentences of the run's own test data, and what it was trained on; none if the data is gone."""
    with contextlib.suppress(EntformerError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data that changed since training is still good for examples
        prepared = prepared_of_run(run)
        return _examples(prepared, loaded.source_language), read_training_text(prepared, loaded.source_language)
    return [], None


def _examples(prepared: Prepared, source_language: str) -> list[str]:
    part = next((name for name in PARTS if name in prepared.splits), None)
    if part is None:
        return []
    sources, targets = prepared.text(part)
    lines = sources if prepared.source_language == source_language else targets
    fitting = [line for line in dict.fromkeys(lines) if len(line) in EXAMPLE_LENGTHS]
    questions = [line for line in fitting if line.rstrip().endswith("?")][:1]
    spread = fitting[:: max(1, len(fitting) // EXAMPLES)]
    return list(dict.fromkeys([*spread[: EXAMPLES - len(questions)], *questions]))
