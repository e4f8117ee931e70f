"""`entformer report`: look at the heads of trained runs. In: run folders and text. Out: report.html, report.json, figures.

Text is the test part of a run's own data, a prepared folder, or text files named as for `entformer prep`: a prefix, two files
SOURCE,TARGET or a .tsv. Two files whose endings are the run's languages in the other order are turned round, gold links too.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from entformer.analysis.alphas import correlation_text
from entformer.analysis.data import RunToReport, report_data
from entformer.analysis.gold import Gold, read_gold
from entformer.analysis.html_report import ReportFiles, write_report
from entformer.analysis.roles import positional_text
from entformer.checkpoint import LoadedRun, RunFolder, load_run
from entformer.cli.output import writable_file, writable_folder
from entformer.cli.report_progress import report_progress
from entformer.cli.test_sets import prepared_of_run
from entformer.data.prepared import Prepared
from entformer.data.store import TokenStore
from entformer.data.texts import TSV_ENDS, find_text
from entformer.errors import ArgumentError, DataError
from entformer.text.numbers import format_alpha, format_number, format_percent, printable

AVERAGES = {
    "best_head": "best head",
    "best_layer": "best layer, mean of shares",
    "best_layer_raw": "best layer, raw mean",
    "averaged": "all heads, mean of shares",
    "averaged_raw": "all heads, raw mean",
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for; see `cli/commands_analysis.py` for the words of each."""

    data: str | None = None
    split: str = "test"
    sentences: int = 1000
    examples: int = 12
    gold: Path | None = None
    gold_text: str | None = None
    gold_first: int = 0
    out: Path = Path("report.html")
    figures: Path | None = None
    title: str | None = None
    which: str = "best"
    as_json: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class _Text:
    """Lines of both sides in the run's direction."""

    sources: list[str]
    targets: list[str]
    name: str
    turned: bool = False  # the files were given in the other order


def run(runs: Sequence[Path], options: Options) -> None:
    """Collect, write, and say where and what."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    page = writable_file(options.out)
    figures = writable_folder(options.figures or page.parent / "figures")
    if page.suffix.lower() == ".json":
        raise ArgumentError(f"{page}: report.json is written beside the page; give --out a name that ends in .html.")
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    prepared = [prepare_run(path, name, options) for path, name in zip(runs, _names(runs), strict=True)]
    with report_progress(notes) as progress:
        data = report_data(prepared, examples=options.examples, title=options.title, progress=progress)
    with notes.status("drawing the figures"):
        files = write_report(data, page, figures)
    if options.as_json:
        print(json.dumps(_summary(data, files), indent=1, ensure_ascii=False))
    else:
        _print(data, files)


def _names(runs: Sequence[Path]) -> list[str]:
    """The name of each folder; with its parent's where two are alike."""
    plain = [printable(path.resolve().name) for path in runs]
    names = [
        name if plain.count(name) == 1 else f"{printable(path.resolve().parent.name)}/{name}"
        for name, path in zip(plain, runs, strict=True)
    ]
    if len(set(names)) < len(names):
        raise ArgumentError("a run is given twice; give each run once.")
    return names


def prepare_run(path: Path, name: str, options: Options) -> RunToReport:
    """A run and the text to look at it with."""
    loaded = load_run(path, options.which)
    text = _text_of(options.data, options.split, path, loaded)
    chosen = [i for i, both in enumerate(zip(text.sources, text.targets, strict=True)) if all(line.strip() for line in both)]
    if not chosen:
        raise DataError(f"{text.name} has no pair of lines with text on both sides; there is nothing to look at.")
    if len(chosen) > options.sentences:
        picked = np.random.default_rng(1).choice(len(chosen), options.sentences, replace=False)
        chosen = [chosen[i] for i in sorted(picked.tolist())]
    sources, targets = ([side[i] for i in chosen] for side in (text.sources, text.targets))
    gold, gold_store = _gold(options, text, path, loaded)
    return RunToReport(
        name=name,
        folder=RunFolder(path),
        loaded=loaded,
        which=options.which,
        store=_store(sources, targets, loaded, text.name),
        numbers=[i + 1 for i in chosen],
        data_name=text.name,
        text_key=hashlib.sha256("\n".join([*sources, *targets]).encode()).hexdigest(),
        tokenized=bool(loaded.info.get("tokenized")),
        gold=gold,
        gold_store=gold_store,
    )


def _store(sources: Sequence[str], targets: Sequence[str], loaded: LoadedRun, name: str) -> TokenStore:
    lower = bool(loaded.info.get("lowercase"))
    sides = [
        loaded.subwords.encode_lines([line.lower() for line in side] if lower else list(side)) for side in (sources, targets)
    ]
    return TokenStore.from_examples(zip(*sides, strict=True), name=name)


def _gold(options: Options, text: _Text, run: Path, loaded: LoadedRun) -> tuple[Gold | None, TokenStore | None]:
    """Links and the text they are about, in the run's direction."""
    if options.gold is None:
        if options.gold_text is not None:
            raise ArgumentError("--gold-text is the text of gold links; give those with --gold FILE.")
        return None, None
    about = text if options.gold_text is None else _text_of(options.gold_text, options.split, run, loaded)
    given = (about.targets, about.sources) if about.turned else (about.sources, about.targets)
    gold = read_gold(options.gold, *given, first=options.gold_first)
    return gold.turned() if about.turned else gold, _store(about.sources, about.targets, loaded, about.name)


