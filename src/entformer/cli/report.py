"""`entformer report`: writes an HTML report on the heads of trained runs, its numbers as JSON, and figures.

The text is the test set of a run's own data, a prepared directory, or text files named as for `entformer prep`. Two files in
the opposite order of the run's languages are swapped, gold alignments included.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from entformer.cli.options import Checkpoint, Threads
from entformer.cli.output import progress_bar, writable_directory, writable_file
from entformer.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from entformer.analysis.data import RunToReport
    from entformer.analysis.html_report import ReportFiles
    from entformer.checkpoint import LoadedRun
    from entformer.cli.test_sets import TestSet
    from entformer.data.store import TokenStore

AVERAGES = {
    "best_head": "best head",
    "best_layer": "best layer, mean of normalized weights",
    "best_layer_raw": "best layer, raw mean",
    "averaged": "all heads, mean of normalized weights",
    "averaged_raw": "all heads, raw mean",
}


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories of `entformer train` to compare, or of `entformer longctx`."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|TEXT",
            help="Prepared directory, or text: a prefix (test for test.en and test.de), SOURCE,TARGET or a .tsv file; of a "
            "language model a text file.",
            show_default="the run's own data",
        ),
    ] = None,
    split: Annotated[Literal["test", "valid", "train"], typer.Option(help="Part of the prepared data.")] = "test",
    sentences: Annotated[int, typer.Option(min=1, help="Maximum number of sentences; larger sets are sampled.")] = 1000,
    examples: Annotated[int, typer.Option(min=1, help="Number of sentences shown one by one.")] = 12,
    gold: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Gold word alignments in Pharaoh format (0-0 1-2 2?1), for error rates.")
    ] = None,
    gold_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Text that --gold aligns, if it is not --data; links go from its first file to its second."
        ),
    ] = None,
    gold_first: Annotated[int, typer.Option(min=0, max=1, help="Index of the first word in --gold.")] = 0,
    hf: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|MODULE", help="Instead of runs, a Hugging Face model: a saved directory, or package.module:function."
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The text for --hf; pairs separated by tabs for an encoder-decoder.")
    ] = None,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a text for --hf and for language models.")] = 512,
    live: Annotated[
        bool, typer.Option("--live", help="Write a page that runs the model of one RUN in the browser, without a server.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="HTML file to write; the numbers go to a .json file next to it.",
            show_default="report.html, or live.html",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for PNG, SVG and PDF figures.", show_default="figures, next to the page"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    checkpoint: Checkpoint = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with files and main numbers.")] = False,
    threads: Threads = None,
) -> None:
    """Analyze the heads of trained models: one HTML page, all numbers as JSON, and figures for papers.

    For directories of `entformer longctx`: accuracy, attention and learned scales against sequence length.
    """
    out = out or Path("live.html" if live else "report.html")
    if live:
        from entformer.cli.live import write_live

        return write_live(runs or [], out, title, checkpoint, as_json=as_json)
    if out.suffix.lower() == ".json":
        raise ArgumentError(
            f"{out}: the numbers are written to a .json file next to the page; give --out a name that ends in .html."
        )
    if (hf is None) == (not runs):
        raise ArgumentError("give run directories, or --hf with a Hugging Face model.")
    if (hf is None) != (text is None):
        raise ArgumentError("--hf and --text are given together: a model and the text to analyze it on.")
    page = writable_file(out)
    figures = writable_directory(figures or page.parent / "figures")
    runs = runs or []
    sweeps = [path for path in runs if any(path.glob("results.jsonl")) or any(path.glob("*/results.jsonl"))]
    if sweeps:
        if others := [path for path in runs if path not in sweeps]:
            raise ArgumentError(f"{others[0]} is not a directory of `entformer longctx`; report on it separately.")
        options = {"--data": data, "--gold": gold, "--gold-text": gold_text}
        if unused := [option for option, value in options.items() if value]:
            raise ArgumentError(f"{', '.join(unused)} long-context results have no text; remove it.")
        _report_lengths(runs, page, figures, title, as_json=as_json)
        return
    import torch

    from entformer.analysis.data import report_data
    from entformer.checkpoint.language_model import is_language_model

    if threads is not None:
        torch.set_num_threads(threads)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    if hf is not None and text is not None:
        from entformer.analysis.hugging_face_report import hf_report_data
        from entformer.cli.hugging_face import read_texts
        from entformer.hf.opening import open_model

        with progress_bar(notes) as show:
            show("loading the model")
            model, tokenizer = open_model(hf)
            content = hf_report_data(
                model,
                read_texts(text, model, sentences),
                name=_names([Path(hf)])[0] if Path(hf).is_dir() else hf,
                tokenizer=tokenizer,
                data_name=text.name,
                length=length,
                max_tokens=sentences * length,
                examples=examples,
                title=title,
                progress=show,
            )
            _finish(content, page, figures, as_json=as_json, show=show)
        return
    if any(map(is_language_model, runs)):
        from entformer.cli.text_score import language_report

        if gold or gold_text:
            raise ArgumentError("--gold and --gold-text align translations; a language model has none, so remove them.")
        named = dict(zip(runs, _names(runs), strict=True))
        limits = {"length": length, "texts": sentences, "examples": examples}
        with progress_bar(notes) as show:
            content = language_report(
                named, data=data, split=split, checkpoint=checkpoint, title=title, **limits, progress=show
            )
            _finish(content, page, figures, as_json=as_json, show=show)
        return
    prepared = [
        prepare_run(
            path,
            name,
            data=data,
            split=split,
            sentences=sentences,
            checkpoint=checkpoint,
            gold=gold,
            gold_text=gold_text,
            gold_first=gold_first,
        )
        for path, name in zip(runs, _names(runs), strict=True)
    ]
    with progress_bar(notes) as show:
        content = report_data(prepared, examples=examples, title=title, progress=show)
        _finish(content, page, figures, as_json=as_json, show=show)


def _finish(content: dict[str, Any], page: Path, figures: Path, *, as_json: bool, show: Any) -> None:
    """Writes the files and prints the summary."""
    from entformer.analysis.html_report import write_report

    show("drawing the figures")
    files = write_report(content, page, figures)
    if as_json:
        summary = {**_as_dict(files), "runs": [_main_numbers(run) for run in content["runs"]]}
        print(json.dumps(summary, indent=1, ensure_ascii=False))
    else:
        _print(content, files)


def _report_lengths(runs: Sequence[Path], page: Path, figures: Path, title: str | None, *, as_json: bool) -> None:
    from entformer.analysis.html_report import write_lengths_report
    from entformer.analysis.lengths import find_sweeps, lengths_data
    from entformer.longcontext.results import markdown, read_results

    sweeps = find_sweeps(runs)
    content = lengths_data(sweeps, title)
    records = {sweep.resolve().name: read_results(sweep / "results.jsonl") for sweep in sweeps}
    files = write_lengths_report(content, records, page, figures)
    if as_json:
        names = ("name", "task", "seeds", "command")
        summary = {**_as_dict(files), "sweeps": [{name: sweep[name] for name in names} for sweep in content["sweeps"]]}
        print(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    for sweep in records.values():
        print(markdown(sweep))
    _print_files(files)


def _names(runs: Sequence[Path]) -> list[str]:
    """Returns the name of each directory, with its parent's where two are equal."""
    from entformer.text.numbers import printable

    plain = [printable(path.resolve().name) for path in runs]
    names = [
        name if plain.count(name) == 1 else f"{printable(path.resolve().parent.name)}/{name}"
        for name, path in zip(plain, runs, strict=True)
    ]
    if len(set(names)) < len(names):
        raise ArgumentError("a run is given twice; give each run once.")
    return names


