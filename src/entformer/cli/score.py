"""`entformer score`: how good translations are. In: a file of them, or a run that makes them. Out: signed scores.

References come from files, from the test set that was prepared with the training data of a run, or from a corpus by name.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from entformer.checkpoint.device import usable_device
from entformer.cli.test_sets import PARTS, TestSet, named_test_set, prepared_test_set, run_facts, text_test_set
from entformer.cli.translate import Options as Decoding
from entformer.cli.translate import lines_to, make_translator, weights_shown
from entformer.decoding.scoring import MEANINGS, Comparison, Scores, compare, corpus_scores, scoring_warnings, title
from entformer.errors import ArgumentError, DataError
from entformer.text.lines import decode_lines, read_lines


@dataclass(frozen=True)
class Options:
    """What the command line asks for; see `cli/main.py` for the words of each."""

    hypotheses: Path | None = None
    references: tuple[Path, ...] = ()
    run: Path | None = None
    data: Path | None = None
    test_set: str | None = None  # of the prepared data, or the name of a corpus; "test" if not given
    test: str | None = None  # files with sources and references, named as in `entformer prep`
    source: str | None = None  # folder or mirror of a named corpus
    tokenized: bool | None = None
    lowercase: bool | None = None
    moses: bool = False
    language: str | None = None  # of the references, for --moses
    compare: Path | None = None
    resamples: int = 1000
    output: Path | None = None
    as_json: bool = False


@dataclass(frozen=True)
class _Task:
    """What is to be scored against what."""

    sources: Sequence[str]  # empty where references were given as files
    references: list[list[str]]
    shown: str  # what the references are called
    tokenized: bool
    lowercase: bool
    moses: str | None  # the language of the references, if they are to be tokenized


def run(options: Options, decoding: Decoding) -> None:
    """Score, and print numbers with their signatures."""
    _check(options)
    usable_device(decoding.device)
    if decoding.threads is not None:
        torch.set_num_threads(decoding.threads)
    task = _task(options)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    name, hypotheses = _translations(options.hypotheses or options.run, task, decoding, notes)
    if options.output is not None:
        with lines_to(options.output) as write:
            for line in hypotheses:
                write(line)
    _same_length(name, hypotheses, task)
    language_warnings = scoring_warnings(hypotheses, task.references[0], tokenized=task.tokenized, lowercase=task.lowercase)
    for language_warning in language_warnings:
        warnings.warn(language_warning, stacklevel=2)
    kind: dict[str, Any] = {"tokenized": task.tokenized, "lowercase": task.lowercase, "moses": task.moses}
    scores = corpus_scores(hypotheses, task.references, **kind)
    comparisons: tuple[Comparison, ...] = ()
    other = ""
    if options.compare is not None:
        other, baseline = _translations(options.compare, task, decoding, notes)
        _same_length(other, baseline, task)
        comparisons = compare(baseline, hypotheses, task.references, **kind, resamples=options.resamples)
    if options.as_json:
        print(json.dumps(_as_json(name, task, scores, other, comparisons, language_warnings), indent=1, ensure_ascii=False))
    else:
        _print(name, task, scores, other, comparisons, options.resamples)


def _check(options: Options) -> None:
    if options.hypotheses is None and options.run is None:
        raise ArgumentError("say what to score: a file of translations, or --run RUN to translate a test set with.")
    named = options.test_set is not None and options.test_set not in PARTS
    given = {"--ref": options.references, "--data": options.data, "--test": options.test, "--test-set": options.test_set}
    used = [option for option, value in given.items() if value]
    if len(used) > 1 and set(used) != {"--data", "--test-set"}:
        raise ArgumentError(f"{' and '.join(used)} each name the references; give one of them, not both.")
    if options.hypotheses is not None and not (options.references or options.run or options.data or named or options.test):
        raise ArgumentError(
            "say what to score against: --ref FILE, --test SOURCE,REFERENCE, --test-set NAME (such as multi30k), or --run RUN "
            "or --data FOLDER for a prepared test set."
        )
    if options.hypotheses is None and options.references:
        raise ArgumentError("--ref goes with a file of translations; a run takes --test SOURCE,REFERENCE.")
    if options.source is not None and not named:
        raise ArgumentError("--from has no effect without a named corpus; add --test-set NAME.")
    if options.language is not None and not options.moses:
        raise ArgumentError(f"--language {options.language} has no effect without --moses.")
    if options.output is not None and options.hypotheses is not None:
        raise ArgumentError("--output keeps the translations that --run makes; there are none to make here.")


def _task(options: Options) -> _Task:
    if options.references:
        references = [list(_lines_of(path)) for path in options.references]
        shown = ", ".join(str(path) for path in options.references)
        return _Task((), references, shown, bool(options.tokenized), bool(options.lowercase), _moses(options, ""))
    if options.test is not None:
        found = text_test_set(options.test, options.run)
    elif options.test_set in (None, *PARTS) or options.data is not None:
        found = prepared_test_set(options.test_set or "test", options.data, options.run)
    else:
        found = named_test_set(str(options.test_set), options.source)
        if options.run is not None:
            found = _as_run_translates(found, options.run)
    tokenized = found.tokenized if options.tokenized is None else options.tokenized
    lowercase = found.lowercase if options.lowercase is None else options.lowercase
    moses = _moses(options, found.target_language)
    return _Task(found.sources, [found.references], found.shown, tokenized, lowercase, moses)


def _moses(options: Options, language: str) -> str | None:
    """The language whose rules tokenize the text, if that is asked for."""
    if not options.moses:
        return None
    if not (options.language or language):
        raise ArgumentError("--moses needs the language of the references; add --language, such as --language en.")
    return options.language or language


def _as_run_translates(test_set: TestSet, run: Path) -> TestSet:
    """A test set has two directions; take the run's."""
    facts = run_facts(run)
    direction = facts["source_language"], facts["target_language"]
    for way in (test_set, test_set.turned()):
        if (way.source_language, way.target_language) == direction:
            return way
    raise ArgumentError(
        f"{run} translates {direction[0]} -> {direction[1]}, {test_set.shown} is "
        f"{test_set.source_language} -> {test_set.target_language}; choose a test set of its languages."
    )


