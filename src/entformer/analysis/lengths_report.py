"""The files of a report on long-context sweeps. In: the data of lengths.py and records. Out: HTML, JSON and figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entformer.analysis.assemble import assemble_lengths
from entformer.analysis.html_report import ReportFiles
from entformer.checkpoint.atomic import write_bytes, write_text
from entformer.longcontext.figures import sweep_figures
from entformer.text.numbers import encodable

__all__ = ["write_lengths_report"]


def write_lengths_report(
    data: dict[str, Any], records: Mapping[str, list[dict[str, Any]]], page: Path, figures: Path
) -> ReportFiles:
    """Write `page`, its data beside it as .json, and per sweep, named in `records`, curves and learned scales into a folder."""
    write_text(page, assemble_lengths(data))
    numbers = page.with_suffix(".json")
    write_text(numbers, encodable(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))) + "\n")
    drawn = []
    for name, sweep in records.items():
        for file, content in sweep_figures(sweep, name).items():
            write_bytes(figures / file, content)
            drawn.append(figures / file)
    return ReportFiles(page, numbers, tuple(drawn))