# ---- the text ------------------------------------------------------------------------------------------------------------


def prepare_run(
    path: Path,
    name: str,
    *,
    data: str | None = None,
    split: str = "test",
    sentences: int = 1000,
    checkpoint: str = "best",
    gold: Path | None = None,
    gold_text: str | None = None,
    gold_first: int = 0,
) -> "RunToReport":
    """Loads a run and the text to analyze it on; see the options of `report`."""
    import numpy as np

    from entformer.analysis.data import RunToReport
    from entformer.analysis.gold import read_gold
    from entformer.checkpoint import RunFolder, load_run
    from entformer.cli.test_sets import sample_data

    if gold is None and gold_text is not None:
        raise ArgumentError("--gold-text is the text of gold alignments; give those with --gold FILE.")
    loaded = load_run(path, checkpoint)
    text, swapped = _find_text(data, split, path, loaded)
    pairs = zip(text.sources, text.references, strict=True)
    chosen = [i for i, both in enumerate(pairs) if all(line.strip() for line in both)]
    if not chosen:
        raise DataError(f"{text.shown} has no pair of lines with text on both sides.")
    if len(chosen) > sentences:
        picked = np.random.default_rng(1).choice(len(chosen), sentences, replace=False)
        chosen = [chosen[i] for i in sorted(picked.tolist())]
    sources, targets = ([side[i] for i in chosen] for side in (text.sources, text.references))
    links, gold_store = None, None
    if gold is not None:
        about = text
        if gold_text is not None:
            about, swapped = _find_text(gold_text, split, path, loaded)
        as_given = about.reversed() if swapped else about
        links = read_gold(gold, as_given.sources, as_given.references, first=gold_first)
        links = links.turned() if swapped else links
        gold_store = _encode(about.sources, about.references, loaded, about.shown)
    return RunToReport(
        name=name,
        folder=RunFolder(path),
        loaded=loaded,
        which=checkpoint,
        store=_encode(sources, targets, loaded, text.shown),
        numbers=[i + 1 for i in chosen],
        data_name=text.shown,
        text_key=hashlib.sha256("\n".join([*sources, *targets]).encode()).hexdigest(),
        tokenized=bool(loaded.info.get("tokenized")),
        training_text=sample_data(path, loaded)[1],
        gold=links,
        gold_store=gold_store,
    )


