"""`entformer report` of long-context sweeps. In: folders of `entformer longctx`. Out: report.html, report.json, figures."""

import json
from collections.abc import Sequence
from pathlib import Path

from entformer.analysis.lengths import find_sweeps, lengths_data
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
    """Write the report and say where. `others` are folders without sweeps, `texts` options that make no sense for sweeps."""
    if others:
        raise ArgumentError(f"{others[0]} is no folder of `entformer longctx` as the others are; report on them apart.")
    if texts:
        raise ArgumentError(f"{', '.join(texts)}: long-context sweeps have no text; leave it out.")
    page = writable_file(out)
    if page.suffix.lower() == ".json":
        raise ArgumentError(f"{page}: report.json is written beside the page; give --out a name that ends in .html.")
    folder = writable_folder(figures or page.parent / "figures")
    sweeps = find_sweeps(folders)
    data = lengths_data(sweeps, title)
    records = {sweep.resolve().name: read_results(sweep / "results.jsonl") for sweep in sweeps}
    files = write_lengths_report(data, records, page, folder)
    if as_json:
        summary = {
            "page": str(files.page),
            "data": str(files.data),
            "figures": [str(path) for path in files.figures],
            "sweeps": [{name: sweep[name] for name in ("name", "task", "seeds", "command")} for sweep in data["sweeps"]],
        }
        print(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    for sweep in records.values():
        print(markdown(sweep))
    print(f"{files.page}  ({files.page.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    print(f"{files.data}\n{len(files.figures)} figures in {folder}")
