"""`entformer bench rows`: runs the race, prints a table per direction and scale, writes JSON and PNG when asked."""

import json
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from entformer.bench.rows import ALPHAS, DIRECTIONS, QUICK, Plan, RowReport, race_rows
from entformer.cli.output import progress_lines, writable_file

HEADINGS = {"1": "α = 1", "1.5": "1.5", "2": "2", "learned": "learned", "per head": "learned\nper head"}


def run_rows(*, json_file: str | None, png_file: Path | None, quick: bool, threads: int | None) -> None:
    """Measure, then show and write. Places to write are tried before the long part."""
    json_path = writable_file(Path(json_file)) if json_file not in (None, "-") else None
    png_path = writable_file(png_file) if png_file is not None else None
    console = Console(stderr=json_file == "-")  # standard output belongs to the JSON then
    with progress_lines() as progress:
        report = race_rows(QUICK if quick else Plan(), threads=threads, progress=progress)

    _print_tables(console, report)
    if json_file == "-":
        print(json.dumps(report.as_dict(), indent=1))
    elif json_path is not None:
        json_path.write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        console.print(f"results: {json_path}", highlight=False)
    if png_path is not None:
        from entformer.bench.figures import draw_rows  # matplotlib only when a figure is wanted

        draw_rows(report, png_path)
        console.print(f"figure: {png_path}", highlight=False)


def _print_tables(console: Console, report: RowReport) -> None:
    has_peer = any(result.peer is not None for result in report.results)
    for scale in report.plan.scales:
        for direction in DIRECTIONS:
            title = f"{direction}, scores ~ N(0, {scale:g}²): time / torch.softmax"
            table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            table.add_column("n", justify="right", style="bold")
            table.add_column("softmax\nms", justify="right", style="dim")
            for alpha in ALPHAS:
                table.add_column(HEADINGS[alpha], justify="right")
            if has_peer:
                table.add_column("entmax\nα = 1.5", justify="right", style="dim")
                table.add_column("entmax\nlearned", justify="right", style="dim")
            for n in report.plan.lengths:
                found = {r.alpha: r for r in report.results if (r.n, r.scale, r.direction) == (n, scale, direction)}
                cells = [str(n), f"{found['1'].softmax_ms:.2f}", *(f"{found[alpha].ours:.2f}" for alpha in ALPHAS)]
                if has_peer:
                    cells += [f"{peer:.0f}" if (peer := found[alpha].peer) is not None else "" for alpha in ("1.5", "learned")]
                table.add_row(*cells)
            console.print(table)
    gains = [r for r in report.results if r.faster_than_peer is not None and r.n >= 512 and r.alpha == "1.5"]
    if gains:
        least = min(gains, key=lambda r: r.faster_than_peer or 0.0)
        console.print(
            f"At α = 1.5 and n >= 512, entformer is at least {least.faster_than_peer:.3g} times as fast as the entmax package "
            f"(least at n = {least.n}, {least.direction}).",
            highlight=False,
        )
    console.print(str(report.signature), style="dim", highlight=False)
