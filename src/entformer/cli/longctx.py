"""`entformer longctx`: trains on short sequences and evaluates on long ones.

Writes results.jsonl, table.md, curves.png and scaling.png.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console

from entformer.cli.longctx_lm import longctx_lm
from entformer.cli.output import make_table, progress_bar, writable_directory
from entformer.errors import ArgumentError
from entformer.longcontext.registry import ABOUT, TaskConfig, get_task_config

if TYPE_CHECKING:
    from entformer.longcontext.train import RunSpec

app = typer.Typer(no_args_is_help=True)


def _print_list(requested: bool) -> None:
    if requested:
        explain()
        raise typer.Exit()


@app.callback()
def _longctx(
    _list: Annotated[
        bool, typer.Option("--list", callback=_print_list, is_eager=True, help="Describe tasks, methods and positions.")
    ] = False,
) -> None:
    """Train on short sequences, evaluate on long ones: softmax, SSMax, entmax, ASEntmax, or your own normalizer.

    Rerun the same command to resume.
    """


@app.command()
def theory(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for theory.png and theory.json.")] = Path(
        "longctx-theory"
    ),
) -> None:
    """Plot how attention weights disperse as the number of keys grows, without training. Takes seconds."""
    from entformer.files import write_json
    from entformer.longcontext.figures import draw_theory
    from entformer.longcontext.theory import dispersion

    writable_directory(out)
    found = dispersion()
    draw_theory(found, out / "theory.png")
    write_json(out / "theory.json", {"rows": [asdict(spread) for spread in found]})
    print(f"{out / 'theory.png'}, {out / 'theory.json'}")


def explain() -> None:
    """Prints all tasks with examples and options, all methods and all positions."""
    from entformer.longcontext.methods import METHODS, POSITIONS
    from entformer.longcontext.tasks import TASKS, make_task

    console = Console(highlight=False)
    console.print("[bold]tasks[/bold]")
    for name, about in ABOUT.items():
        example = " ".join((TASKS[name].__doc__ or "").split("\n\n")[0].split())
        options = ", ".join(f"{k}={v}" for k, v in asdict(make_task(name)).items() if k != "split")
        console.print(f"  [bold]{name}[/bold]: {about}")
        console.print(f"      e.g. {example}", markup=False, style="dim")
        console.print(f"      options: {options or 'none'}", markup=False, style="dim")
    for title, entries in (("methods", METHODS), ("positions", POSITIONS)):
        console.print(f"[bold]{title}[/bold]")
        for name, (about, _) in entries.items():
            console.print(f"  [bold]{name}[/bold]: {about}")
    console.print("  Your own method: module:Name, a class or function that maps scores (-inf where masked) to weights.")


def run_task(
    task: str,
    methods: Annotated[
        str, typer.Option(metavar="NAME,...", help="Methods (see --list); module:Name for your own.")
    ] = "softmax,ssmax,entmax,asentmax",
    positions: Annotated[str, typer.Option(metavar="NAME,...", help="Position encodings (see --list).")] = "nape",
    train_length: Annotated[
        int | None,
        typer.Option(min=4, help="Maximum training length; lengths are drawn at random from half of it to all of it."),
    ] = None,
    eval_lengths: Annotated[
        str | None, typer.Option(metavar="64..4096|64,96,128", help="Evaluation lengths; 64..4096 means 64, 128, ..., 4096.")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N|N,N,...", help="Number of seeds, or a list of seeds.")] = "3",
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps per run.", show_default="the task's")] = None,
    budget: Annotated[str | None, typer.Option(metavar="90s|10m|2h", help="Training time per run, instead of --steps.")] = None,
    size: Annotated[
        Literal["laptop", "paper"], typer.Option(help="laptop: minutes on two cores; paper: the published setup, for a GPU.")
    ] = "laptop",
    sequences: Annotated[int | None, typer.Option(min=1, help="Number of evaluation sequences per length.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Task option, e.g. alphabet=16. Repeatable.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Number of layers.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Model dimension.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Number of attention heads.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Inner dimension of the feed-forward layers.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size in sequences.")] = None,
    lr: Annotated[float | None, typer.Option(min=0.0, help="Peak learning rate.")] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Warmup steps; size laptop uses at most a tenth of all steps.")
    ] = None,
    validate_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between the validations that select a checkpoint (size paper).")
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"] | None,
        typer.Option(
            help="bfloat16: autocast with float32 weights; auto: bfloat16 if it is fast here.", show_default="by size"
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads; more do not help small models.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Output directory.", show_default="longctx-TASK")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON lines instead of tables.")] = False,
) -> None:
    """Trains every method on a task and evaluates it. All arguments are checked before the first training step."""
    import torch

    from entformer.files import plain, write_text
    from entformer.longcontext.figures import draw_scaling, draw_sweep
    from entformer.longcontext.results import markdown, sweep
    from entformer.longcontext.train import select_device
    from entformer.training.precision import precision_here

    if budget is not None and steps is not None:
        raise ArgumentError("give --steps or --budget, not both.")
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
    changes = {name: value for name, value in changes.items() if value is not None}
    recipe = _make_recipe(task, size, eval_lengths, budget, options or [], changes)
    specs = _make_specs(recipe, methods, positions, seeds)
    torch_device = select_device(device)
    recipe = replace(recipe, precision=precision_here(cast(Any, recipe.precision), torch_device))
    folder = writable_directory(out or Path(f"longctx-{recipe.task}"))
    torch.set_num_threads(threads)
    notes = Console(stderr=True, highlight=False)
    with progress_bar(notes if notes.is_terminal else Console(quiet=True)) as show:

        def describe(spec: "RunSpec") -> str:
            return f"{spec.method}, {spec.positions}, seed {spec.seed}"

        records = sweep(
            recipe,
            specs,
            folder,
            lambda spec, what: notes.print(f"{describe(spec)}: {what}"),
            lambda spec, step, steps, loss: show(describe(spec), step, steps, f"{step}/{steps}, loss {loss:.3f}"),
            device=str(torch_device),
        )
    write_text(folder / "table.md", markdown(records))
    draw_sweep(records).savefig(folder / "curves.png", dpi=150)
    drawn = ["results.jsonl", "table.md", "curves.png"]
    if (scaling := draw_scaling(records)) is not None:
        scaling.savefig(folder / "scaling.png", dpi=150)
        drawn.append("scaling.png")
    if as_json:
        for record in records:
            print(json.dumps(plain(record)))
        return
    _print_tables(records)
    print(f"{folder}: {', '.join(drawn)}")


app.command("lm")(longctx_lm)
for _name, _about in ABOUT.items():
    _command = partial(run_task, _name)
    _command.__annotations__ = run_task.__annotations__  # typer reads the options from them
    app.command(_name, help=_about)(_command)


def _make_recipe(
    task: str, size: str, eval_lengths: str | None, budget: str | None, options: list[str], changes: Mapping[str, Any]
) -> TaskConfig:
    import torch

    from entformer.longcontext.tasks import make_task

    recipe = replace(get_task_config(task, size), **changes)
    if "validate_every" in changes and not recipe.validate_at:
        raise ArgumentError(
            f"--validate-every: with size {size} the last weights are kept, so there are no validations; remove it."
        )
    if options:
        recipe = replace(recipe, options={**recipe.options, **dict(_parse_option(option) for option in options)})
    if eval_lengths is not None:
        recipe = replace(recipe, eval_lengths=_parse_lengths(eval_lengths))
    if budget is not None:
        recipe = replace(recipe, seconds=_parse_seconds(budget))
    held_out = make_task(recipe.task, **recipe.options).held_out()
    for length in (recipe.shortest, recipe.train_length, *recipe.lengths):
        held_out.sample(1, length, torch.Generator().manual_seed(0))  # an impossible length fails before training
    return recipe


def _make_specs(recipe: TaskConfig, methods: str, positions: str, seeds: str) -> "list[RunSpec]":
    """Returns all runs, seeds outermost, so that a sweep stopped early can compare methods."""
    from entformer.longcontext.methods import get_positions
    from entformer.longcontext.train import RunSpec, build

    names, encodings = _parse_names(methods, "--methods"), _parse_names(positions, "--positions")
    for encoding in encodings:
        get_positions(encoding)
    if recipe.task == "max-retrieval":
        encodings = ["nope"]  # a set has no positions
    for name in names:
        build(
            replace(recipe, layers=1, width=recipe.heads * 2, hidden=2), RunSpec(name, encodings[0], 0)
        )  # raises if it cannot be built
    return [RunSpec(name, encoding, seed) for seed in _parse_seeds(seeds) for encoding in encodings for name in names]


def _parse_names(text: str, option: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ArgumentError(f"{option} is empty; give names separated by commas.")
    return names


def _parse_seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*,?", text) or text == "0":
        raise ArgumentError(f"--seeds {text!r}: give a number of seeds, such as 3, or a list, such as 0,1,5.")
    return list(range(int(text))) if "," not in text else sorted({int(seed) for seed in text.split(",") if seed})


def _parse_lengths(text: str) -> tuple[int, ...]:
    """Parses "64..4096" (doubling) and "64,96,128"; both forms can be mixed."""
    lengths: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        if not found or int(found[1]) < 1 or int(found[2] or found[1]) < int(found[1]):
            raise ArgumentError(
                f"--eval-lengths {text!r}: give a range that doubles, such as 64..4096, or a list, such as 64,96,128."
            )
        length, last = int(found[1]), int(found[2] or found[1])
        while length <= last:
            lengths.add(length)
            length *= 2
    return tuple(sorted(lengths))


def _parse_seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if not found or float(found[1]) <= 0.0:
        raise ArgumentError(f"--budget {text!r}: give a time, such as 90s, 10m or 2h.")
    return float(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]


def _parse_option(text: str) -> tuple[str, int | float]:
    name, equals, value = text.partition("=")
    try:
        return name.strip(), int(value) if re.fullmatch(r"\s*\d+\s*", value) else float(value)
    except ValueError:
        raise ArgumentError(f"--option {text!r}: give NAME=NUMBER{'' if equals else ', with ='}.") from None


def _print_tables(records: list[dict[str, Any]]) -> None:
    from entformer.longcontext.results import METRICS, table

    console = Console(highlight=False)
    one_answer = all(record["exact_match"] == record["token_accuracy"] for record in records)
    lengths = sorted({record["length"] for record in records})
    for metric, title in METRICS.items():
        if one_answer and metric == "exact_match":
            continue
        title = f"{title}, %, mean ± standard deviation over seeds"
        shown = make_table("method", "positions", *map(str, lengths), title=title)
        for (method, encoding), row in table(records, metric).items():
            shown.add_row(method, encoding, *(str(row[length]) if length in row else "" for length in lengths))
        console.print(shown)