def _translations(origin: Path | None, task: _Task, decoding: Decoding, notes: Console) -> tuple[str, list[str]]:
    """Name and lines of a file of translations, or of what a run makes of the sources."""
    if origin is None:
        raise ArgumentError("there is nothing to score.")
    if not origin.is_dir():
        return str(origin), list(_lines_of(origin))
    if not task.sources:
        raise ArgumentError(f"{origin} is a folder; with --ref, give files of translations.")
    translator = make_translator(origin, decoding)
    loaded = translator.run
    shown = weights_shown(origin, decoding.which, loaded.step)
    notes.print(
        f"translating {len(task.sources):,} lines, {loaded.source_language} -> {loaded.target_language}, with {origin}, "
        f"{shown}, beam {translator.decoding.beam}",
        markup=False,
    )
    lines = []
    with notes.status("") as status:
        for translation in translator.translate(task.sources):
            lines.append(translation.text)
            status.update(f"{translation.line:,} of {len(task.sources):,} lines")
    return f"{origin}, {shown}, beam {translator.decoding.beam}", lines


def _lines_of(path: Path) -> Sequence[str]:
    if str(path) == "-":
        return list(decode_lines(sys.stdin.buffer, "standard input", nul="keep"))
    return list(read_lines(path, nul="keep"))


def _same_length(name: str, hypotheses: Sequence[str], task: _Task) -> None:
    for references in task.references:
        if len(references) != len(hypotheses):
            raise DataError(
                f"{name} has {len(hypotheses)} lines and the references ({task.shown}) have {len(references)}; "
                "they must be the same lines, one for one."
            )


def _as_json(
    name: str, task: _Task, scores: Scores, other: str, comparisons: Sequence[Comparison], language_warnings: Sequence[str]
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "translations": name,
        "references": task.shown,
        **scores.as_dict(),
        "warnings": list(language_warnings),
    }
    if comparisons:
        content["comparison"] = {
            "baseline": other,
            "system": name,
            "test": "paired bootstrap",
            "scores": {comparison.name: comparison.as_dict() for comparison in comparisons},
        }
    return content


def _print(name: str, task: _Task, scores: Scores, other: str, comparisons: Sequence[Comparison], resamples: int) -> None:
    print(f"{name}, {scores.lines:,} lines, against {task.shown}")
    for score in scores.scores:
        quote = "   <- the one to quote for these data" if score is scores.main and len(scores.scores) > 2 else ""
        print(f"\n{score}{quote}\n  {MEANINGS[score.name]}\n  {score.signature}")
        if score.detail:
            print(f"  {score.detail}")
    if comparisons:
        print(f"\nagainst {other} (paired bootstrap, {resamples} resamples):")
    for comparison in comparisons:
        verdict = "significant at 0.05" if comparison.p_value < 0.05 else "may be rng"
        print(
            f"  {title(comparison.name, comparison.signature)}: {comparison.baseline:.2f} -> {comparison.system:.2f} "
            f"({comparison.difference:+.2f}), p = {comparison.p_value:.4f}, {verdict}\n    {comparison.signature}"
        )
