"""`entformer translate`: lines in, lines out, one for one. From a file, a pipe, or typed at a terminal.

Translations go to standard output or a file, everything said about them to standard error.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from entformer.checkpoint import RunFolder
from entformer.checkpoint.average import AVERAGED, points_to_average
from entformer.checkpoint.device import usable_device
from entformer.cli.output import writable_file
from entformer.decoding.length_penalty import MaxLength
from entformer.decoding.translate import LONG, Translation, TranslationStats, Translator
from entformer.errors import ArgumentError
from entformer.text.lines import LineCounter, decode_lines, open_file, read_lines

Write = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What the command line asks for; see `cli/main.py` for the words of each."""

    input: Path | None = None
    output: Path | None = None
    beam: int | None = None  # None: as the run's recipe has it
    length_penalty: str | None = None
    length_penalty_alpha: float | None = None
    n_best: int = 1
    as_json: bool = False
    prefix: str | None = None
    prefix_file: Path | None = None
    attention: Path | None = None
    which: str = "best"
    interactive: bool = False
    whole_lines: bool = False
    max_ratio: float = 2.0
    max_extra: int = 10
    window: int = 1024
    batch_tokens: int = 4096
    device: str = "cpu"
    threads: int | None = None


def run(run_folder: Path, options: Options) -> None:
    """Translate all there is to read."""
    _check(options)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    for path in (options.output, options.attention):
        if path is not None:
            writable_file(path)
    talk = options.interactive or (options.input is None and sys.stdin.isatty())
    translator = make_translator(run_folder, options, window=1 if talk else options.window)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    loaded = translator.run
    notes.print(
        f"{loaded.source_language} -> {loaded.target_language}, {run_folder}, "
        f"{weights_shown(run_folder, options.which, loaded.step)}, beam {translator.decoding.beam}",
        markup=False,
    )
    try:
        with lines_to(options.output) as write, lines_to(options.attention, none=True) as write_attention:
            prefix = options.prefix if options.prefix_file is None else read_lines(options.prefix_file, nul="keep")
            source = _typed(loaded.source_language) if talk and sys.stdin.isatty() else _read(options.input)
            shown = _progress(options, notes) if not talk else contextlib.nullcontext(lambda: None)
            with shown as step:
                for translation in translator.translate(source, prefix=prefix):
                    write(_line(translation, options, people=talk and sys.stdin.isatty()))
                    if options.attention is not None:
                        for part, record in enumerate(translator.attention(translation), start=1):
                            write_attention(record.to_json(line=translation.line, part=part))
                    step()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    _print_report(notes, translator.report, options)


def weights_shown(run: Path, which: str, step: int) -> str:
    """What messages call the weights: "best (step 800)", "best (average up to step 1000)"."""
    average = which == AVERAGED or (which == "best" and points_to_average(RunFolder(run)))
    return f"{which} ({'average up to ' if average else ''}step {step})" if step >= 0 else which


def make_translator(run_folder: Path, options: Options, *, window: int | None = None) -> Translator:
    return Translator(
        run_folder,
        which=options.which,
        beam=options.beam,
        length_penalty=options.length_penalty,
        length_penalty_alpha=options.length_penalty_alpha,
        n_best=options.n_best,
        max_length=MaxLength(options.max_ratio, options.max_extra),
        window=window or options.window,
        batch_tokens=options.batch_tokens,
        split_longer=None if options.whole_lines else LONG,
        device=options.device,
    )


def _check(options: Options) -> None:
    """Mistakes that can be seen before the model is loaded."""
    usable_device(options.device)
    if options.prefix is not None and options.prefix_file is not None:
        raise ArgumentError("give --prefix (one for all lines) or --prefix-file (one per line), not both.")
    if options.interactive and options.input is not None:
        raise ArgumentError("--interactive reads what is typed; leave --input out.")
    for written in (options.output, options.attention):
        for name, read in (("--input", options.input), ("--prefix-file", options.prefix_file)):
            if written is not None and read is not None and written.exists() and read.exists() and written.samefile(read):
                raise ArgumentError(f"{written} is the file given with {name}; it would be overwritten. Give another name.")
    if options.output is not None and options.attention is not None and options.output == options.attention:
        raise ArgumentError("--output and --attention name the same file.")
    for path in (options.input, options.prefix_file):
        if path is not None:
            open_file(path).close()  # a wrong name is told before the model is loaded


