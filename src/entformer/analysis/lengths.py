"""Builds the data of a report on long-context sweeps: plain dicts, from which the page, figures and report.json are made.

`lengths_data` documents the format.
"""

import datetime
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from entformer import __version__
from entformer.errors import ArgumentError, DataError
from entformer.files import plain, read_json
from entformer.longcontext.methods import METHODS, scaled_heads, sort_methods
from entformer.longcontext.registry import ABOUT, TaskConfig, make_command
from entformer.longcontext.results import read_results

__all__ = ["find_sweeps", "lengths_data"]

VERSION = 1
Record = dict[str, Any]


def find_sweeps(folders: Iterable[Path]) -> list[Path]:
    """Returns the sweep directories among `folders` and one level below them; raises if one has none."""
    found: list[Path] = []
    for folder in folders:
        inside = [path for path in (folder, *sorted(folder.glob("*/"))) if (path / "results.jsonl").is_file()]
        if not inside:
            raise DataError(f"{folder} has no results of `entformer longctx` (no results.jsonl there or one level below).")
        found += [path for path in inside if path not in found]
    return found


def lengths_data(sweeps: Sequence[Path], title: str | None = None) -> dict[str, Any]:
    """Returns the data of these sweeps.

    {"version", "kind": "longctx", "title", "created", "entformer", "sweeps": [{
        "name", "task", "about", "train_length", "lengths", "one_answer" (exact match and token accuracy are the same),
        "seeds", "sequences", "command", "settings": {name: value},
        "series": [{"method", "positions", "about", "seeds", "parameters", "steps", "seconds", "diverged" (how many seeds),
            "points": [{"length", "token_accuracy", "exact_match": {"mean", "spread", "low", "high", "values"},
                        "entropy", "support", "top": {"all", "free": the same, or null}}],
            "learned": [{"seed", "length", "layer", "head", "beta", "gamma", "scale"}]}]}]}

    Accuracies are percentages. "free" is the mean of the heads without ALiBi. "learned" lists scaled heads only.
    """
    if not sweeps:
        raise ArgumentError("sweeps is empty; give at least one directory of `entformer longctx`.")
    found = [_sweep(folder) for folder in sweeps]
    names = list(dict.fromkeys(sweep["task"] for sweep in found))
    tasks = ", ".join(names) if len(names) <= 3 else f"{len(names)} tasks"
    whole: dict[str, Any] = plain(
        {
            "version": VERSION,
            "kind": "longctx",
            "title": title or f"Length generalization: {tasks}",
            "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "entformer": __version__,
            "sweeps": found,
        }
    )
    return whole


def _sweep(folder: Path) -> dict[str, Any]:
    records = read_results(folder / "results.jsonl")
    if not records:
        raise DataError(f"{folder / 'results.jsonl'} is empty; no run of this sweep has finished.")
    first = records[0]
    methods = sort_methods(record["method"] for record in records)
    positions = list(dict.fromkeys(record["positions"] for record in records))
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record["method"], record["positions"]), []).append(record)
    seeds = sorted({int(record["seed"]) for record in records})
    recipe = _recipe(folder)
    return {
        "name": folder.resolve().name,
        "task": first["task"],
        "about": ABOUT.get(first["task"], ""),
        "train_length": first["train_length"],
        "lengths": sorted({int(record["length"]) for record in records}),
        "one_answer": all(record["exact_match"] == record["token_accuracy"] for record in records),
        "seeds": seeds,
        "sequences": max(int(record["sequences"]) for record in records),
        "command": make_command(recipe, methods=methods, positions=positions, seeds=seeds),
        "settings": {name: value for name, value in vars(recipe).items() if name not in ("options", "eval_lengths")}
        | {f"options.{name}": value for name, value in recipe.options.items()}
        | {"eval_lengths": list(recipe.lengths)},
        "series": [
            _series(method, encoding, found[method, encoding], recipe.heads)
            for encoding in positions
            for method in methods
            if (method, encoding) in found
        ],
    }


def _recipe(folder: Path) -> TaskConfig:
    """Reads the settings that all runs of the directory share."""
    path = next(iter(sorted((folder / "runs").glob("*/run.json"))), None)
    if path is None:
        raise DataError(f"{folder / 'runs'} has no run.json; the directory of a sweep has one per finished run.")
    try:
        stored = read_json(path)["recipe"]
        return TaskConfig(**stored | {"eval_lengths": tuple(stored["eval_lengths"])})
    except (KeyError, TypeError) as err:
        raise DataError(f"{path} was written by another version of entformer ({err}).") from err


def _series(method: str, positions: str, records: list[Record], heads: int) -> dict[str, Any]:
    by_length: dict[int, list[Record]] = {}
    for record in records:
        by_length.setdefault(int(record["length"]), []).append(record)
    runs = {record["seed"]: record for record in records}.values()
    free = scaled_heads(positions, heads)
    return {
        "method": method,
        "positions": positions,
        "about": METHODS[method][0] if method in METHODS else "",
        "seeds": sorted(int(run["seed"]) for run in runs),
        "parameters": next(iter(runs))["parameters"],
        "steps": next(iter(runs))["steps"],
        "seconds": sum(float(run["seconds"]) for run in runs) / len(runs),
        "diverged": sum(bool(run["diverged"]) for run in runs),
        "points": [_point(length, by_length[length], free) for length in sorted(by_length)],
        "learned": [line for record in records for line in _learned(record, free)],
    }


def _point(length: int, records: list[Record], free: list[int]) -> dict[str, Any]:
    accuracy = {
        metric: _spread([100.0 * float(record[metric]) for record in records]) for metric in ("token_accuracy", "exact_match")
    }
    attention = {
        what: {"all": _spread(_means(records, what, None)), "free": _spread(_means(records, what, free))}
        for what in ("entropy", "support", "top")
    }
    return {"length": length, **accuracy, **attention}


def _means(records: list[Record], what: str, heads: list[int] | None) -> list[float]:
    """Returns for each seed the mean over all heads, or over some of each layer."""
    found = []
    for record in records:
        layers = (record.get("heads") or {}).get(what) or []
        values = [float(value) for layer in layers for head, value in enumerate(layer) if heads is None or head in heads]
        if values:
            found.append(sum(values) / len(values))
    return found


def _spread(values: list[float]) -> dict[str, Any] | None:
    """Computes mean, standard deviation and range over seeds; None if there is none."""
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "spread": spread, "low": min(values), "high": max(values), "values": values}


def _learned(record: Record, free: list[int]) -> Iterable[dict[str, Any]]:
    """Returns what each scaled head learned, at this length."""
    heads = record.get("heads") or {}
    for layer, factors in enumerate(heads.get("scale") or []):
        for head, factor in enumerate(factors):
            if head in free:
                own = {what: heads[what][layer][head] if heads.get(what) else None for what in ("beta", "gamma")}
                key = {"seed": int(record["seed"]), "length": int(record["length"]), "layer": layer, "head": head}
                yield key | own | {"scale": factor}
