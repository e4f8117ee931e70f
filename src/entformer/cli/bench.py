"""`entformer bench`: measures speed relative to a baseline in the same run."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from entformer.cli.output import make_table, progress_bar, writable_file
from entformer.errors import ArgumentError

if TYPE_CHECKING:
    from entformer.bench.attention import AttentionShape
    from entformer.bench.harness import Report

app = typer.Typer(help="Measure speed relative to softmax on this machine.", no_args_is_help=True)

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write all measurements as JSON; - for standard output.")
]
IsaOption = Annotated[
    Literal["amx", "avx512_bf16", "avx512", "avx2", "portable"] | None,
    typer.Option("--isa", help="Instruction set of the kernels.", show_default="the widest of this CPU"),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="Measure fewer cases less often: takes seconds, but is imprecise.")]


@app.command("rows")
def bench_rows(
    json_file: JsonOption = None,
    png_file: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Plot time against row length.")] = None,
    quick: QuickOption = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads.", show_default="PyTorch's")] = None,
    isa: IsaOption = None,
) -> None:
    """Benchmark entmax against torch.softmax (forward and backward, row lengths 32 to 8192). Takes a few minutes."""
    from entformer.bench.harness import instruction_set
    from entformer.bench.rows import benchmark_rows

    _check_outputs(json_file, png_file)
    with instruction_set(isa), progress_bar(Console(stderr=True)) as progress:
        report = benchmark_rows(quick=quick, num_threads=threads, progress=progress)
    _finish(report, json_file, png_file, x="n", x_label="row length n")


@app.command("attention")
def bench_attention(
    json_file: JsonOption = None,
    png_file: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Plot time against density.")] = None,
    quick: QuickOption = False,
    threads: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Thread counts to measure; only the largest runs every case.", show_default="1,2"),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="BxHxLxD,...",
            help="Shapes of self-attention.",
            show_default="16x8x64x64,4x8x512x64,1x8x2048x64,1x8x8192x64",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda: bfloat16 on a GPU, against FlashAttention and adasplash.")] = "cpu",
    isa: IsaOption = None,
) -> None:
    """Benchmark attention against scaled_dot_product_attention, and report the density. Takes about five minutes."""
    from entformer.bench.attention import benchmark_attention
    from entformer.bench.harness import instruction_set

    _check_outputs(json_file, png_file)
    if device != "cpu":
        if isa is not None:
            raise ArgumentError(f"--isa {isa} selects an instruction set of the CPU; leave it out with --device {device}.")
        _bench_gpu(device, shapes, json_file, quick=quick)
        return
    most = min(2, len(os.sched_getaffinity(0)))
    counts = _parse_threads(threads) if threads is not None else tuple(range(1, most + 1))
    chosen = _parse_shapes(shapes) if shapes else None
    with instruction_set(isa), progress_bar(Console(stderr=True)) as progress:
        report = benchmark_attention(chosen, counts, quick=quick, progress=progress)
    _finish(report, json_file, png_file, x="density", x_label="density (fraction of nonzero weights)")


@app.command("training")
def bench_training(
    json_file: JsonOption = None,
    quick: QuickOption = False,
    threads: Annotated[int, typer.Option(min=1, help="Number of threads.")] = 1,
    preset: Annotated[Literal["micro", "tiny", "small", "base"], typer.Option(help="Size of the models.")] = "tiny",
    isa: IsaOption = None,
) -> None:
    """Benchmark training steps of a translation model against the same model with SDPA softmax. Takes fifteen minutes."""
    from entformer.bench.harness import instruction_set
    from entformer.bench.training import benchmark_training

    _check_outputs(json_file, None)
    with instruction_set(isa), progress_bar(Console(stderr=True)) as progress:
        report = benchmark_training(preset=preset, num_threads=threads, quick=quick, progress=progress)
    _finish(report, json_file)


@app.command("compile-gpu")
def compile_gpu(
    json_file: JsonOption = None,
    targets: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Architectures to compile for.")
    ] = "sm_80,sm_90,sm_100,gfx942",
    full: Annotated[bool, typer.Option("--full", help="Every kind of variant, not only those that most calls use.")] = False,
) -> None:
    """Compile the GPU kernels, without a GPU, and print registers, spills, shared memory and occupancy as a markdown table.

    Exits with code 1 if a variant exceeds the limits of a target or a hot one spills. Takes minutes; Triton caches its results.
    """
    from entformer.bench.compile_gpu import TARGETS, manifest, table
    from entformer.bench.gpu_variants import FULL, HOT, ROWS

    chosen = targets.split(",")
    unknown = [name for name in chosen if name not in TARGETS]
    if unknown:
        raise ArgumentError(f"--targets: {unknown[0]!r} is unknown; choose from {', '.join(TARGETS)}.")
    _check_outputs(json_file, None)
    variants = FULL if full else (*HOT, *ROWS)
    found = []
    with progress_bar(Console(stderr=True)) as progress:
        for entry in manifest(variants, chosen):
            found.append(entry)
            progress(f"{len(found)} of {len(variants) * len(chosen)}: {entry.variant}, {entry.target}")
    _write_json([entry._asdict() | {"variant": str(entry.variant)} for entry in found], json_file)
    if json_file != "-":
        print("\n".join(table(found)))
    failed = [entry for entry in found if entry.failure]
    for entry in failed:
        Console(stderr=True).print(f"{entry.variant} on {entry.target}: {entry.failure}", style="red", highlight=False)
    if failed:
        raise typer.Exit(1)


def _bench_gpu(device: str, shapes: str | None, json_file: str | None, *, quick: bool) -> None:
    from entformer.bench.attention_gpu import benchmark_attention_gpu

    if device.split(":")[0] != "cuda":
        raise ArgumentError(f"--device {device!r} is unknown; choose cpu or cuda (for AMD GPUs, too).")
    with progress_bar(Console(stderr=True)) as progress:
        report = benchmark_attention_gpu(
            _parse_shapes(shapes) if shapes else None, device=device, quick=quick, progress=progress
        )
    _finish(report, json_file)


def _check_outputs(json_file: str | None, png_file: Path | None) -> None:
    """Fails before the measurements rather than after them."""
    if json_file not in (None, "-"):
        writable_file(Path(json_file))
    if png_file is not None:
        writable_file(png_file)


def _finish(report: "Report", json_file: str | None, png_file: Path | None = None, *, x: str = "", x_label: str = "") -> None:
    _print_report(Console(stderr=json_file == "-"), report)  # standard output is JSON only
    _write_json(report.as_dict(), json_file)
    if png_file is not None:
        from entformer.bench.figures import plot_report

        plot_report(report, png_file, x=x, x_label=x_label)


def _write_json(content: Any, json_file: str | None) -> None:
    text = json.dumps(content, indent=1)
    if json_file == "-":
        print(text)
    elif json_file is not None:
        Path(json_file).write_text(text + "\n", encoding="utf-8")


def _print_report(console: Console, report: "Report") -> None:
    """Prints one table per direction with a row per case and a column per implementation, then the densities."""
    cases = list(dict.fromkeys(m.case for m in report.measurements))
    names = list(dict.fromkeys(m.implementation for m in report.measurements))
    by_key = {(m.direction, m.case, m.implementation): m for m in report.measurements}
    tables: list[tuple[str, list[str], list[list[str]]]] = []
    for direction in dict.fromkeys(m.direction for m in report.measurements):
        rows = []
        for case in cases:
            found = [by_key.get((direction, case, name)) for name in names]
            baseline = next((f"{m.baseline_ms:.2f}" for m in found if m is not None), None)
            if baseline is not None:
                rows.append([case, baseline, *("" if m is None else f"{m.ratio:.2f}" for m in found)])
        headings = [f"{report.baseline} ms", *names]
        tables.append((f"{direction}: time / {report.baseline}", headings, rows))
    densities = {(m.case, m.implementation): m.details["density"] for m in report.measurements if "density" in m.details}
    if densities:
        rows = [[case, *(f"{100 * densities[case, n]:.3g}" if (case, n) in densities else "" for n in names)] for case in cases]
        tables.append(("density: nonzero weights, %", names, rows))
    for title, headings, rows in tables:
        table = make_table("", *(heading.replace(" ", "\n") for heading in headings), title=title)
        for row in rows:
            table.add_row(*row)
        wide = table.__rich_measure__(console, console.options.update(max_width=1000)).maximum
        console.width = max(wide, console.width)  # in a file or a narrow window no number is cut
        console.print(table)
    console.print(str(report.signature), style="dim", highlight=False)


def _parse_threads(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--threads {text!r} is not a list of numbers; write it like 1,2.") from None


def _parse_shapes(text: str) -> "tuple[AttentionShape, ...]":
    from entformer.bench.attention import AttentionShape

    shapes = []
    for part in text.split(","):
        numbers = [int(number) for number in part.split("x") if number.isdecimal()]
        if len(numbers) != 4 or part.count("x") != 3 or min(numbers) < 1:
            raise ArgumentError(f"--shapes: {part!r} is not batch x heads x length x head size, like 4x8x512x64.")
        shapes.append(AttentionShape(*numbers))
    return tuple(shapes)