def _encode(sources: Sequence[str], targets: Sequence[str], loaded: "LoadedRun", name: str) -> "TokenStore":
    from entformer.data.store import TokenStore

    lower = bool(loaded.info.get("lowercase"))
    sides = [loaded.subwords.encode_lines([line.lower() if lower else line for line in side]) for side in (sources, targets)]
    return TokenStore.from_examples(zip(*sides, strict=True), name=name)


def _find_text(data: str | None, split: str, run: Path, loaded: "LoadedRun") -> "tuple[TestSet, bool]":
    """Returns a text in the run's direction, and whether it was given in the other one.

    The text is that of a prepared directory (the run's own if `data` is None) or of text files.
    """
    from entformer.cli.test_sets import TestSet, in_direction_of, prepared_test_set
    from entformer.data.texts import find_text, is_swapped

    if data is None or Path(data).is_dir():
        given = replace(prepared_test_set(split, None if data is None else Path(data), run), shown=split)
    else:
        languages = loaded.source_language, loaded.target_language
        text = find_text(data, *languages)
        own = languages[::-1] if is_swapped(text, *languages) else languages
        name = ", ".join(path.name for path in text.files)
        given = TestSet(*text.lines(), name, *own, tokenized=False, lowercase=False)
    found = in_direction_of(given, run)
    return found, found is not given


# ---- the summary -----------------------------------------------------------------------------------------------------------


def _main_numbers(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the main numbers per attention type, and the best head of every role."""
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
        "alpha_sentence": run["alpha_sentence"],
        "positional_heads": run["positional_heads"],
        "roles": {ranking["role"]: ranking["heads"][0] for ranking in run["roles"]},
        "alignment": {name: alignment[name] for name in AVERAGES if name in alignment} or None,
    }


def _layer_mean(run: dict[str, Any], kind: str, name: str) -> float | None:
    known = [layer[name] for layer in run["layers"] if layer["attn_type"] == kind and layer[name] is not None]
    return sum(known) / len(known) if known else None


def _print(data: dict[str, Any], files: "ReportFiles") -> None:
    from entformer.analysis.roles import positional_text
    from entformer.text.numbers import format_alpha, format_number, format_percent

    for run in data["runs"]:
        facts = _main_numbers(run)
        scores = ", ".join(
            f"{score['name']} {format_number(score['value'], score.get('digits', 1))}" for score in facts["scores"]
        )
        looked = f"{facts['data']['sentences']:,} sentences of {facts['data']['name']}"
        print("; ".join(filter(None, (f"{facts['name']}: {looked}", scores))))
        for kind, own in facts["kinds"].items():
            alpha = "" if own["alpha"] is None else f"  alpha {' to '.join(map(format_alpha, own['alpha']))}"
            null = f"  null rows {format_percent(own['null_rate'], 1)}" if own["null_rate"] else ""
            bases = {base: own[f"js_diversity_{base}"] for base in ("keys", "heads")}
            shown = [f"{format_number(value, 3)} (base: {base})" for base, value in bases.items() if value is not None]
            diversity = f"  diversity {', '.join(shown)}" if shown else ""
            print(f"  {kind:<8} {own['normalizer']:<10}{alpha}  density {format_percent(own['density'], 1)}{diversity}{null}")
        if facts["alpha_sentence"] is not None:
            print(f"  {facts['alpha_sentence']}")
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
    _print_files(files)


def _as_dict(files: "ReportFiles") -> dict[str, Any]:
    return {"page": str(files.page), "data": str(files.data), "figures": [str(path) for path in files.figures]}


def _print_files(files: "ReportFiles") -> None:
    print(f"{files.page}  ({files.page.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    print(f"{files.data}\n{len(files.figures)} figures in {files.figures[0].parent if files.figures else '-'}")
