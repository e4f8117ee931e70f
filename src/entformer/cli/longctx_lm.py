"""`entformer longctx lm`: language models beyond their training length."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from entformer.cli.options import Checkpoint, Device, Threads
from entformer.cli.output import progress_bar, writable_directory
from entformer.errors import ArgumentError


def longctx_lm(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories of language models.")],
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text to read.", show_default="the test text of each run's data")
    ] = None,
    longest: Annotated[int, typer.Option(min=1, max=64, help="Longest context, as a multiple of the training length.")] = 16,
    windows: Annotated[int, typer.Option(min=1, help="Number of windows of text.")] = 8,
    checkpoint: Checkpoint = "best",
    device: Device = "cpu",
    threads: Threads = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output directory.")] = Path("longctx-lm"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of tables.")] = False,
) -> None:
    """Language models: perplexity by context length and by position, retrieval of a fact, and last words."""
    import torch

    from entformer.checkpoint.language_model import load_language_model
    from entformer.cli.text_score import text_to_score
    from entformer.files import plain, write_json, write_text
    from entformer.longcontext.figures import draw_language
    from entformer.longcontext.language import evaluate_lengths, markdown

    if threads is not None:
        torch.set_num_threads(threads)
    if len({run.resolve() for run in runs}) < len(runs):
        raise ArgumentError("a run is named twice; name each once.")
    writable_directory(out)
    factors = tuple(1 << power for power in range(longest.bit_length()))
    reports = []
    with progress_bar(Console(stderr=True, highlight=False)) as show:
        for run in runs:
            loaded = load_language_model(run, checkpoint, device=device)
            _, ids, _ = text_to_score(run, loaded, data=None, split=None, file=text)
            reports.append(evaluate_lengths(loaded, ids, name=run.name, factors=factors, count=windows, progress=show))
    found = [report.as_dict() for report in reports]
    write_json(out / "results.json", {"models": found})
    write_text(out / "table.md", markdown(reports))
    draw_language(found).savefig(out / "curves.png", dpi=150)
    print(json.dumps(plain(found)) if as_json else markdown(reports))
    if not as_json:
        print(f"{out}: results.json, table.md, curves.png")
