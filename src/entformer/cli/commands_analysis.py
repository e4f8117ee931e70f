"""The options of the commands that look at heads. In: arguments. Out: the call of the file that does the work.

Each command's file is imported when it runs, so that `--help` does not wait for torch.
"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders of `entformer train`, to compare; or folders of `entformer longctx`."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|TEXT",
            help="A prepared folder, or text: a prefix (test for test.en and test.de), SOURCE,TARGET or a .tsv. "
            "The run's own data if not given.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Part of the prepared data: test, valid or train.")] = "test",
    sentences: Annotated[int, typer.Option(min=1, help="At most so many sentences, drawn at random.")] = 1000,
    examples: Annotated[int, typer.Option(min=1, help="Sentences to look at one by one.")] = 12,
    gold: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Word alignments in Pharaoh format (0-0 1-2 2?1), for error rates.")
    ] = None,
    gold_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The text of --gold if it is not --data; links go from its first file to its second."
        ),
    ] = None,
    gold_first: Annotated[int, typer.Option(min=0, max=1, help="The number that --gold gives the first word.")] = 0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page; its numbers go beside it as .json.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for PNG, SVG and PDF; figures beside the page if not given.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    which: Annotated[
        str, typer.Option("--which", "--checkpoint", metavar="NAME", help="Weights: best, last, averaged or step-N.")
    ] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: files and main numbers.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as torch takes if not given.")] = None,
) -> None:
    """See what the heads of trained models do: one HTML page, all numbers as JSON, and figures for papers.

    Of folders of `entformer longctx`: accuracy, attention and learned scales against length.
    """
    sweeps = [folder for folder in runs if any(folder.glob("results.jsonl")) or any(folder.glob("*/results.jsonl"))]
    if sweeps:
        from entformer.cli.report_lengths import run_lengths

        others = [folder for folder in runs if folder not in sweeps]
        texts = [f"--{name}" for name, value in (("data", data), ("gold", gold), ("gold-text", gold_text)) if value]
        run_lengths(runs, others=others, texts=texts, out=out, figures=figures, title=title, as_json=as_json)
        return
    from entformer.cli.report import Options, run

    run(
        runs,
        Options(
            data=data,
            split=split,
            sentences=sentences,
            examples=examples,
            gold=gold,
            gold_text=gold_text,
            gold_first=gold_first,
            out=out,
            figures=figures,
            title=title,
            which=which,
            as_json=as_json,
            threads=threads,
        ),
    )


@app.command()
def explore(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `entformer train`.")],
    host: Annotated[
        str, typer.Option(help="Address to serve at. The default can be reached from this machine only; 0.0.0.0: from any.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 8765,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser. If not given: where there is a screen.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="SubwordTokenizer of a sentence at most.")] = 100,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a request is given up.")] = 30.0,
    which: Annotated[
        str, typer.Option("--which", "--checkpoint", metavar="NAME", help="Weights: best, last, averaged or step-N.")
    ] = "best",
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as torch takes if not given.")] = None,
) -> None:
    """Type a sentence, watch every head, and try other alphas: a live page and a JSON API on this machine."""
    from entformer.cli.explore import Options
    from entformer.cli.explore import run as serve

    serve(
        run,
        Options(
            host=host,
            port=port,
            which=which,
            max_tokens=max_tokens,
            timeout=timeout,
            threads=threads,
            device=device,
            open_page=open_page,
        ),
    )
