"""The demo's last part: one report of both models. In: two trained runs. Out: report.html, report.json, figures as PNG.

The same page as `entformer report`, over a bounded number of test sentences, so that it takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from entformer.analysis.data import report_data
from entformer.analysis.html_report import ReportFiles, write_report
from entformer.cli.demo_training import DemoModel
from entformer.cli.report import Options, prepare_run
from entformer.cli.report_progress import report_progress
from entformer.text.numbers import format_number

SENTENCES = 200  # the measures are taken over; enough for two digits
EXAMPLES = 8  # to look at one by one
STRIKING = 0.5  # a head that does one thing with half of its weight
TOLD = 2
TOO_COMMON = ("broad context", "rarely active")  # say how much a head looks at, not at what


class FoundHead(NamedTuple):
    """A head with a high score for a role."""

    score: float
    run: str
    head: str  # "decoder.0.2", counted from 0
    role: str


@dataclass(frozen=True)
class DemoReport:
    """What was written, and what stands out in it."""

    files: ReportFiles
    sentences: int
    found: list[FoundHead]


def make_report(models: Sequence[DemoModel], out: Path, console: Console, *, sentences: int = SENTENCES) -> DemoReport:
    """Write the report of all `models` into `out`, with progress, and say which heads stand out."""
    options = Options(split="test", sentences=sentences, examples=EXAMPLES)
    console.print(f"\n[bold]What the heads do[/bold]: a report of both models over {sentences} test sentences", highlight=False)
    with report_progress(console, indent="  ") as progress:
        runs = [replace(prepare_run(model.folder.path, model.title, options), scores=model.test_scores) for model in models]
        data = report_data(runs, examples=EXAMPLES, title="The demo: softmax and learned alpha", progress=progress)
    with console.status("drawing the figures"):
        files = write_report(data, out / "report.html", out / "figures", formats=("png",))
    report = DemoReport(files, data["runs"][0]["data"]["sentences"], striking_heads(data))
    _show_found(console, report)
    return report


def striking_heads(data: dict[str, Any]) -> list[FoundHead]:
    """The heads of ReportData that give half of their weight or more to one thing; the best first, each role and head once."""
    scored = [
        FoundHead(score, run["name"], head, ranking["role"])
        for run in data["runs"]
        for ranking in run["roles"]
        if ranking["role"] not in TOO_COMMON
        for head, score in ranking["heads"]
        if score >= STRIKING
    ]
    best: list[FoundHead] = []
    for found in sorted(scored, key=lambda found: -found.score):
        if all(found.role != other.role and (found.run, found.head) != (other.run, other.head) for other in best):
            best.append(found)
    return best


def _show_found(console: Console, report: DemoReport) -> None:
    if not report.found:
        console.print("  No head stands out by what was measured; the page ranks them all.", highlight=False)
        return
    console.print("  Heads that stand out by what was measured (1 is the most):", highlight=False)
    for found in report.found[:TOLD]:
        line = f"    {found.run:<13} {found.head:<13} {found.role:<16} {format_number(found.score)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
