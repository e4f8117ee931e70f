"""`entformer prep`: prepares text for training and reports what it found: parallel text, or text of a language model.

A text is named in one of three ways: `data/train` stands for data/train.en and data/train.de (plain or .gz, by --languages),
`a.txt,b.txt` names the two files, `pairs.tsv` holds both sides in its columns.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from entformer.cli.options import Json
from entformer.cli.output import describe_lines, make_table, progress_bar
from entformer.errors import ArgumentError

if TYPE_CHECKING:
    from entformer.data.corpus import ParallelCorpus
    from entformer.data.prep_report import PrepReport, TextReport
    from entformer.text.lines import TextIssues

USUAL_VOCABULARY = 32000
TEXT_VOCABULARY = 8000  # of --text


def prep(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create.")],
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILES]", help="Further files of --text.")] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILES", help="Text for a language model, plain or .gz, files or directories: --text a.txt b.txt."
        ),
    ] = None,
    tokenizer: Annotated[Literal["bpe", "bytes"], typer.Option(help="Of --text: subwords or bytes.")] = "bpe",
    documents: Annotated[Literal["file", "paragraph", "line"], typer.Option(help="Of --text: what a document is.")] = "file",
    split: Annotated[
        Literal["position", "document"],
        typer.Option(help="Of --text without --valid: validate on the end of every document, or on whole documents."),
    ] = "position",
    valid_share: Annotated[float, typer.Option(help="Of --text without --valid: the share set aside for validation.")] = 0.05,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Named corpus: builtin, multi30k, iwslt17-de-en, kftt-ja-en, wmt16-ro-en or wmt14-en-de."
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="DIR|URL", help="Directory with a copy of the named corpus, or URL of a mirror."),
    ] = None,
    layout: Annotated[str | None, typer.Option(help="Variant of the named corpus, e.g. raw or tok (tokenized).")] = None,
    languages: Annotated[
        str | None, typer.Option("--languages", "-l", metavar="SOURCE-TARGET", help="Languages of your files, e.g. en-de.")
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Training text: a prefix (data/train for data/train.en and data/train.de, plain or .gz), SOURCE,TARGET, or a "
            ".tsv file. Repeatable.",
        ),
    ] = None,
    valid: Annotated[str | None, typer.Option(metavar="TEXT", help="Validation text, named like --train.")] = None,
    test: Annotated[str | None, typer.Option(metavar="TEXT", help="Test text, named like --train.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="N,N", help="Columns of source and target in .tsv files, from 1.", show_default="1,2")
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=276, help="Size of the joint subword vocabulary.", show_default="32000, or that of the named corpus"),
    ] = None,
    subwords: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use an existing vocabulary: subwords.model of a run.")
    ] = None,
    max_length: Annotated[int, typer.Option(min=1, help="Drop training pairs with more subwords on either side.")] = 256,
    max_ratio: Annotated[
        float,
        typer.Option(
            min=1, help="Drop training pairs in which one side has more than this many times the subwords of the other."
        ),
    ] = 4.0,
    dedup: Annotated[
        bool,
        typer.Option("--dedup", help="Drop duplicate training pairs, and those that are also in the validation or test text."),
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove control characters, collapse whitespace and skip malformed TSV rows.")
    ] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lowercase all text.")] = False,
    tokenized: Annotated[
        bool | None,
        typer.Option(
            "--tokenized/--not-tokenized", help="Whether spaces separate punctuation from words.", show_default="detected"
        ),
    ] = None,
    keep_identical: Annotated[bool, typer.Option("--keep-identical", help="Keep pairs whose two sides are equal.")] = False,
    allow_truncate: Annotated[
        bool, typer.Option("--allow-truncate", help="If two training files differ in length, ignore the extra lines.")
    ] = False,
    sample: Annotated[
        int, typer.Option(min=1, help="Maximum number of lines from which the vocabulary is learned.")
    ] = 2_000_000,
    seed: Annotated[int, typer.Option(help="Random seed of --sample.")] = 1,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Batch size for which the printed padding is computed.")] = 8192,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing prepared directory.")] = False,
    as_json: Json = False,
) -> None:
    """Prepare text for training: check it, learn a subword vocabulary and write token ids.

    Parallel text for translation (--train or --corpus), or any text for a language model (--text).
    """
    from entformer.data.filters import PreprocessConfig
    from entformer.data.prep import prepare
    from entformer.data.text import TextConfig, prepare_text
    from entformer.data.texts import is_tsv
    from entformer.text.tokenizer import SubwordTokenizer

    train = train or []
    if text:
        options = {"--corpus": corpus, "--train": train, "--languages": languages}
        if contrary := [option for option, value in options.items() if value]:
            raise ArgumentError(f"--text prepares a language model; remove {', '.join(contrary)}.")
        held_out = {"valid": valid, "test": test}
        files = {"train": [*text, *(more or [])], **{name: [Path(file)] for name, file in held_out.items() if file}}
        config = TextConfig(tokenizer, vocab_size or TEXT_VOCABULARY, documents, split, valid_share, seed)
        vocabulary = None if subwords is None else SubwordTokenizer.load(subwords)
        facts = prepare_text(files, out, config, subwords=vocabulary, overwrite=overwrite, say=_say)
        print(json.dumps(facts, indent=1) if as_json else _describe_text(out, facts))
        return
    if more:
        raise ArgumentError(f"{more[0]} is not an option; texts are given by --text, --train, --valid and --test.")
    given = {"--languages": languages, "--train": train, "--valid": valid, "--test": test}
    if corpus is not None and any(given.values()):
        unused = ", ".join(option for option, value in given.items() if value)
        raise ArgumentError(f"--corpus {corpus} has its own languages and files; remove {unused}.")
    if corpus is None and (from_ is not None or layout is not None):
        raise ArgumentError("--from and --layout require a named corpus; add --corpus NAME.")
    if corpus is None and (not train or languages is None):
        raise ArgumentError("give --languages en-de and --train, or a named corpus with --corpus.")
    if subwords is not None and vocab_size is not None:
        raise ArgumentError(f"--vocab-size {vocab_size} has no effect: the vocabulary is that of --subwords {subwords}.")
    names = [*train, *(name for name in (valid, test) if name)]
    if columns is not None and not any(map(is_tsv, names)):
        raise ArgumentError(f"--columns {columns} has no effect: no text is a .tsv file.")
    with progress_bar(Console(stderr=True)) as show, TemporaryDirectory() as work:
        if corpus is not None:
            texts, usual = _named_corpus(corpus, from_, layout, Path(work))
        else:
            texts, usual = _own_files(languages or "", train, valid, test, columns or "1,2"), USUAL_VOCABULARY
        report = prepare(
            texts if tokenized is None else replace(texts, tokenized=tokenized),
            out,
            PreprocessConfig(
                vocab_size=vocab_size or usual,
                max_length=max_length,
                max_ratio=max_ratio,
                dedup=dedup,
                clean=clean,
                lowercase=lowercase,
                keep_identical=keep_identical,
                allow_truncate=allow_truncate,
                sample=sample,
                seed=seed,
            ),
            subwords=SubwordTokenizer.load(subwords) if subwords is not None else None,
            batch_tokens=batch_tokens,
            overwrite=overwrite,
            progress=show,
        )
    if as_json:
        print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False))
    else:
        print_report(report, Console(highlight=False, soft_wrap=True))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _describe_text(out: Path, facts: dict[str, Any]) -> str:
    """Returns a line for each split, and the tokenizer."""
    tokenizer = facts["tokenizer"]
    lines = [f"{out}: {tokenizer['name']}, {tokenizer['size']:,} tokens in the vocabulary, fingerprint {facts['fingerprint']}"]
    for split, own in facts["splits"].items():
        rate = own["bytes"] / max(own["tokens"], 1)
        lines.append(
            f"  {split:<6} {own['documents']:>7,} documents {own['tokens']:>12,} tokens {own['bytes']:>13,} bytes "
            f"({rate:.2f} bytes per token)"
        )
    return "\n".join(lines)


def _own_files(languages: str, train: Sequence[str], valid: str | None, test: str | None, columns: str) -> "ParallelCorpus":
    from entformer.data.corpus import ParallelCorpus
    from entformer.data.texts import find_text
    from entformer.tasks.corpora import check_sides

    source_language, target_language = parse_languages(languages)
    both = parse_columns(columns)
    texts = [find_text(name, source_language, target_language, both) for name in train]
    held_out = [find_text(name, source_language, target_language, both) if name else None for name in (valid, test)]
    corpus = ParallelCorpus(source_language, target_language, tuple(texts), held_out[0], held_out[1])
    check_sides(corpus)
    return corpus


def _named_corpus(name: str, source: str | None, layout: str | None, work: Path) -> "tuple[ParallelCorpus, int]":
    """Returns a named corpus and its vocabulary size; the built-in corpus is written to `work`."""
    from entformer.data import datasets
    from entformer.tasks.corpora import builtin_text, named_corpus

    if name == "builtin":
        if source is not None or layout is not None:
            raise ArgumentError("the built-in corpus needs no download and has one layout; remove --from and --layout.")
        return builtin_text(work), USUAL_VOCABULARY
    return named_corpus(name, source=source, layout=layout), datasets.get_dataset(name).vocab_size


def parse_languages(text: str) -> tuple[str, str]:
    """Parses "en-de" into ("en", "de")."""
    parts = text.split("-")
    if len(parts) != 2 or not all(parts):
        raise ArgumentError(f"--languages {text!r} is not of the form en-de: source, hyphen, target.")
    return parts[0], parts[1]


def parse_columns(text: str) -> tuple[int, int]:
    """Parses "1,2" into (1, 2)."""
    try:
        first, second = (int(part) for part in text.split(","))
    except ValueError as err:
        raise ArgumentError(f"--columns {text!r} is not of the form 1,2: two columns, counted from 1.") from err
    return first, second


# ---- the report ----------------------------------------------------------------------------------------------------------


def print_report(report: "PrepReport", console: Console) -> None:
    """Prints counts, dropped lines, overlap with the training text, lengths, vocabulary and padding."""
    from entformer.data.filters import REASONS

    texts = [*_named(report.train), *report.held_out.items()]
    table = make_table("", "pairs", "kept", "dropped")
    for label, text in texts:
        table.add_row(label, f"{text.pairs:,}", f"{text.kept:,}", f"{text.pairs - text.kept:,}")
    console.print(table)
    for label, text in _named(report.train):
        for reason, counter in text.dropped.items():
            console.print(f"{label}: dropped {counter.count:,}: {REASONS[reason]} ({describe_lines(counter)})", markup=False)
    for remark in _notes(report, texts):
        console.print(f"note: {remark}", markup=False)
    lengths = make_table("subwords", "tokens", "mean", "median", "90%", "99%", "longest")
    for side, language in (("source", report.source_language), ("target", report.target_language)):
        found = report.sides[side]
        lengths.add_row(f"{side} ({language})", f"{found.tokens:,}", f"{found.mean:.1f}", *map(str, found.percentiles.values()))
    console.print(lengths)
    console.print(f"vocabulary: {report.vocabulary:,} subwords for both languages ({report.subwords_fingerprint})")
    console.print(
        f"batches of {report.batch_tokens} tokens: {report.batches:,} per epoch, {100 * report.padding_share:.1f}% padding"
    )
    console.print(f"prepared in {report.seconds:.1f} s: {report.folder} ({report.fingerprint})", markup=False)


def _notes(report: "PrepReport", texts: "list[tuple[str, TextReport]]") -> list[str]:
    """Returns notes on everything unusual that does not stop the preparation."""
    found = list(report.notes)
    for split, overlap in report.overlap.items():
        if overlap.sources:
            where = f" (training {describe_lines(overlap.train_lines)}; --dedup drops them)" if overlap.pairs else ""
            found.append(
                f"sources of the {split} text that are also in the training text: {overlap.sources} of "
                f"{report.held_out[split].pairs:,}, with the same translation: {overlap.pairs}{where}."
            )
    for text in report.train:
        if text.duplicates.count and "duplicate" not in text.dropped:
            found.append(f"{text.duplicates.count:,} training pairs repeat an earlier one ({describe_lines(text.duplicates)}).")
    for label, text in texts:
        if text.found.left_over:
            found.append(f"{label}: {text.found.left_over:,} lines at the end of the longer file have no partner.")
        for side, odd in (("source", text.found.source), ("target", text.found.target)):
            found.extend(f"{label}, {side} side: {what}" for what in _text_issues(odd))
    if report.longest_seen > 0 and any("too long" in text.dropped for text in report.train):
        found.append(f"the longest sentence has {report.longest_seen:,} subwords.")
    return found


def _text_issues(odd: "TextIssues") -> list[str]:
    found = []
    if odd.byte_order_mark:
        found.append("a byte-order mark was removed.")
    if odd.windows_ends:
        found.append(f"{odd.windows_ends:,} lines end in \\r\\n (Windows); the \\r was removed.")
    if odd.no_last_newline:
        found.append("the last line has no newline; it was read as a line.")
    if odd.separators.count:
        found.append(
            f"{odd.separators.count:,} lines contain characters that other programs treat as line ends, such as U+2028 "
            f"({describe_lines(odd.separators)}); they are kept (--clean replaces them by spaces)."
        )
    return found


def _named(texts: "list[TextReport]") -> "list[tuple[str, TextReport]]":
    """Returns the training texts with their names in the tables."""
    return [("train" if len(texts) == 1 else f"train {i}", text) for i, text in enumerate(texts, start=1)]
