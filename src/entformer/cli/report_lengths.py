"""`entformer report` of long-context races. In: folders of `entformer longctx`. Out: report.html, report.json, figures."""

import json
from collections.abc import Sequence
from pathlib import Path

from entformer.analysis.lengths import find_races, lengths_data
from entformer.analysis.lengths_report import write_lengths_report
from entformer.cli.output import writable_file, writable_folder
from entformer.errors import ArgumentError
from entformer.longcontext.results import markdown, read_results


def run_lengths(
    folders: Sequence[Path],
    *,
    others: Sequence[Path],
    texts: Sequence[str],
    out: Path,
    figures: Path | None,
    title: str | None,
    as_json: bool,
) -> None:
    """Write the report and say where. `others` are folders without races, `texts` options that make no sense for races."""
    if others:
        raise ArgumentError(f"{others[0]} is no folder of `entformer longctx` as the others are; report on them apart.")
    if texts:
        raise ArgumentError(f"{', '.join(texts)}: long-context races have no text; leave it out.")
    page = writable_file(out)
    if page.suffix.lower() == ".json":
        raise ArgumentError(f"{page}: report.json is written beside the page; give --out a name that ends in .html.")
    folder = writable_folder(figures or page.parent / "figures")
    races = find_races(folders)
    data = lengths_data(races, title)
    records = {race.resolve().name: read_results(race / "results.jsonl") for race in races}
    files = write_lengths_report(data, records, page, folder)
    if as_json:
        summary = {
            "page": str(files.page),
            "data": str(files.data),
            "figures": [str(path) for path in files.figures],
            "races": [{name: race[name] for name in ("name", "task", "seeds", "command")} for race in data["races"]],
        }
        print(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    for race in records.values():
        print(markdown(race))
    print(f"{files.page}  ({files.page.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    print(f"{files.data}\n{len(files.figures)} figures in {folder}")