def _text_of(data: str | None, split: str, run: Path, loaded: LoadedRun) -> _Text:
    """The lines to look at: of a prepared folder (the run's own if `data` is None) or of text files."""
    languages = loaded.source_language, loaded.target_language
    if data is None or (Path(data) / "prep.json").is_file() or Path(data).is_dir():
        prepared = prepared_of_run(run) if data is None else Prepared.open(Path(data))
        if split == "train":
            pairs = [prepared.store("train")[i] for i in range(len(prepared.store("train")))]
            both = [[prepared.subwords.decode(pair[side].tolist()) for pair in pairs] for side in (0, 1)]
        else:
            both = list(prepared.text(split))
        own = prepared.source_language, prepared.target_language
        if own == languages[::-1]:
            return _Text(both[1], both[0], split, turned=True)
        if own != languages:
            raise ArgumentError(
                f"{run} translates {languages[0]} -> {languages[1]}, and {prepared.folder} is {own[0]} -> {own[1]}."
            )
        return _Text(both[0], both[1], split)
    text = find_text(data, *languages)
    pairs_of_text = list(text.pairs(nul="keep"))
    sources, targets = [pair.source for pair in pairs_of_text], [pair.target for pair in pairs_of_text]
    turned = text.target is not None and not data.endswith(TSV_ENDS) and tuple(map(_language, text.files)) == languages[::-1]
    name = text.source.name if text.target is None else f"{text.source.name}, {text.target.name}"
    return _Text(targets, sources, name, turned=True) if turned else _Text(sources, targets, name)


def _language(path: Path) -> str:
    """The ending of a file, .gz aside: "test.de.gz" -> "de"."""
    return path.name.removesuffix(".gz").rpartition(".")[2]


# ---- what is said at the end -----------------------------------------------------------------------------------------------


def _summary(data: dict[str, Any], files: ReportFiles) -> dict[str, Any]:
    return {
        "page": str(files.page),
        "data": str(files.data),
        "figures": [str(path) for path in files.figures],
        "runs": [_facts(run) for run in data["runs"]],
    }


def _facts(run: dict[str, Any]) -> dict[str, Any]:
    """The numbers a reader asks for first, per kind of attention, and the best head of every role."""
    kinds = {}
    for kind in dict.fromkeys(head["attn_type"] for head in run["heads"]):
        heads = [head for head in run["heads"] if head["attn_type"] == kind]
        alphas = [head["alpha"] for head in heads if head["alpha"] is not None]
        kinds[kind] = {
            "normalizer": run["normalizers"].get(kind),
            "alpha": [min(alphas), max(alphas)] if alphas else None,
            "density": sum(head["density"] for head in heads) / len(heads),
            "null_rate": sum(head["null_rate"] for head in heads) / len(heads),
            "js_diversity_keys": _layer_mean(run, kind, "js_diversity_keys"),
            "js_diversity_heads": _layer_mean(run, kind, "js_diversity_heads"),
        }
    alignment = run["alignment"] or {}
    return {
        "name": run["name"],
        "data": run["data"],
        "scores": run["scores"],
        "kinds": kinds,
        "alpha_correlation": run["alpha_correlation"],
        "positional_heads": run["positional_heads"],
        "roles": {ranking["role"]: ranking["heads"][0] for ranking in run["roles"]},
        "alignment": {name: alignment[name] for name in AVERAGES if name in alignment} or None,
    }


def _layer_mean(run: dict[str, Any], kind: str, name: str) -> float | None:
    known = [layer[name] for layer in run["layers"] if layer["attn_type"] == kind and layer[name] is not None]
    return sum(known) / len(known) if known else None


def _print(data: dict[str, Any], files: ReportFiles) -> None:
    for run in data["runs"]:
        facts = _facts(run)
        scores = ", ".join(f"{score['name']} {score['value']:.2f}" for score in facts["scores"])
        looked = f"{facts['data']['sentences']:,} sentences of {facts['data']['name']}"
        print("; ".join(filter(None, (f"{facts['name']}: {looked}", scores))))
        for kind, own in facts["kinds"].items():
            alpha = "" if own["alpha"] is None else f"  alpha {' to '.join(map(format_alpha, own['alpha']))}"
            null = f"  null rows {format_percent(own['null_rate'], 1)}" if own["null_rate"] else ""
            bases = {base: own[f"js_diversity_{base}"] for base in ("keys", "heads")}
            shown = [f"{format_number(value, 3)} (base: {base})" for base, value in bases.items() if value is not None]
            diversity = f"  diversity {', '.join(shown)}" if shown else ""
            print(f"  {kind:<8} {own['normalizer']:<10}{alpha}  density {format_percent(own['density'], 1)}{diversity}{null}")
        if (correlation := (facts["alpha_correlation"] or {}).get("all")) is not None:
            print(f"  {correlation_text(correlation, run['step'])}")
        for own in facts["positional_heads"]:
            counted = positional_text(len(own["heads"]), own["median_confidence"])
            print(f"  positional heads, offset {own['offset']:>2}: {counted}")
        for role, (head, score) in facts["roles"].items():
            if role not in ("rarely active", "broad context"):
                print(f"  best for {role:<16} {head:<13} {format_number(score, 3)}")
        for name, best in (facts["alignment"] or {}).items():
            where = " ".join(f"{part} {best[part]}" for part in ("layer", "head") if part in best)
            print(
                f"  AER {AVERAGES[name]}: {format_number(best['aer'], 3)} ({best['rows']} rows{', ' + where if where else ''})"
            )
    print(f"{files.page}  ({files.page.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    print(f"{files.data}\n{len(files.figures)} figures in {files.figures[0].parent if files.figures else '-'}")
