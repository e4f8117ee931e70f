"""`entformer translate`: translates a file, a pipe or typed lines, one line of output per line of input.

Translations go to standard output or a file; messages go to standard error.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from entformer.cli.options import Beam, Checkpoint, Device, LengthPenalty, LengthPenaltyAlpha, Run, Threads
from entformer.cli.output import ShowProgress, describe_lines, progress_bar, writable_file
from entformer.errors import ArgumentError

if TYPE_CHECKING:
    from entformer.decoding.translate import Translation, TranslationStats, Translator


def translate(
    run: Run,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="Text to translate, plain or .gz.", show_default="standard input"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File for translations.", show_default="standard output"),
    ] = None,
    checkpoint: Checkpoint = "best",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    length_penalty_alpha: LengthPenaltyAlpha = None,
    n_best: Annotated[int, typer.Option(min=1, help="Translations per line; above 1 the output is JSON lines.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, with text, score and candidates.")
    ] = False,
    prefix: Annotated[str | None, typer.Option(help="Start every translation with this text.")] = None,
    prefix_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Start each translation with the corresponding line of this file.")
    ] = None,
    attention: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the attention weights of all heads, sparse, as JSON lines.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Translate each line as soon as it is read; the default on a terminal.")
    ] = False,
    whole_lines: Annotated[
        bool, typer.Option("--whole-lines", help="Translate very long lines whole instead of in parts.")
    ] = False,
    max_ratio: Annotated[
        float, typer.Option(min=0.0, help="Limit translations to max-ratio * source length + max-extra tokens.")
    ] = 2.0,
    max_extra: Annotated[int, typer.Option(min=0, help="Constant in the limit of --max-ratio, in tokens.")] = 10,
    window: Annotated[int, typer.Option(min=1, help="Number of lines read ahead and batched by length.")] = 1024,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Maximum source tokens per batch, including padding.")] = 4096,
    device: Device = "cpu",
    threads: Threads = None,
    nproc: Annotated[
        int, typer.Option(min=1, metavar="N", help="Translate in N processes; --threads is then of each of them.")
    ] = 1,
) -> None:
    """Translate text line by line: a file, a pipe, or lines typed at a terminal."""
    import torch

    from entformer.checkpoint.device import usable_device
    from entformer.decoding.length_penalty import MaxLength
    from entformer.decoding.translate import LONG, Translator
    from entformer.text.lines import decode_lines, open_file, read_lines

    usable_device(device)
    if prefix is not None and prefix_file is not None:
        raise ArgumentError("give --prefix (one for all lines) or --prefix-file (one per line), not both.")
    if interactive and input_file is not None:
        raise ArgumentError("--interactive reads standard input; remove --input.")
    _check_files({"--input": input_file, "--prefix-file": prefix_file}, output, attention)
    for path in (input_file, prefix_file):
        if path is not None:
            open_file(path).close()  # a missing file is reported before the model is loaded
    for path in (output, attention):
        if path is not None:
            writable_file(path)
    if threads is not None:
        torch.set_num_threads(threads)
    typed = input_file is None and sys.stdin.isatty()
    at_once = interactive or typed
    if nproc > 1 and at_once:
        raise ArgumentError("--nproc is for files and pipes; lines that are translated at once have no use for it.")
    translator = Translator(
        run,
        which=checkpoint,
        beam=beam,
        length_penalty=length_penalty,
        length_penalty_alpha=length_penalty_alpha,
        n_best=n_best,
        max_length=MaxLength(max_ratio, max_extra),
        window=1 if at_once else window,
        batch_tokens=batch_tokens,
        split_longer=None if whole_lines else LONG,
        device=device,
        processes=nproc,
        threads=threads,
    )
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    loaded = translator.run
    languages, weights = f"{loaded.source_language} -> {loaded.target_language}", describe_weights(run, checkpoint, loaded.step)
    notes.print(f"{languages}, {run}, {weights}, beam {translator.decoding.beam}", markup=False)
    if typed:
        source = _typed_lines(loaded.source_language)
    elif input_file is not None:
        source = read_lines(input_file, nul="keep")
    else:
        source = decode_lines(sys.stdin.buffer, "standard input", nul="keep")
    has_bar = notes.is_terminal and not at_once and not (output is None and sys.stdout.isatty())
    total = sum(1 for _ in read_lines(input_file, nul="keep")) if has_bar and input_file is not None else None
    try:
        with (
            write_lines(output) as write,
            write_lines(attention, discard=True) as write_attention,
            progress_bar(notes if has_bar else Console(quiet=True)) as show,
        ):
            prefixes = prefix if prefix_file is None else read_lines(prefix_file, nul="keep")
            for translation in translator.translate(source, prefix=prefixes):
                if as_json or (n_best > 1 and not typed):
                    write(_as_json(translation))
                elif n_best > 1:
                    write("\n".join(f"{candidate.score:8.4f}  {candidate.text}" for candidate in translation.candidates))
                else:
                    write(translation.text)
                if at_once and (spelled := translator.spelled_characters(translation)):
                    notes.print(f"not in the vocabulary, read as bytes: {describe_characters(spelled)}", markup=False)
                if attention is not None:
                    for part, record in enumerate(translator.attention(translation), start=1):
                        write_attention(record.to_json(line=translation.line, part=part))
                show("translating", translation.line, total)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    for line in _summary(translator.report, output, whole_lines=whole_lines):
        notes.print(line, markup=False)
    if attention is not None:
        notes.print(f"attention weights: {attention}", markup=False)


def translate_all(translator: "Translator", sources: Sequence[str], description: str, show: ShowProgress) -> list[str]:
    """Returns the translations of a test set and shows progress."""
    lines: list[str] = []
    for translation in translator.translate(sources):
        lines.append(translation.text)
        show(description, len(lines), len(sources))
    return lines


def describe_characters(characters: Iterable[str]) -> str:
    """Returns characters for a message; those that cannot be seen by their code."""
    return " ".join(one if one.isprintable() else f"U+{ord(one):04X}" for one in characters)


def describe_weights(run: Path, checkpoint: str, step: int) -> str:
    """Returns the name of the weights for messages: "best (step 800)", "best (average up to step 1000)"."""
    from entformer.checkpoint import RunFolder
    from entformer.checkpoint.average import AVERAGED, points_to_average

    average = checkpoint == AVERAGED or (checkpoint == "best" and points_to_average(RunFolder(run)))
    return f"{checkpoint} ({'average up to ' if average else ''}step {step})" if step >= 0 else checkpoint


@contextlib.contextmanager
def write_lines(path: Path | None, *, discard: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function that writes a line to a file; without a file, to standard output, or nowhere with `discard`.

    The file gets its name when it is complete. After an error, the lines written so far remain in NAME.partial.
    """
    if path is None:
        yield (lambda _: None) if discard else _write_to_stdout
        return
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        try:
            yield lambda line: print(line, file=file)
        except BaseException:
            file.flush()
            print(f"the lines written so far are in {partial}", file=sys.stderr)
            raise
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _write_to_stdout(line: str) -> None:
    """Writes UTF-8 whatever the locale, and flushes, so that a waiting program gets each line at once."""
    sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


