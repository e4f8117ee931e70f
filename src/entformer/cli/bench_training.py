"""`entformer bench training`: races whole models, prints a table per precision, writes JSON when asked."""

import json
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from entformer.bench.training import TrainingReport, full_plan, quick_plan, race_training
from entformer.cli.output import progress_lines, writable_file
from entformer.errors import ArgumentError
from entformer.models.config import PRESETS


def run_training(*, json_file: str | None, quick: bool, threads: int, preset: str) -> None:
    """Measure, then show and write. Wishes are read, and the place to write tried, before the long part."""
    if preset not in PRESETS:
        raise ArgumentError(f"--preset {preset!r} is not known; choose one of {', '.join(PRESETS)}.")
    json_path = writable_file(Path(json_file)) if json_file not in (None, "-") else None
    plan = (quick_plan if quick else full_plan)(threads, preset)
    console = Console(stderr=json_file == "-")  # standard output belongs to the JSON then
    with progress_lines() as progress:
        report = race_training(plan, progress=progress)

    _print_report(console, report)
    found = report.as_dict() | {"bars": [asdict(bar) | {"met": bar.met} for bar in report.bars()]}
    if json_file == "-":
        print(json.dumps(found, indent=1))
    elif json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        console.print(f"results: {json_path}", highlight=False)


def _print_report(console: Console, report: TrainingReport) -> None:
    names = dict.fromkeys(result.contestant for result in report.results)
    title = f"training speed / our model with softmax by SDPA, preset {report.plan.preset} (target tokens/s)"
    console.print(title, style="italic", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("contestant", no_wrap=True)
    for setting in report.plan.settings:
        table.add_column(f"{setting.name}\n{setting.precision}", justify="right")
    for name in names:
        cells = [
            f"{result.speed:.2f} [dim]({result.tokens_per_second:.0f})[/dim]"
            for setting in report.plan.settings
            for result in report.results
            if result.setting == setting and result.contestant == name
        ]
        table.add_row(name, *cells)
    console.print(table)
    if report.transformers is None:
        console.print("Marian is left out: transformers is not installed.", highlight=False)
    console.print("what is promised (the worst case of each; larger is better)", style="italic", highlight=False)
    bars = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("promise", "measured", "bar", "verdict"):
        bars.add_column(heading, justify="left" if heading in ("promise", "verdict") else "right")
    for bar in report.bars():
        bars.add_row(bar.what, f"{bar.measured:.2f}", f"{bar.bar:g}", "[green]met[/green]" if bar.met else "[red]missed[/red]")
    console.print(bars)
    console.print(str(report.signature), style="dim", highlight=False)
