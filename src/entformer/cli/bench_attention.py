"""`entformer bench attention`: runs the race, prints tables, writes JSON and PNG when asked."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from entformer.bench.attention import AttentionReport, Pace, race_attention
from entformer.bench.attention_plan import SHAPES, Shape, full_plan, quick_plan
from entformer.bench.attention_racers import CONTESTANTS, OURS
from entformer.bench.bars import Bar, bars
from entformer.bench.long import LongResult
from entformer.cli.output import progress_lines, writable_file
from entformer.errors import ArgumentError

HEADINGS = {
    "1.5": "1.5",
    "learned": "learn",
    "learned spread": "learn\nspread",
    "2": "2",
    "rela": "ReLA",
    "1.01": "1.01",
    "softmax": "soft\nmax",
    "entmax package": "entmax\npkg",
}
NO_CELL = "[dim]·[/dim]"


def run_attention(
    *,
    json_file: str | None,
    png_file: Path | None,
    quick: bool,
    threads: str | None,
    shapes: str | None,
    memory: bool | None,
    scaling: bool | None,
    long: bool = False,
) -> None:
    """Measure, then show and write. Wishes are read, and places to write tried, before the long part."""
    json_path = writable_file(Path(json_file)) if json_file not in (None, "-") else None
    png_path = writable_file(png_file) if png_file is not None else None
    extras = {"memory": not quick if memory is None else memory, "scaling": not quick if scaling is None else scaling}
    extras["long"] = long
    counts = parse_threads(threads) if threads is not None else default_threads(quick)
    if quick:
        plan = quick_plan(parse_shapes(shapes) if shapes else None, counts, **extras)
    else:
        plan = full_plan(parse_shapes(shapes) if shapes else SHAPES, counts, **extras)
    console = Console(stderr=json_file == "-")  # standard output belongs to the JSON then
    with progress_lines() as progress:
        report = race_attention(plan, progress=progress)

    held = bars(report)
    _print_report(console, report, held)
    found = report.as_dict() | {"bars": [asdict(bar) | {"met": bar.met} for bar in held]}
    if json_file == "-":
        print(json.dumps(found, indent=1))
    elif json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        console.print(f"results: {json_path}", highlight=False)
    if png_path is not None:
        from entformer.bench.figures import draw_attention  # matplotlib only when a figure is wanted

        draw_attention(report, png_path)
        console.print(f"figure: {png_path}", highlight=False)


def default_threads(quick: bool) -> tuple[int, ...]:
    """1 and 2, or what the machine has; one count is enough for a quick look."""
    most = min(2, len(os.sched_getaffinity(0)))
    return (most,) if quick else tuple(range(1, most + 1))


def parse_threads(text: str) -> tuple[int, ...]:
    """Numbers from text like 1,2."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--threads {text!r} is not a list of numbers; write it like 1,2.") from None


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Shapes (batch, heads, length, head size) from text like 16x8x64x64,1x8x2048x64."""
    shapes = []
    for part in text.split(","):
        numbers = [int(number) for number in part.split("x") if number.isdecimal()]
        if len(numbers) != 4 or part.count("x") != 3 or min(numbers) < 1:
            raise ArgumentError(
                f"--shapes: {part!r} is not a shape; write batch x heads x length x head size, like 4x8x512x64."
            )
        shapes.append(Shape(*numbers))
    return tuple(shapes)


def _print_report(console: Console, report: AttentionReport, held: list[Bar]) -> None:
    _print_ratios(console, report, "forward+backward: time / SDPA (softmax)", "forward_backward")
    _print_ratios(console, report, "forward: time / SDPA (softmax)", "forward")
    _print_density(console, report)
    if report.memory:
        title = "peak memory of forward+backward beside the inputs, (1,8,L,64)"
        table = _table(console, title, "length", "contestant", "MB", "/ SDPA")
        for m in report.memory:
            table.add_row(str(m.length), m.contestant, f"{m.megabytes:.0f}", f"{m.ratio:.2f}")
        console.print(table)
    if report.scaling:
        headings = ("series", "length", "logits\nx", "density\n%", "ms", "time\nx", "MB", "memory\nx")
        table = _table(console, "alpha 1.5 when the length doubles, (1,8,L,64)", *headings)
        for s in report.scaling:
            cells = [s.series, str(s.length), f"{s.scale:.2f}", f"{100 * s.density:.2f}", f"{s.ms:.0f}", _number(s.time_ratio)]
            table.add_row(*cells, _number(s.megabytes, 0), _number(s.memory_ratio))
        console.print(table)
    for kind, what in (("prefill", "causal prefill, (1,8,L,64)"), ("decode", "one token decoded, (1,8,1/L,64)")):
        _print_long(console, [result for result in report.long if result.kind == kind], what)
    if held:
        table = _table(console, "what is promised (the worst case of each)", "promise", "measured", "bar", "verdict")
        for bar in held:
            verdict = "[green]met[/green]" if bar.met else "[red]missed[/red]"
            table.add_row(bar.what, f"{bar.measured:.2f}", f"{bar.bar:g}", verdict)
        console.print(table)
    console.print(str(report.signature), style="dim", highlight=False)


def _print_ratios(console: Console, report: AttentionReport, title: str, direction: str) -> None:
    """A row per setting, a column per contestant."""
    names = [name for name in CONTESTANTS if any(r.contestant == name for r in report.results)]
    table = _table(console, title, "shape", "case", "SDPA\nms", *(HEADINGS[name] for name in names))
    for setting in report.plan.settings:
        paces: dict[str, Pace] = {
            r.contestant: pace for r in report.results if r.setting == setting and (pace := getattr(r, direction)) is not None
        }
        if paces:
            cells = (_number(paces[name].ratio if name in paces else None) for name in names)
            table.add_row(setting.shape, setting.case(report.plan.threads), f"{paces['1.5'].sdpa_ms:.1f}", *cells)
    console.print(table)


def _print_density(console: Console, report: AttentionReport) -> None:
    """A row per setting: the density of each contestant of ours, and what learning alpha costs."""
    learned = ("learned", "learned spread")
    headings = [*(HEADINGS[name] for name in OURS), "learn\n/ 1.5", "spread\n/ 1.5"]
    title = "density: non-zero weights, %; and forward+backward of learned / fixed alpha"
    table = _table(console, title, "shape", "case", *headings)
    for setting in report.plan.settings:
        found = {r.contestant: r for r in report.results if r.setting == setting}
        shares = [_percent(found[name].density) if name in found else NO_CELL for name in OURS]
        paces = [found[name].forward_backward if name in found else None for name in learned]
        costs = [_number(pace.to_fixed if pace else None) for pace in paces]
        table.add_row(setting.shape, setting.case(report.plan.threads), *shares, *costs)
    console.print(table)


def _print_long(console: Console, results: list[LongResult], what: str) -> None:
    """A row per contestant; nothing if there are none."""
    if not results:
        return
    headings = ("contestant", "density\n%", "ms", "/ SDPA", "MB beside\ninputs", "process\nGB")
    table = _table(console, f"{what}, L = {results[0].keys:,}: forward, {results[0].rounds} rounds", *headings)
    for r in results:
        whole = None if r.process_megabytes is None else r.process_megabytes / 1024
        cells = (_percent(r.density), _number(r.ms, 1), _number(r.ratio), _number(r.megabytes, 0), _number(whole))
        table.add_row(r.contestant, *cells)
    console.print(table)


def _table(console: Console, title: str, *headings: str) -> Table:
    """Narrow enough for 80 columns. Words to the left, numbers to the right."""
    console.print(title, style="italic", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0 if len(headings) > 9 else (0, 1, 0, 0))
    for heading in headings:
        words = heading in ("shape", "case", "contestant", "series", "promise", "verdict")
        style = "dim" if heading == "SDPA\nms" else None
        table.add_column(heading, justify="left" if words else "right", style=style, no_wrap=words)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def _number(value: float | None, digits: int = 2) -> str:
    return NO_CELL if value is None else f"{value:.{digits if value < 100 else 0}f}"
