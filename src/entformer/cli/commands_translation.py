"""The options of the commands from text to translation. In: arguments. Out: the call of the file that does the work.

Each command's file is imported when it runs, so that `--help` does not wait for torch.
"""

from pathlib import Path
from typing import Annotated

import typer

from entformer.cli.commands_config import Settings, config_app
from entformer.errors import ArgumentError

app = typer.Typer()
app.add_typer(config_app, name="config")

Penalty = Annotated[
    str | None, typer.Option(metavar="KIND", help="average, gnmt or none; as the run's recipe has it if not given.")
]
PenaltyAlpha = Annotated[
    float | None,
    typer.Option("--length-penalty-alpha", metavar="A", help="Exponent of the length penalty; 1 divides by the length."),
]
OldAlpha = Annotated[str | None, typer.Option("--alpha", hidden=True)]


def _exponent(value: float | None, old: str | None) -> float | None:
    """The exponent of the length penalty, which used to be called --alpha."""
    if old is not None:
        raise ArgumentError(
            f"--alpha is now --length-penalty-alpha: write --length-penalty-alpha {old} (alpha is entmax's alone)."
        )
    return value


@app.command()
def prep(
    out: Annotated[Path, typer.Argument(help="Folder to make; it must not be there yet.")],
    corpus: Annotated[
        str | None,
        typer.Option(help="A corpus by name: builtin, multi30k, iwslt17-de-en, kftt-ja-en, wmt16-ro-en, wmt14-en-de."),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="DIR|URL", help="With --corpus: a local copy or a mirror.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="With --corpus: which form of the text, such as raw or tok.")] = None,
    languages: Annotated[str | None, typer.Option("--languages", "-l", metavar="SOURCE-TARGET", help="Such as en-de.")] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Training text: a prefix (data/train for data/train.en and data/train.de, plain or .gz), SOURCE,TARGET, or a "
            ".tsv file. May be given several times.",
        ),
    ] = None,
    valid: Annotated[str | None, typer.Option(metavar="TEXT", help="Validation text, named in the same way.")] = None,
    test: Annotated[str | None, typer.Option(metavar="TEXT", help="Test text, named in the same way.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="N,N", help="Columns of source and target in TSV files, from 1; 1,2 if not given.")
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=276, help="SubwordTokenizer for both languages; 32000, or what suits the corpus, if not given."),
    ] = None,
    subwords: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use this vocabulary (subwords.model of a run) instead of a new one.")
    ] = None,
    max_length: Annotated[int, typer.Option(min=1, help="Leave out training pairs with more subwords on a side.")] = 256,
    max_ratio: Annotated[float, typer.Option(min=1, help="Leave out pairs with one side this many times as long.")] = 4.0,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Leave out repeated pairs, and those of the valid and test text.")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove control characters, mend spaces, leave out malformed TSV rows.")
    ] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case all text.")] = False,
    tokenized: Annotated[
        bool | None,
        typer.Option("--tokenized/--not-tokenized", help="Is punctuation parted by spaces? Seen by itself if not given."),
    ] = None,
    keep_identical: Annotated[bool, typer.Option("--keep-identical", help="Keep pairs whose two sides are equal.")] = False,
    allow_truncate: Annotated[
        bool, typer.Option("--allow-truncate", help="Stop at the end of the shorter training file instead of refusing.")
    ] = False,
    sample: Annotated[int, typer.Option(min=1, help="Lines to learn the vocabulary from.")] = 2_000_000,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 1,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Batch size the report states the padding for.")] = 8192,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make a prepared folder again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Check and filter parallel text, learn the vocabulary, write the ids for training, and report what was found."""
    from entformer.cli.prep import run

    run(
        out,
        corpus=corpus,
        from_=from_,
        layout=layout,
        languages=languages,
        train=train or [],
        valid=valid,
        test=test,
        columns=columns,
        vocab_size=vocab_size,
        subwords=subwords,
        max_length=max_length,
        max_ratio=max_ratio,
        dedup=dedup,
        clean=clean,
        lowercase=lowercase,
        tokenized=tokenized,
        keep_identical=keep_identical,
        allow_truncate=allow_truncate,
        sample=sample,
        seed=seed,
        batch_tokens=batch_tokens,
        overwrite=overwrite,
        as_json=as_json,
    )


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a built-in one.")],
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="The run folder; runs/NAME if not given.")] = None,
    settings: Settings = None,
    resume_with_new_data: Annotated[
        bool, typer.Option("--resume-with-new-data", help="Go on although the data changed, from the start of an epoch.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for torch and the kernels; all if not given.")] = None,
    stop_after_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Save and stop after M minutes; the same command goes on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Train a translation model; the same command again goes on where it stopped.

    Exit code 0 when done or when the minutes are over, 130 after Ctrl-C and 143 after SIGTERM (saved in both cases), 1 when
    training failed (NaN, full disk; the last checkpoint is intact), 2 for a mistake in the command or the recipe.
    """
    from entformer.cli.train import run

    code = run(
        recipe,
        out=out,
        settings=settings or [],
        resume_with_new_data=resume_with_new_data,
        threads=threads,
        stop_after_minutes=stop_after_minutes,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    last: Annotated[int | None, typer.Option(min=1, help="The last N checkpoints; 5 if nothing else is given.")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="The N best of those kept; see training.keep_best.")] = None,
    checkpoint: Annotated[list[str] | None, typer.Option(help="One checkpoint, such as step-1000. May be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Average the weights of several checkpoints into RUN/averaged."""
    from entformer.cli.average import run as run_average

    run_average(run, last=last, best=best, names=checkpoint or [], as_json=as_json)


