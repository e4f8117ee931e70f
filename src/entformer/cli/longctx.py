"""`entformer longctx`: trains methods on a task and writes results.jsonl, table.md, curves.png and scaling.png."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from entformer.checkpoint.atomic import plain, write_json, write_text
from entformer.cli.output import writable_folder
from entformer.errors import ArgumentError
from entformer.longcontext.figures import draw_scaling, draw_sweep, draw_theory
from entformer.longcontext.methods import METHODS, POSITIONS, positions_of
from entformer.longcontext.registry import ABOUT, Recipe, recipe_of
from entformer.longcontext.results import METRICS, markdown, sweep, table
from entformer.longcontext.tasks import TASKS, make_task
from entformer.longcontext.theory import dispersion
from entformer.longcontext.train import RunSpec, build, device_here
from entformer.training.precision import precision_here


def explain() -> None:
    """Print all tasks with their worked examples and options, all methods and all positions."""
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
    console.print("  A method of your own: module:Name, a class or function that maps scores to weights; -inf = hidden.")


def draw(out: Path) -> None:
    """The figure of the theory, and its numbers."""
    writable_folder(out)
    found = dispersion()
    draw_theory(found, out / "theory.png")
    write_json(out / "theory.json", {"rows": [asdict(spread) for spread in found]})
    print(f"{out / 'theory.png'}, {out / 'theory.json'}")


def run(
    task: str,
    *,
    methods: str,
    positions: str,
    seeds: str,
    eval_lengths: str | None,
    budget: str | None,
    size: str,
    options: list[str],
    changes: Mapping[str, Any],
    threads: int,
    device: str = "auto",
    out: Path | None,
    as_json: bool,
) -> None:
    """Read all requests, then sweep. Mistakes are found before the first update."""
    if budget is not None and "steps" in changes:
        raise ArgumentError("give --steps or --budget, not both.")
    recipe = _recipe(task, size, eval_lengths, budget, options, changes)
    specs = _specs(recipe, methods, positions, seeds)
    where = device_here(device)
    recipe = replace(recipe, precision=precision_here(_precision(recipe.precision), where))
    folder = writable_folder(out or Path(f"longctx-{recipe.task}"))
    torch.set_num_threads(threads)
    notes = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
        console=notes,
    )
    with bar:
        line = bar.add_task("", total=1.0, visible=notes.is_terminal)

        def note(spec: RunSpec, what: str) -> None:
            notes.print(f"{spec.method}, {spec.positions}, seed {spec.seed}: {what}")

        def tell(spec: RunSpec, step: int, steps: int, loss: float) -> None:
            who = f"{spec.method}, {spec.positions}, seed {spec.seed}"
            bar.update(line, description=f"{who}, loss {loss:.3f}", total=steps, completed=step)

        records = sweep(recipe, specs, folder, note, tell, device=str(where))
    write_text(folder / "table.md", markdown(records))
    draw_sweep(records, folder / "curves.png")
    drawn = ["results.jsonl", "table.md", "curves.png"]
    if draw_scaling(records, folder / "scaling.png"):
        drawn.append("scaling.png")
    if as_json:
        for record in records:
            print(json.dumps(plain(record)))
        return
    _print(records)
    print(f"{folder}: {', '.join(drawn)}")


def _recipe(
    task: str, size: str, eval_lengths: str | None, budget: str | None, options: list[str], changes: Mapping[str, Any]
) -> Recipe:
    recipe = replace(recipe_of(task, size), **changes)
    if "validate_every" in changes and not recipe.validate_at:
        raise ArgumentError(
            f"--validate-every: with size {size} {recipe.task} keeps the last weights, none are chosen; leave it out."
        )
    if options:
        recipe = replace(recipe, options={**recipe.options, **dict(_option(option) for option in options)})
    if eval_lengths is not None:
        recipe = replace(recipe, eval_lengths=_lengths(eval_lengths))
    if budget is not None:
        recipe = replace(recipe, seconds=_seconds(budget))
    held_out = make_task(recipe.task, **recipe.options).held_out()
    for length in (recipe.shortest, recipe.train_length, *recipe.lengths):
        held_out.sample(1, length, torch.Generator().manual_seed(0))  # a length the task cannot have shows now, not at the end
    return recipe


def _specs(recipe: Recipe, methods: str, positions: str, seeds: str) -> list[RunSpec]:
    """All of them, seeds outermost, so that a sweep stopped early has compared something."""
    names, places = _names(methods, "--methods"), _names(positions, "--positions")
    for place in places:
        positions_of(place)
    if recipe.task == "max-retrieval":
        places = ["nope"]  # a set has no positions
    for name in names:
        build(replace(recipe, layers=1, width=recipe.heads * 2, hidden=2), RunSpec(name, places[0], 0))  # or say why not
    return [RunSpec(name, place, seed) for seed in _seeds(seeds) for place in places for name in names]


def _names(text: str, option: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ArgumentError(f"{option} is empty; give names separated by commas.")
    return names


def _precision(name: str) -> Literal["auto", "float32", "bfloat16"]:
    if name not in ("auto", "float32", "bfloat16"):
        raise ArgumentError(f"--precision {name!r}: choose auto, float32 or bfloat16.")
    return cast(Literal["auto", "float32", "bfloat16"], name)


def _seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*,?", text) or text == "0":
        raise ArgumentError(f"--seeds {text!r}: give a number of seeds, as 3, or which, as 0,1,5.")
    return list(range(int(text))) if "," not in text else sorted({int(seed) for seed in text.split(",") if seed})


def _lengths(text: str) -> tuple[int, ...]:
    """ "64..4096" by doubling, "64,96,128" as they are, or both mixed."""
    lengths: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        if not found or int(found[1]) < 1 or int(found[2] or found[1]) < int(found[1]):
            raise ArgumentError(f"--eval-lengths {text!r}: give 64..4096, which doubles, or 64,96,128.")
        length, last = int(found[1]), int(found[2] or found[1])
        while length <= last:
            lengths.add(length)
            length *= 2
    return tuple(sorted(lengths))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if not found or float(found[1]) <= 0.0:
        raise ArgumentError(f"--budget {text!r}: give a time, as 90s, 10m or 2h.")
    return float(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]


def _option(text: str) -> tuple[str, int | float]:
    name, equals, value = text.partition("=")
    try:
        return name.strip(), int(value) if re.fullmatch(r"\s*\d+\s*", value) else float(value)
    except ValueError:
        raise ArgumentError(f"--option {text!r}: give NAME=NUMBER{'' if equals else ', with ='}.") from None


def _print(records: list[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    one_answer = all(record["exact_match"] == record["token_accuracy"] for record in records)
    lengths = sorted({record["length"] for record in records})
    for metric, title in METRICS.items():
        if one_answer and metric == "exact_match":
            continue
        shown = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, title=f"{title}, %, mean ± deviation over seeds", title_justify="left"
        )
        shown.add_column("method")
        shown.add_column("positions")
        for length in lengths:
            shown.add_column(str(length), justify="right")
        for (method, place), row in table(records, metric).items():
            shown.add_row(method, place, *(str(row[length]) if length in row else "" for length in lengths))
        console.print(shown)
