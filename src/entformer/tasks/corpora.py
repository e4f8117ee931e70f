"""Prepares the training data of a recipe, or opens data that are prepared already.

Data are prepared once. If the files named in the recipe have changed since, they are prepared again only on request
(`--resume-with-new-data`), with the subwords of the model.
"""

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from entformer.cache import cache_root
from entformer.data.builtin import SOURCE_LANGUAGE, TARGET_LANGUAGE, builtin_corpus
from entformer.data.corpus import ParallelCorpus, ParallelText
from entformer.data.datasets import SPLITS
from entformer.data.downloads import fetch
from entformer.data.filters import PreprocessConfig
from entformer.data.prep import prepare
from entformer.data.prep_folder import stored
from entformer.data.prepared import Prepared
from entformer.data.texts import find_texts, refuse_swapped
from entformer.decoding.direction import check_source_language
from entformer.errors import ArgumentError, DataError
from entformer.files import file_sha256, write_text
from entformer.text.tokenizer import SubwordTokenizer
from entformer.training.recipe import DataConfig

PREPARATION = ("vocab_size", "max_length", "max_ratio", "dedup", "clean", "lowercase", "seed")
"""Settings of a recipe that are fields of `PreprocessConfig`."""
LANGUAGE_SAMPLE = 200  # pairs from which the languages of the two sides are detected


def open_prepared(
    data: DataConfig, folder: Path, say: Callable[[str], None], *, run_subwords: Path | None = None, allow_new: bool = False
) -> Prepared:
    """Opens the prepared directory; prepares it first if it is missing, or if its files changed and `allow_new` is True.

    Args:
        data: The data section of the recipe.
        folder: The prepared directory.
        say: Called with one line of progress at a time.
        run_subwords: The subwords of a model that is trained already, whose vocabulary cannot change.
        allow_new: Prepare files that changed again.

    Raises:
        DataError: A file changed and `allow_new` is False.
        ArgumentError: The recipe contradicts the prepared directory, or there is no validation text.
    """
    missing = not (folder / "prep.json").is_file()
    changed = None if missing else _changed_file(data, folder)
    if changed is not None and not allow_new:
        raise DataError(
            f"{changed} has changed since {folder} was prepared from it; add --resume-with-new-data to prepare it again and "
            "resume with the new data, or start a new run with another --out."
        )
    if not missing and changed is None and run_subwords is None:  # a resumed run compares its recipes instead
        _refuse_contradictions(data, folder)
    if missing or changed is not None:
        with tempfile.TemporaryDirectory() as work:
            corpus = _find_corpus(data, Path(work), say)
            if corpus is not None:
                say(f"preparing {corpus.name} in {folder}")
                subwords = run_subwords or data.subwords
                report = prepare(
                    corpus,
                    folder,
                    PreprocessConfig(**{name: getattr(data, name) for name in PREPARATION}),
                    subwords=None if subwords is None else SubwordTokenizer.load(subwords),
                    overwrite=changed is not None,
                )
                for note in report.notes:
                    say(f"  {note}")
    prepared = Prepared.open(folder)
    if "valid" not in prepared.splits:
        raise ArgumentError(f"{folder} has no validation text, which training needs; prepare it with valid files.")
    return prepared


def _find_corpus(data: DataConfig, work: Path, say: Callable[[str], None]) -> ParallelCorpus | None:
    """Locates the text of the recipe, writing to `work` if need be; None if the recipe names a prepared directory only."""
    if data.corpus == "builtin":
        corpus = builtin_text(work, train=data.size)
    elif data.corpus is not None:
        say(f"looking for {data.corpus} in {data.from_ or cache_folder()}")
        corpus = named_corpus(data.corpus, source=data.from_, layout=data.layout)
    elif data.train:
        corpus = ParallelCorpus(
            source_language=data.source_language or "",
            target_language=data.target_language or "",
            train=find_split(data, "train"),
            valid=next(iter(find_split(data, "valid")), None),
            test=next(iter(find_split(data, "test")), None),
            name=Path(data.train[0]).name,
        )
        check_sides(corpus)
    else:
        return None
    return corpus if data.tokenized is None else replace(corpus, tokenized=data.tokenized)


