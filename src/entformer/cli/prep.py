"""`entformer prep`: text files or a named corpus in, a prepared folder out, and a report of what was found.

A text is named in one of three ways: `data/train` stands for data/train.en and data/train.de (plain or .gz, by --languages),
`a.txt,b.txt` names the two files, `pairs.tsv` holds both sides in its columns.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from entformer.data import datasets
from entformer.data.corpus import Corpus
from entformer.data.filters import REASONS
from entformer.data.prep import prepare
from entformer.data.prep_report import PrepReport, TextReport
from entformer.data.texts import find_text, is_tsv
from entformer.errors import ArgumentError
from entformer.text.lines import LineCounter, TextIssues
from entformer.text.tokenizer import SubwordTokenizer
from entformer.training.corpora import builtin_text, check_sides, named_corpus

USUAL_VOCABULARY = 32000


def run(
    out: Path,
    *,
    corpus: str | None = None,
    from_: str | None = None,
    layout: str | None = None,
    languages: str | None = None,
    train: Sequence[str] = (),
    valid: str | None = None,
    test: str | None = None,
    columns: str | None = None,
    vocab_size: int | None = None,
    subwords: Path | None = None,
    max_length: int = 256,
    max_ratio: float = 4.0,
    dedup: bool = False,
    clean: bool = False,
    lowercase: bool = False,
    tokenized: bool | None = None,
    keep_identical: bool = False,
    allow_truncate: bool = False,
    sample: int = 2_000_000,
    seed: int = 1,
    batch_tokens: int = 8192,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Prepare, then print the report: tables, or one JSON object on standard output."""
    given = {"--languages": languages, "--train": train, "--valid": valid, "--test": test}
    if corpus is not None and any(given.values()):
        which = ", ".join(option for option, value in given.items() if value)
        raise ArgumentError(f"--corpus {corpus} brings its own languages and files; leave out {which}.")
    if corpus is None and (from_ is not None or layout is not None):
        raise ArgumentError("--from and --layout belong to a named corpus; add --corpus NAME.")
    if corpus is None and (not train or languages is None):
        raise ArgumentError("give --languages en-de and --train, or a named corpus with --corpus.")
    if subwords is not None and vocab_size is not None:
        raise ArgumentError(f"--vocab-size {vocab_size} has no effect: the vocabulary is that of --subwords {subwords}.")
    names = [*train, *(name for name in (valid, test) if name)]
    if columns is not None and not any(map(is_tsv, names)):
        raise ArgumentError(f"--columns {columns} has no effect: no text is a .tsv file.")
    notes = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
    with bar, TemporaryDirectory() as work:
        task = bar.add_task("reading", total=None)
        last = ""

        def progress(what: str, done: int, total: int | None) -> None:
            nonlocal last
            bar.update(task, description=what, completed=done, total=total)
            if not notes.is_terminal and what != last:
                notes.print(f"{what} ...", highlight=False)
            last = what

        if corpus is not None:
            texts, usual = _named_corpus(corpus, from_, layout, Path(work))
        else:
            texts, usual = _own_files(languages or "", train, valid, test, columns or "1,2"), USUAL_VOCABULARY
        report = prepare(
            texts if tokenized is None else replace(texts, tokenized=tokenized),
            out,
            vocab_size=vocab_size or usual,
            max_length=max_length,
            max_ratio=max_ratio,
            dedup=dedup,
            clean=clean,
            lowercase=lowercase,
            keep_identical=keep_identical,
            allow_truncate=allow_truncate,
            subwords=SubwordTokenizer.load(subwords) if subwords is not None else None,
            sample=sample,
            seed=seed,
            batch_tokens=batch_tokens,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False))
    else:
        print_report(report, Console(highlight=False, soft_wrap=True))


def _own_files(languages: str, train: Sequence[str], valid: str | None, test: str | None, columns: str) -> Corpus:
    source_language, target_language = parse_languages(languages)
    both = parse_columns(columns)
    texts = [find_text(name, source_language, target_language, both) for name in train]
    held_out = [find_text(name, source_language, target_language, both) if name else None for name in (valid, test)]
    corpus = Corpus(source_language, target_language, tuple(texts), held_out[0], held_out[1])
    check_sides(corpus)
    return corpus


def _named_corpus(name: str, source: str | None, layout: str | None, work: Path) -> tuple[Corpus, int]:
    """A corpus of the catalog and the vocabulary that suits it; the built-in one is written to `work`."""
    if name == "builtin":
        if source is not None or layout is not None:
            raise ArgumentError("the built-in corpus is made here and has one layout; leave out --from and --layout.")
        return builtin_text(work), USUAL_VOCABULARY
    known = datasets.corpus(name)
    return named_corpus(name, source=source, layout=layout), known.vocab_size