def _read(path: Path | None) -> Iterator[str]:
    if path is not None:
        return read_lines(path, nul="keep")
    return decode_lines(sys.stdin.buffer, "standard input", nul="keep")


def _typed(language: str) -> Iterator[str]:
    """Lines typed at a terminal, until Ctrl-D or Ctrl-C."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # the arrow keys work once it is imported
    print("Type a line to translate; end with Ctrl-D.", file=sys.stderr)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            yield input(f"{language}> ")
    print(file=sys.stderr)


def _line(translation: Translation, options: Options, *, people: bool) -> str:
    """What is written for one line: always one line for a program, a small list for people who asked for several."""
    if options.as_json or (options.n_best > 1 and not people):
        best = translation.candidates[0] if translation.candidates else None
        content: dict[str, Any] = {
            "line": translation.line,
            "source": translation.source,
            "text": translation.text,
            "score": None if best is None else best.score,
            "candidates": [candidate.as_dict() for candidate in translation.candidates],
        }
        return json.dumps(content, ensure_ascii=False)
    if options.n_best > 1:
        return "\n".join(f"{candidate.score:8.4f}  {candidate.text}" for candidate in translation.candidates)
    return translation.text


@contextlib.contextmanager
def lines_to(path: Path | None, *, none: bool = False) -> Iterator[Write]:
    """Write lines to a file, to standard output if there is none, or nowhere.

    A file gets its name when it is complete. If something fails on the way, what is there stays beside it as NAME.partial.
    """
    if path is None:
        yield (lambda _: None) if none else _to_standard_output
        return
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        try:
            yield lambda line: print(line, file=file)
        except BaseException:
            file.flush()
            print(f"what was written so far is in {partial}", file=sys.stderr)
            raise
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _to_standard_output(line: str) -> None:
    """UTF-8 whatever the locale says, and at once, so that a waiting program gets its answer."""
    sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def _progress(options: Options, notes: Console) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, unless the translations themselves are shown there."""
    if not notes.is_terminal or (options.output is None and sys.stdout.isatty()):
        yield lambda: None
        return
    total = None if options.input is None else sum(1 for _ in _count(options.input))
    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _count(path: Path) -> Iterable[bytes]:
    with open_file(path) as stream:
        yield from stream


def _print_report(notes: Console, report: TranslationStats, options: Options) -> None:
    speed = f", {report.tokens / report.seconds:,.0f} tokens/s" if report.seconds > 0 and report.tokens else ""
    place = f" -> {options.output}" if options.output is not None else ""
    notes.print(f"{_lines(report.lines)}, {report.tokens:,} tokens in {report.seconds:.1f} s{speed}{place}", markup=False)
    if report.empty.count:
        notes.print(f"{_lines(report.empty.count)} empty, kept as empty lines{_where(report.empty)}", markup=False)
    if report.long.count:
        how = "translated whole" if options.whole_lines else "translated in parts"
        notes.print(f"{_lines(report.long.count)} very long, {how}{_where(report.long)}", markup=False)
    if report.cut.count:
        notes.print(
            f"{_lines(report.cut.count)} cut at the length limit{_where(report.cut)}; --max-ratio and --max-extra raise it",
            markup=False,
        )
    if options.attention is not None:
        notes.print(f"attention of every head: {options.attention}", markup=False)


def _lines(count: int) -> str:
    return f"{count:,} line{'' if count == 1 else 's'}"


def _where(counter: LineCounter) -> str:
    shown = ", ".join(str(line) for line in counter.lines)
    return (
        f" (line {shown})" if counter.count == 1 else f" (lines {shown}{', ...' if counter.count > len(counter.lines) else ''})"
    )
