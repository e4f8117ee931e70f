"""`entformer score`: scores translations with sacreBLEU.

Translations come from a file or from a run; references from files, from the test set that was prepared with the training data
of a run, or from a named corpus.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from entformer.cli.options import Beam, Checkpoint, Device, LengthPenalty, LengthPenaltyAlpha, Threads
from entformer.cli.output import progress_bar
from entformer.cli.translate import describe_weights, translate_all, write_lines
from entformer.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from entformer.decoding.scoring import Comparison, Scores


def score(
    hypotheses: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Translations to score, - for standard input. Not needed with --run.")
    ] = None,
    references: Annotated[
        list[Path] | None, typer.Option("--ref", metavar="FILE", help="Reference translations, line by line. Repeatable.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Translate the test set with this run and score the result.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Prepared directory with the test set.", show_default="the run's own")
    ] = None,
    test_set: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Test set: test or valid of the prepared data, or a corpus such as builtin, multi30k, multi30k/tok or "
            "multi30k:valid.",
            show_default="test",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Your own test set: a prefix, SOURCE,REFERENCE or a .tsv file, as for `prep`."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="DIR|URL", help="Directory with a copy of the corpus of --test-set, or URL of a mirror."
        ),
    ] = None,
    tokenized: Annotated[
        bool | None,
        typer.Option(
            "--tokenized/--no-tokenized", help="The text is tokenized: add BLEU of the tokens.", show_default="as in the data"
        ),
    ] = None,
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--no-lowercase", help="Ignore case.", show_default="as in the data")
    ] = None,
    moses: Annotated[
        bool, typer.Option("--moses", help="Add BLEU after the Moses tokenizer, as many papers report it for raw text.")
    ] = False,
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language of the references of --ref, for --moses; e.g. en.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE|RUN", help="Baseline translations or run; adds a paired bootstrap test.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Number of bootstrap resamples.")] = 1000,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the translations of --run to a file.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help="Language models: tokens read at a time.", show_default="as in training")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Language models: tokens the window advances.", show_default="half the context")
    ] = None,
    checkpoint: Checkpoint = "best",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    length_penalty_alpha: LengthPenaltyAlpha = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; every score has its signature.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Score translations with sacreBLEU, or a language model by its perplexity and bits per byte.

    BLEU and chrF have signatures, and a paired bootstrap test compares with a baseline. A language model is scored on the test
    text of its data, or on a file of text given by --test.
    """
    import torch

    from entformer.checkpoint.device import usable_device
    from entformer.checkpoint.language_model import is_language_model
    from entformer.cli.test_sets import PARTS, TestSet, find_test_set
    from entformer.cli.text_score import score_language_model
    from entformer.decoding.scoring import corpus_scores, scoring_warnings
    from entformer.decoding.scoring import paired_bootstrap as bootstrap
    from entformer.decoding.translate import Translator

    usable_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    if run is not None and hypotheses is None and is_language_model(run):
        score_language_model(
            run,
            data=data,
            test_set=test_set,
            test=test,
            context=context,
            stride=stride,
            checkpoint=checkpoint,
            device=device,
            as_json=as_json,
        )
        return
    if context is not None or stride is not None:
        raise ArgumentError("--context and --stride are settings of language models; remove them.")
    is_corpus = test_set is not None and test_set not in PARTS
    given = {"--ref": references, "--data": data, "--test": test, "--test-set": test_set}
    used = [option for option, value in given.items() if value]
    origin = hypotheses or run
    if origin is None:
        raise ArgumentError("nothing to score: give a file of translations, or --run RUN to translate a test set.")
    if len(used) > 1 and set(used) != {"--data", "--test-set"}:
        raise ArgumentError(f"{' and '.join(used)} each name the references; give one of them, not both.")
    if hypotheses is not None and not (references or run or data or is_corpus or test):
        raise ArgumentError(
            "no references: give --ref FILE, --test SOURCE,REFERENCE, --test-set NAME (such as multi30k), or --run RUN or "
            "--data DIR for a prepared test set."
        )
    if hypotheses is None and references:
        raise ArgumentError("--ref needs a file of translations; with --run, use --test SOURCE,REFERENCE.")
    if source is not None and not is_corpus:
        raise ArgumentError("--from has no effect without a named corpus; add --test-set NAME.")
    if language is not None and not moses:
        raise ArgumentError(f"--language {language} has no effect without --moses.")
    if output is not None and hypotheses is not None:
        raise ArgumentError("--output writes the translations of --run; it has no effect for a file of translations.")
    if references:
        name = ", ".join(str(path) for path in references)
        against = TestSet([], [], name, "", "", bool(tokenized), bool(lowercase))
        reference_lines = [_read_lines(path) for path in references]
    else:
        against = find_test_set(test_set, test=test, data=data, run=run, source=source)
        reference_lines = [against.references]
    language = language or against.target_language or None
    if moses and language is None:
        raise ArgumentError("--moses needs the language of the references; add --language, such as --language en.")
    options: dict[str, Any] = {
        "tokenized": against.tokenized if tokenized is None else tokenized,
        "lowercase": against.lowercase if lowercase is None else lowercase,
        "moses": language if moses else None,
    }

    def translations(path: Path) -> tuple[str, list[str]]:
        """Returns the name and the lines of a file of translations, or of a run's translations of the test set."""
        if not path.is_dir():
            name, lines = str(path), _read_lines(path)
        elif not against.sources:
            raise ArgumentError(f"{path} is a directory; with --ref, give files of translations.")
        else:
            translator = Translator(
                path,
                which=checkpoint,
                beam=beam,
                length_penalty=length_penalty,
                length_penalty_alpha=length_penalty_alpha,
                device=device,
            )
            weights = describe_weights(path, checkpoint, translator.run.step)
            name = f"{path}, {weights}, beam {translator.decoding.beam}"
            languages = f"{translator.run.source_language} -> {translator.run.target_language}"
            with progress_bar(Console(stderr=True, highlight=False, soft_wrap=True)) as show:
                lines = translate_all(translator, against.sources, f"translating {languages} with {name}", show)
        for one in reference_lines:
            if len(one) != len(lines):
                raise DataError(
                    f"{name} has {len(lines)} lines and the references ({against.shown}) have {len(one)}; "
                    "they must correspond line by line."
                )
        return name, lines

    name, lines = translations(origin)
    if output is not None:
        with write_lines(output) as write:
            for line in lines:
                write(line)
    found_warnings = scoring_warnings(lines, reference_lines[0], tokenized=options["tokenized"], lowercase=options["lowercase"])
    for warning in found_warnings:
        warnings.warn(warning, stacklevel=2)
    scores = corpus_scores(lines, reference_lines, **options)
    comparisons: tuple[Comparison, ...] = ()
    baseline = ""
    if compare is not None:
        baseline, baseline_lines = translations(compare)
        comparisons = bootstrap(baseline_lines, lines, reference_lines, **options, resamples=resamples)
    if as_json:
        content: dict[str, Any] = {"translations": name, "references": against.shown, **scores.as_dict()}
        content["warnings"] = list(found_warnings)
        if comparisons:
            content["comparison"] = {
                "baseline": baseline,
                "system": name,
                "test": "paired bootstrap",
                "scores": {comparison.name: comparison.as_dict() for comparison in comparisons},
            }
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    _print_scores(f"{name}, {scores.lines:,} lines, against {against.shown}", scores)
    if comparisons:
        _print_comparisons(f"against {baseline} (paired bootstrap, {resamples} resamples):", comparisons)


