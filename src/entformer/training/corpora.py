"""The data of a recipe, ready to train on. In: the recipe's data section and a folder. Out: `Prepared`, made if missing.

Preparing happens once. Later starts open what is there; if the files named in the recipe have changed since, they are
prepared again only when the user said so, with the subwords the model has.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from entformer.cache import cache_root
from entformer.checkpoint.atomic import write_text
from entformer.data.builtin import SOURCE_LANGUAGE, TARGET_LANGUAGE, builtin_corpus
from entformer.data.corpus import Corpus, ParallelText
from entformer.data.downloads import fetch
from entformer.data.prep import prepare
from entformer.data.prep_folder import stored
from entformer.data.prepared import Prepared
from entformer.errors import ArgumentError, DataError
from entformer.text.subwords import Subwords
from entformer.training.recipe import DataConfig

SPLITS = ("train", "valid", "test")


def open_prepared(
    data: DataConfig, folder: Path, say: Callable[[str], None], *, run_subwords: Path | None = None, allow_new: bool = False
) -> Prepared:
    """Open the prepared folder; make it first if it is missing, or if its files changed and `allow_new` says so.

    `run_subwords` are those of a model that is trained already: it cannot change its vocabulary.
    """
    missing = not (folder / "prep.json").is_file()
    changed = None if missing else _changed_file(data, folder)
    if changed is not None and not allow_new:
        raise DataError(
            f"{changed} changed since {folder} was made of it; add --resume-with-new-data to prepare it again and go on "
            "with the new data, or start a new run with another --out."
        )
    if missing or changed is not None:
        with tempfile.TemporaryDirectory() as work:
            corpus = _corpus(data, Path(work), say)
            if corpus is not None:
                _prepare(corpus, data, folder, say, run_subwords or data.subwords, overwrite=changed is not None)
    prepared = Prepared.open(folder)
    if "valid" not in prepared.splits:
        raise ArgumentError(f"{folder} has no validation text, which training needs; prepare it with valid files.")
    return prepared


def _prepare(
    corpus: Corpus,
    data: DataConfig,
    folder: Path,
    say: Callable[[str], None],
    subwords: Path | None,
    *,
    overwrite: bool = False,
) -> None:
    say(f"preparing {corpus.name} in {folder}")
    report = prepare(
        corpus,
        folder,
        vocab_size=data.vocab_size,
        max_length=data.max_length,
        max_ratio=data.max_ratio,
        dedup=data.dedup,
        clean=data.clean,
        lowercase=data.lowercase,
        subwords=None if subwords is None else Subwords.load(subwords),
        seed=data.seed,
        overwrite=overwrite,
    )
    for note in report.notes:
        say(f"  {note}")


def _corpus(data: DataConfig, work: Path, say: Callable[[str], None]) -> Corpus | None:
    """Where the text is, `work` taking what has to be written for it; None if the recipe names a prepared folder only."""
    if data.corpus == "builtin":
        return builtin_text(work, train=data.size)
    if data.corpus is not None:
        say(f"looking for {data.corpus} in {data.from_ or cache_folder()}")
        return named_corpus(data.corpus, source=data.from_, layout=data.layout)
    train = parallel(data.train)
    if train is None:
        return None
    return Corpus(
        source_language=data.source_language or "",
        target_language=data.target_language or "",
        train=(train,),
        valid=parallel(data.valid),
        test=parallel(data.test),
        tokenized=data.tokenized,
        name=data.train[0].name,
    )


def named_corpus(name: str, *, source: str | None = None, layout: str | None = None, cache: Path | None = None) -> Corpus:
    """A corpus of the catalogue, from `source` (a folder or a mirror), the cache, or its home on the network."""
    found = fetch(name, cache_folder() if cache is None else cache, source=source, layout=layout)
    texts = {split: ParallelText(*files) for split, files in found.files.items()}
    return Corpus(
        source_language=found.source_language,
        target_language=found.target_language,
        train=(texts["train"],),
        valid=texts.get("valid"),
        test=texts.get("test"),
        tokenized=found.tokenized,
        name=name,
    )


def builtin_text(folder: Path, *, train: int | None = None) -> Corpus:
    """The built-in corpus, written to TSV files in `folder`."""
    texts = {}
    for split, lines in builtin_corpus(train).items():
        path = folder / f"{split}.tsv"
        write_text(path, "".join(f"{source}\t{target}\n" for source, target in lines))
        texts[split] = ParallelText(path)
    return Corpus(
        SOURCE_LANGUAGE, TARGET_LANGUAGE, (texts["train"],), texts["valid"], texts["test"], tokenized=False, name="builtin"
    )


def cache_folder() -> Path:
    """Where downloads are kept: corpora/ in $ENTFORMER_CACHE, else $XDG_CACHE_HOME/entformer, else ~/.cache/entformer."""
    return cache_root() / "corpora"


def parallel(files: tuple[Path, ...]) -> ParallelText | None:
    """Two files, or one with tabs."""
    return ParallelText(files[0], files[1] if len(files) == 2 else None) if files else None


def _changed_file(data: DataConfig, folder: Path) -> Path | None:
    """A file of the recipe whose content is not what the folder was made of. Files that are gone count as unchanged."""
    facts = stored(folder)
    if facts is None or not data.train:
        return None
    for split in SPLITS:
        before = [digest for text in facts["request"]["files"].get(split, []) for digest in text["files"]]
        for path, digest in zip(getattr(data, split), before, strict=False):
            if path.is_file() and _digest(path) != digest:
                return Path(path)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
