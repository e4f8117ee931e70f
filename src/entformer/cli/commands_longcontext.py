"""The options of `entformer longctx ...`. In: arguments. Out: the call of the file that does the work, imported when run."""

from pathlib import Path
from typing import Annotated

import typer

from entformer.longcontext.registry import ABOUT

app = typer.Typer(
    help="Train on short sequences, evaluate on long ones: softmax, SSMax, entmax, ASEntmax, and your own mapping.",
    no_args_is_help=True,
)


def _list(wanted: bool) -> None:
    if wanted:
        from entformer.cli.longctx import explain

        explain()
        raise typer.Exit()


@app.callback()
def longctx(
    _listed: Annotated[
        bool, typer.Option("--list", callback=_list, is_eager=True, help="Explain all tasks, methods and positions, and exit.")
    ] = False,
) -> None:
    """Train on short sequences, evaluate on long ones: softmax, SSMax, entmax, ASEntmax, and your own mapping."""


@app.command("theory")
def theory(
    out: Annotated[Path, typer.Option(help="Folder for the figure and its figures as JSON.")] = Path("longctx-theory"),
) -> None:
    """Draw how weights disperse as a row grows, without any training. Seconds."""
    from entformer.cli.longctx import draw

    draw(out)


def _task(
    context: typer.Context,
    methods: Annotated[
        str, typer.Option(metavar="NAME,...", help="See --list; module:Name is one of your own.")
    ] = "softmax,ssmax,entmax,asentmax",
    positions: Annotated[str, typer.Option(metavar="NAME,...", help="nape, rope, alibi, nope, ...; see --list.")] = "nape",
    train_length: Annotated[int | None, typer.Option(min=4, help="Longest training sequence; lengths go down to half.")] = None,
    eval_lengths: Annotated[
        str | None, typer.Option(metavar="64..4096|64,96,128", help="Lengths to evaluate; .. means by doubling.")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N|N,N,...", help="How many seeds, or which.")] = "3",
    steps: Annotated[int | None, typer.Option(min=1, help="Updates of each run; the task's own if not given.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="90s|10m|2h", help="Train each run for so long, in place of --steps.")
    ] = None,
    size: Annotated[str, typer.Option(help="laptop: minutes on two cores; paper: the published set-up, for a GPU.")] = "laptop",
    sequences: Annotated[int | None, typer.Option(min=1, help="Sequences evaluated at each length.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the task, as alphabet=16; may be repeated.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1)] = None,
    width: Annotated[int | None, typer.Option(min=1)] = None,
    heads: Annotated[int | None, typer.Option(min=1)] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Size between the maps of the feed-forward layers.")] = None,
    batch: Annotated[int | None, typer.Option(min=1)] = None,
    lr: Annotated[float | None, typer.Option(min=0.0, help="Peak learning rate.")] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Updates of warm-up; with size laptop a tenth of all at most.")
    ] = None,
    validate_every: Annotated[
        int | None, typer.Option(min=1, help="Updates between the validations that choose a checkpoint (size paper).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1 and so on.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16 (autocast, float32 weights), or auto; the size's own if not given.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads for torch and the kernels; small models gain from none.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; longctx-TASK if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON lines instead of tables.")] = False,
) -> None:
    from entformer.cli.longctx import run

    changes = {
        "train_length": train_length,
        "steps": steps,
        "sequences": sequences,
        "layers": layers,
        "width": width,
        "heads": heads,
        "hidden": hidden,
        "batch": batch,
        "lr": lr,
        "warmup": warmup,
        "validate_every": validate_every,
        "precision": precision,
    }
    run(
        context.info_name or "",
        methods=methods,
        positions=positions,
        seeds=seeds,
        eval_lengths=eval_lengths,
        budget=budget,
        size=size,
        options=option or [],
        changes={name: value for name, value in changes.items() if value is not None},
        threads=threads,
        device=device,
        out=out,
        as_json=as_json,
    )


for _name, _about in ABOUT.items():
    app.command(_name, help=f"{_about} Stopped runs go on when the same command is given again.")(_task)