def _check_files(inputs: dict[str, Path | None], output: Path | None, attention: Path | None) -> None:
    for written in (output, attention):
        for option, read in inputs.items():
            if written is not None and read is not None and written.exists() and read.exists() and written.samefile(read):
                raise ArgumentError(f"{written} is the file of {option} and would be overwritten; choose another file.")
    if output is not None and output == attention:
        raise ArgumentError("--output and --attention name the same file.")


def _typed_lines(language: str) -> Iterator[str]:
    """Yields lines typed at a terminal, until Ctrl-D or Ctrl-C."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # importing it enables the arrow keys
    print("Type a line to translate; end with Ctrl-D.", file=sys.stderr)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            yield input(f"{language}> ")
    print(file=sys.stderr)


def _as_json(translation: "Translation") -> str:
    content: dict[str, Any] = {
        "line": translation.line,
        "source": translation.source,
        "text": translation.text,
        "score": translation.candidates[0].score if translation.candidates else None,
        "candidates": [candidate.as_dict() for candidate in translation.candidates],
    }
    return json.dumps(content, ensure_ascii=False)


def _summary(report: "TranslationStats", output: Path | None, *, whole_lines: bool) -> Iterator[str]:
    def lines(count: int) -> str:
        return f"{count:,} line{'' if count == 1 else 's'}"

    speed = f", {report.tokens / report.seconds:,.0f} tokens/s" if report.seconds > 0 and report.tokens else ""
    target = f" -> {output}" if output is not None else ""
    yield f"{lines(report.lines)}, {report.tokens:,} tokens in {report.seconds:.1f} s{speed}{target}"
    if report.empty.count:
        yield f"{lines(report.empty.count)} empty, kept as empty lines ({describe_lines(report.empty)})"
    if report.spelled.count:
        yield (
            f"{lines(report.spelled.count)} with characters that are not in the vocabulary, read as bytes "
            f"({describe_lines(report.spelled)}): {describe_characters(report.characters)}"
        )
    if report.long.count:
        how = "whole" if whole_lines else "in parts"
        yield f"{lines(report.long.count)} very long, translated {how} ({describe_lines(report.long)})"
    if report.cut.count:
        yield (
            f"{lines(report.cut.count)} truncated at the length limit ({describe_lines(report.cut)}); "
            "--max-ratio and --max-extra raise the limit"
        )