def parse_languages(text: str) -> tuple[str, str]:
    """ "en-de" as ("en", "de")."""
    parts = text.split("-")
    if len(parts) != 2 or not all(parts):
        raise ArgumentError(f"--languages {text!r} is not of the form en-de: source, hyphen, target.")
    return parts[0], parts[1]


def parse_columns(text: str) -> tuple[int, int]:
    """ "1,2" as (1, 2)."""
    try:
        first, second = (int(part) for part in text.split(","))
    except ValueError as problem:
        raise ArgumentError(f"--columns {text!r} is not of the form 1,2: two columns, counted from 1.") from problem
    return first, second


# ---- what people see ---------------------------------------------------------------------------------------------------


def print_report(report: PrepReport, console: Console) -> None:
    """Counts, what was left out and where, held-out text found in the training text, lengths, vocabulary, padding."""
    table = _table("", "pairs", "kept", "left out")
    for label, text in [*_named(report.train), *report.held_out.items()]:
        table.add_row(label, *_counts(text))
    console.print(table)
    _print_dropped(report, console)
    for remark in remarks(report):
        console.print(f"note: {remark}", markup=False)
    lengths = _table("subwords", "tokens", "mean", "median", "90%", "99%", "longest")
    for side, language in (("source", report.source_language), ("target", report.target_language)):
        found = report.sides[side]
        lengths.add_row(f"{side} ({language})", f"{found.tokens:,}", f"{found.mean:.1f}", *map(str, found.percentiles.values()))
    console.print(lengths)
    console.print(f"vocabulary: {report.vocabulary:,} subwords for both languages ({report.subwords_fingerprint})")
    console.print(
        f"batches of {report.batch_tokens} tokens: {report.batches:,} an epoch, {100 * report.padding_share:.1f}% padding"
    )
    console.print(f"prepared in {report.seconds:.1f} s: {report.folder} ({report.fingerprint})", markup=False)


def _print_dropped(report: PrepReport, console: Console) -> None:
    rows = [(label, reason, counter) for label, text in _named(report.train) for reason, counter in text.dropped.items()]
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("left out", justify="right")
    table.add_column("why")
    table.add_column("first lines")
    for label, reason, counter in rows:
        where = _lines(counter) + (f" of {label}" if len(report.train) > 1 else "")
        table.add_row(f"{counter.count:,}", REASONS[reason], where)
    console.print(table)


def remarks(report: PrepReport) -> list[str]:
    """Everything odd that is no reason to stop, a sentence each."""
    found = list(report.notes)
    for split, overlap in report.overlap.items():
        if overlap.sources:
            where = f" (training {_lines(overlap.train_lines, True)}; --dedup drops them)" if overlap.pairs else ""
            found.append(
                f"sources of the {split} text that are in the training text too: {overlap.sources} of "
                f"{report.held_out[split].pairs:,}, with the same translation: {overlap.pairs}{where}."
            )
    for text in report.train:
        if text.duplicates.count and "duplicate" not in text.dropped:
            found.append(f"{text.duplicates.count:,} training pairs repeat an earlier one ({_lines(text.duplicates, True)}).")
    for label, text in [*_named(report.train), *report.held_out.items()]:
        if text.found.left_over:
            found.append(f"{label}: {text.found.left_over:,} lines at the end of the longer file have no partner.")
        for side, odd in (("source", text.found.source), ("target", text.found.target)):
            found.extend(f"{label}, {side} side: {what}" for what in _text_issues(odd))
    if report.longest_seen > 0 and any("too long" in text.dropped for text in report.train):
        found.append(f"the longest sentence has {report.longest_seen:,} subwords.")
    return found


def _text_issues(odd: TextIssues) -> list[str]:
    found = []
    if odd.byte_order_mark:
        found.append("a byte-order mark was removed.")
    if odd.windows_ends:
        found.append(f"{odd.windows_ends:,} lines end in \\r\\n (Windows); the \\r was removed.")
    if odd.no_last_newline:
        found.append("the last line has no newline; it was read as a line.")
    if odd.separators.count:
        found.append(
            f"{odd.separators.count:,} lines hold characters that other programs take for the end of a line, such as U+2028 "
            f"({_lines(odd.separators, True)}); they are kept as text (--clean makes them spaces)."
        )
    return found


def _named(texts: list[TextReport]) -> list[tuple[str, TextReport]]:
    """The training texts with the names the tables give them."""
    return [("train" if len(texts) == 1 else f"train {i}", text) for i, text in enumerate(texts, start=1)]


def _counts(text: TextReport) -> list[str]:
    return [f"{text.pairs:,}", f"{text.kept:,}", f"{text.pairs - text.kept:,}"]


def _lines(counter: LineCounter, word: bool = False) -> str:
    more = ", ..." if counter.count > len(counter.lines) else ""
    numbers = ", ".join(map(str, counter.lines)) + more
    return f"{'line' if counter.count == 1 else 'lines'} {numbers}" if word else numbers


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, style="bold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table
