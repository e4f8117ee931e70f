"""Sweeps over methods, positions and seeds, and their results: runs/*/run.json, results.jsonl, table.md.

Finished runs are kept and interrupted ones resumed, so the same command can be repeated, also with more methods or seeds.
`results.jsonl` has one line per run and length:

    task method positions seed train_length length exact_match token_accuracy sequences steps seconds parameters loss diverged
    heads: keys, and per layer and head support, entropy (over ln n), top, scale, beta, gamma, or null
"""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from entformer.errors import DataError
from entformer.files import plain, read_json, write_json, write_text
from entformer.longcontext.registry import TaskConfig, parse_task_config
from entformer.longcontext.train import RunSpec, train_and_evaluate
from entformer.text.numbers import format_number

__all__ = ["METRICS", "Cell", "markdown", "read_results", "sweep", "table"]

METRICS = {"token_accuracy": "token accuracy", "exact_match": "exact match"}
Record = dict[str, Any]
Note = Callable[[RunSpec, str], None]
Tell = Callable[[RunSpec, int, int, float], None]


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, in percent."""

    mean: float
    spread: float  # standard deviation; 0 for one seed
    seeds: int

    def __str__(self) -> str:
        spread = f" ± {format_number(self.spread, 1)}" if self.seeds > 1 else ""
        return format_number(self.mean, 1, exact=(0.0, 100.0)) + spread


def sweep(
    recipe: TaskConfig,
    specs: Iterable[RunSpec],
    out: Path,
    note: Note = lambda spec, what: None,
    tell: Tell | None = None,
    *,
    device: str = "cpu",
) -> list[Record]:
    """Trains and evaluates the runs that are not finished; returns all results in `out`."""
    for spec in specs:
        folder = out / "runs" / spec.name
        if _finished(folder, recipe, spec):
            note(spec, "was finished before")
            continue
        (folder / "state.pt").unlink(missing_ok=True)  # an unfinished run of an earlier version starts again
        progress = None if tell is None else partial(tell, spec)
        run, _ = train_and_evaluate(recipe, spec, folder, progress, device=device)
        write_json(folder / "run.json", asdict(run))
        gather_results(out)
        note(spec, _summary(asdict(run)))
    return gather_results(out)


def _finished(folder: Path, recipe: TaskConfig, spec: RunSpec) -> bool:
    """Returns whether the run is finished; a run of the same name with other settings is an error."""
    if not (folder / "run.json").exists():
        return False
    held = read_json(folder / "run.json")
    before, ours = asdict(parse_task_config(held.get("recipe") or {})), asdict(recipe)
    if differing := [name for name in ours if ours[name] != before[name]]:
        raise DataError(
            f"{folder / 'run.json'} was made with other settings ({', '.join(differing)}); choose another --out, or remove it."
        )
    return True


def _summary(run: Record) -> str:
    if run["diverged"]:
        return f"diverged after {run['steps']} steps"
    shown = ", ".join(f"{at['length']}: {100 * at['token_accuracy']:.1f}" for at in run["lengths"])
    return f"{run['steps']} steps in {run['seconds']:.0f} s, loss {run['loss']:.3f}; token accuracy at {shown}"


def gather_results(out: Path) -> list[Record]:
    """Writes results.jsonl from all finished runs in `out` and returns its records."""
    records: list[Record] = []
    for path in sorted((out / "runs").glob("*/run.json")):
        run = read_json(path)
        shared = {"task": run["recipe"]["task"], **run["spec"], "train_length": run["recipe"]["train_length"]}
        shared |= {name: run[name] for name in ("steps", "seconds", "parameters", "loss", "diverged")}
        # A run that diverged counts as zero at every length; excluding it would favor its method.
        at = run["lengths"] or [
            {"length": n, "sequences": 0, "exact_match": 0.0, "token_accuracy": 0.0, "heads": None}
            for n in parse_task_config(run["recipe"]).lengths
        ]
        records += [shared | here for here in at]
    write_text(out / "results.jsonl", "".join(json.dumps(plain(record)) + "\n" for record in records))
    return records


def read_results(path: Path) -> list[Record]:
    """Returns the records of a results.jsonl."""
    records = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as err:
        raise DataError(f"{path} cannot be read ({err.strerror}).") from err
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as err:
            raise DataError(f"{path}:{number}: not a line of JSON ({err}).") from err
    return records


def table(records: list[Record], metric: str = "token_accuracy") -> dict[tuple[str, str], dict[int, Cell]]:
    """Returns (method, positions) -> length -> mean and deviation over seeds; best at the longest length first."""
    values: dict[tuple[str, str], dict[int, list[float]]] = {}
    for record in records:
        row = values.setdefault((record["method"], record["positions"]), {})
        row.setdefault(record["length"], []).append(100.0 * record[metric])
    cells = {who: {length: _cell(found) for length, found in sorted(row.items())} for who, row in values.items()}
    return dict(sorted(cells.items(), key=lambda item: [-cell.mean for cell in reversed(item[1].values())]))


def _cell(values: list[float]) -> Cell:
    return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def markdown(records: list[Record]) -> str:
    """Returns the tables of all metrics in Markdown."""
    if not records:
        return "no finished runs\n"
    first, text = records[0], []
    lengths = sorted({record["length"] for record in records})
    seeds = len({record["seed"] for record in records})
    single_answer = all(record["exact_match"] == record["token_accuracy"] for record in records)
    for metric, title in METRICS.items():
        if single_answer and metric == "exact_match":
            continue
        shown = "accuracy" if single_answer else title
        text += [
            f"{first['task']}, trained at {first['train_length']}: {shown} in percent, mean ± deviation of {seeds} seeds",
            "",
        ]
        text += ["| method | positions | " + " | ".join(str(length) for length in lengths) + " |"]
        text += ["|---|---|" + "---|" * len(lengths)]
        for (method, positions), row in table(records, metric).items():
            cells = [str(row[length]) if length in row else "" for length in lengths]
            text += [f"| {method} | {positions} | " + " | ".join(cells) + " |"]
        text += [""]
    return "\n".join(text)