def find_split(data: DataConfig, split: str) -> tuple[ParallelText, ...]:
    """Locates the texts of "train", "valid" or "test" that the recipe names."""
    return find_texts(getattr(data, split), data.source_language or "", data.target_language or "", data.columns)


def check_sides(corpus: ParallelCorpus) -> None:
    """Warns if the source side of a text is in the target language; raises if the extensions of its files are swapped."""
    texts = [*corpus.train, *(text for text in (corpus.valid, corpus.test) if text is not None)]
    for text in texts:
        refuse_swapped(text, corpus.source_language, corpus.target_language)
    for text in texts:
        lines = [
            pair.source for pair in islice(text.pairs(nul="keep", allow_truncate=True, drop_malformed=True), LANGUAGE_SAMPLE)
        ]
        direction = f"the languages are {corpus.source_language}-{corpus.target_language}"
        language_warning = check_source_language(
            lines,
            corpus.source_language,
            corpus.target_language,
            subject=f"the source side of {text.name}",
            direction=direction,
        )
        if language_warning is not None:
            warnings.warn(language_warning, stacklevel=2)


def named_corpus(
    name: str, *, source: str | None = None, layout: str | None = None, cache: Path | None = None
) -> ParallelCorpus:
    """Returns a registered corpus from `source` (a directory or a mirror), the cache, or its original address."""
    found = fetch(name, cache_folder() if cache is None else cache, source=source, layout=layout)
    texts = {split: ParallelText(*files) for split, files in found.files.items()}
    return ParallelCorpus(
        source_language=found.source_language,
        target_language=found.target_language,
        train=(texts["train"],),
        valid=texts.get("valid"),
        test=texts.get("test"),
        tokenized=found.tokenized,
        name=name,
    )


def builtin_text(folder: Path, *, train: int | None = None) -> ParallelCorpus:
    """Writes the built-in corpus to TSV files in `folder`."""
    texts = {}
    for split, lines in builtin_corpus(train).items():
        path = folder / f"{split}.tsv"
        write_text(path, "".join(f"{source}\t{target}\n" for source, target in lines))
        texts[split] = ParallelText(path)
    return ParallelCorpus(
        SOURCE_LANGUAGE, TARGET_LANGUAGE, (texts["train"],), texts["valid"], texts["test"], tokenized=False, name="builtin"
    )


def cache_folder() -> Path:
    """Returns the download directory: corpora/ in $ENTFORMER_CACHE, else $XDG_CACHE_HOME/entformer, else ~/.cache/entformer."""
    return cache_root() / "corpora"


def _changed_file(data: DataConfig, folder: Path) -> Path | None:
    """Returns a file of the recipe that changed since it was prepared; missing files count as unchanged."""
    facts = stored(folder)
    if facts is None or not data.train:
        return None
    for split in SPLITS:
        before = [digest for text in facts["request"]["files"].get(split, []) for digest in text["files"]]
        try:
            files = [path for text in find_split(data, split) for path in text.files]
        except DataError:  # missing
            continue
        for path, digest in zip(files, before, strict=False):
            if path.is_file() and file_sha256(path) != digest:
                return path
    return None


def _refuse_contradictions(data: DataConfig, folder: Path) -> None:
    """Raises if the recipe sets what the prepared directory was not made with: it would have no effect."""
    facts = stored(folder)
    if facts is None:
        return
    request: dict[str, Any] = facts["request"]
    prepared_with = {name: {**request, **request["rules"]}[name] for name in PREPARATION}
    names = ("tokenized", "corpus") if data.corpus is not None else ("tokenized", "source_language", "target_language")
    prepared_with |= {name: facts[name] for name in names}
    for name, before in prepared_with.items():
        requested = getattr(data, name)
        if name in data.model_fields_set and requested is not None and before is not None and requested != before:
            raise ArgumentError(
                f"data.{name} is {requested}, but {folder} was prepared with {before}; remove data.{name}, or set "
                "data.prepared to another directory to prepare the text again."
            )
