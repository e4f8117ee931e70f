"""The options of `entformer bench ...`. In: arguments. Out: the call of the file that does the work, imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(help="Measure speed against torch.softmax and the entmax package.", no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure speed against torch.softmax and the entmax package."""


@bench_app.command("rows")
def bench_rows(
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all results here; - is standard output.")
    ] = None,
    png_file: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw time against row length here.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: two lengths, few rounds, rough figures.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads for torch and the kernels; as many as torch takes if not given.")
    ] = None,
) -> None:
    """Race entmax of rows against torch.softmax, forward and backward, n = 32 to 8192. Takes a few minutes."""
    from entformer.cli.bench import run_rows

    run_rows(json_file=json_file, png_file=png_file, quick=quick, threads=threads)


@bench_app.command("attention")
def bench_attention(
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all results here; - is standard output.")
    ] = None,
    png_file: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw time against density here.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Some seconds: small shapes, few rounds, rough figures.")] = False,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="Numbers of threads: everything with the most, some with the others. 1,2 if not given."
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="BxHxLxD,...",
            help="Self-attention shapes; 16x8x64x64,4x8x512x64,1x8x2048x64,1x8x8192x64 if not given.",
        ),
    ] = None,
    memory: Annotated[
        bool | None, typer.Option("--memory/--no-memory", help="Peak memory against SDPA. On, unless --quick.")
    ] = None,
    scaling: Annotated[
        bool | None, typer.Option("--scaling/--no-scaling", help="What doubling the length costs. On, unless --quick.")
    ] = None,
    long: Annotated[
        bool,
        typer.Option("--long", help="Causal prefill of 16,384 and decode over 65,536 keys too, with memory. Two minutes more."),
    ] = False,
) -> None:
    """Race sparse attention against torch's fused softmax attention: time, density, memory. About five minutes."""
    from entformer.cli.bench_attention import run_attention

    run_attention(
        json_file=json_file,
        png_file=png_file,
        quick=quick,
        threads=threads,
        shapes=shapes,
        memory=memory,
        scaling=scaling,
        long=long,
    )


@bench_app.command("training")
def bench_training(
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all results here; - is standard output.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Some seconds: small batches, few rounds, rough figures.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads for torch and the kernels.")] = 1,
    preset: Annotated[str, typer.Option(help="Size of the models: micro, tiny, small or base.")] = "tiny",
) -> None:
    """Race whole translation models in training: ours, nn.Transformer, Hugging Face's Marian. Some fifteen minutes."""
    from entformer.cli.bench_training import run_training

    run_training(json_file=json_file, quick=quick, threads=threads, preset=preset)
