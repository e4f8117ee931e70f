"""Writes the files of a report on long-context sweeps: HTML, JSON and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entformer.analysis.assemble import assemble_lengths
from entformer.analysis.html_report import ReportFiles, write_page
from entformer.files import write_bytes
from entformer.longcontext.figures import sweep_figures

__all__ = ["write_lengths_report"]


def write_lengths_report(
    data: dict[str, Any], records: Mapping[str, list[dict[str, Any]]], page: Path, figures: Path
) -> ReportFiles:
    """Writes `page`, its data beside it as .json, and figures of each sweep of `records` into a directory."""
    drawn = []
    for name, sweep in records.items():
        for file, content in sweep_figures(sweep, name).items():
            write_bytes(figures / file, content)
            drawn.append(figures / file)
    return ReportFiles(page, write_page(page, assemble_lengths(data), data), tuple(drawn))