@app.command()
def translate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder `entformer train` wrote.")],
    input_file: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="Text to translate, plain or .gz; standard input if not given."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where translations go; standard output if not given.")
    ] = None,
    which: Annotated[
        str,
        typer.Option(
            "--which",
            "--checkpoint",
            metavar="NAME",
            help="Weights: best, last, averaged, step-N, or a path to a checkpoint or a run.",
        ),
    ] = "best",
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Hypotheses kept alive; 1 is greedy search. As the run's recipe has it if not given."),
    ] = None,
    length_penalty: Penalty = None,
    length_penalty_alpha: PenaltyAlpha = None,
    alpha: OldAlpha = None,
    n_best: Annotated[int, typer.Option(min=1, help="Translations per line; above 1 the output is JSON lines.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line: text, score, candidates.")] = False,
    prefix: Annotated[str | None, typer.Option(help="Every translation begins with this text.")] = None,
    prefix_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A line for every input line: how it begins.")
    ] = None,
    attention: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what every head attended to, sparse, as JSON lines.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Answer each line at once; what happens anyway at a terminal.")
    ] = False,
    whole_lines: Annotated[bool, typer.Option("--whole-lines", help="Never translate a very long line in parts.")] = False,
    max_ratio: Annotated[
        float, typer.Option(min=0.0, help="A translation has at most max-ratio * source + max-extra tokens.")
    ] = 2.0,
    max_extra: Annotated[int, typer.Option(min=0, help="See --max-ratio.")] = 10,
    window: Annotated[int, typer.Option(min=1, help="Lines held at a time, to put those of similar length together.")] = 1024,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Padded source tokens of a batch; less takes less memory.")] = 4096,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as torch takes if not given.")] = None,
) -> None:
    """Translate text line by line: a file, a pipe, or what you type. One line out for every line in, always."""
    from entformer.cli.translate import Options, run

    run(
        run_folder,
        Options(
            input=input_file,
            output=output,
            beam=beam,
            length_penalty=length_penalty,
            length_penalty_alpha=_exponent(length_penalty_alpha, alpha),
            n_best=n_best,
            as_json=as_json,
            prefix=prefix,
            prefix_file=prefix_file,
            attention=attention,
            which=which,
            interactive=interactive,
            whole_lines=whole_lines,
            max_ratio=max_ratio,
            max_extra=max_extra,
            window=window,
            batch_tokens=batch_tokens,
            device=device,
            threads=threads,
        ),
    )


@app.command()
def score(
    hypotheses: Annotated[
        Path | None, typer.Argument(metavar="HYP", help="A file of translations, - for standard input; or give --run.")
    ] = None,
    references: Annotated[
        list[Path] | None, typer.Option("--ref", metavar="FILE", help="References, line by line; may be given several times.")
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="Translate the test set of this run's data and score that.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The prepared folder to take the test set from; the run's own if not given."),
    ] = None,
    test_set: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="test or valid of the prepared data (test if not given); or a corpus: builtin, multi30k, multi30k/tok, "
            "multi30k:valid, ...",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Your own test set: a prefix, SOURCE,REFERENCE or a .tsv file, plain or .gz, as prep takes them.",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="DIR|URL", help="A local copy or a mirror of the named corpus.")
    ] = None,
    tokenized: Annotated[
        bool | None,
        typer.Option(
            "--tokenized/--no-tokenized", help="The text is tokenized: add BLEU of the tokens as they are. As the data say."
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option("--lowercase/--no-lowercase", help="Score without regard to case. As the data say."),
    ] = None,
    moses: Annotated[
        bool,
        typer.Option(
            "--moses", help="Add BLEU after Moses' tokenizer, to compare with papers that quote tokenized BLEU of raw text."
        ),
    ] = False,
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="With --moses and --ref: language of the references, such as en.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Other translations, or another run: paired bootstrap between the two.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Resamples of the bootstrap.")] = 1000,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the translations that --run makes.")
    ] = None,
    which: Annotated[
        str,
        typer.Option(
            "--which", "--checkpoint", metavar="NAME", help="Weights of the run: best, last, averaged, step-N, or a path."
        ),
    ] = "best",
    beam: Annotated[
        int | None, typer.Option(min=1, help="Beam of the run's translations; as its recipe has it if not given.")
    ] = None,
    length_penalty: Penalty = None,
    length_penalty_alpha: PenaltyAlpha = None,
    alpha: OldAlpha = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; every number beside its signature.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as torch takes if not given.")] = None,
) -> None:
    """Score translations with sacreBLEU: BLEU and chrF with signatures, tokenized BLEU where it fits, paired bootstrap."""
    from entformer.cli.score import Options, run
    from entformer.cli.translate import Options as Decoding

    run(
        Options(
            hypotheses=hypotheses,
            references=tuple(references or ()),
            run=run_folder,
            data=data,
            test_set=test_set,
            test=test,
            source=source,
            tokenized=tokenized,
            lowercase=lowercase,
            moses=moses,
            language=language,
            compare=compare,
            resamples=resamples,
            output=output,
            as_json=as_json,
        ),
        Decoding(
            beam=beam,
            length_penalty=length_penalty,
            length_penalty_alpha=_exponent(length_penalty_alpha, alpha),
            which=which,
            device=device,
            threads=threads,
        ),
    )