def _read_lines(path: Path) -> list[str]:
    from entformer.text.lines import decode_lines, read_lines

    if str(path) == "-":
        return list(decode_lines(sys.stdin.buffer, "standard input", nul="keep"))
    return list(read_lines(path, nul="keep"))


def _print_scores(title: str, scores: "Scores") -> None:
    from entformer.decoding.scoring import MEANINGS

    print(title)
    for score in scores.scores:
        quote = "   <- the score to report for this data" if score is scores.main and len(scores.scores) > 2 else ""
        print(f"\n{score}{quote}\n  {MEANINGS[score.name]}\n  {score.signature}")
        if score.detail:
            print(f"  {score.detail}")


def _print_comparisons(title: str, comparisons: "Sequence[Comparison]") -> None:
    from entformer.decoding.scoring import title as score_title

    print(f"\n{title}")
    for one in comparisons:
        verdict = "significant at 0.05" if one.p_value < 0.05 else "not significant"
        print(
            f"  {score_title(one.name, one.signature)}: {one.baseline:.2f} -> {one.system:.2f} ({one.difference:+.2f}, "
            f"95% interval {one.difference_low:+.2f} to {one.difference_high:+.2f}), "
            f"p = {one.p_value:.4f}, {verdict}\n    {one.signature}"
        )
