"""Writes the files of a report: a self-contained HTML page, report.json, and figures for papers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entformer.analysis.assemble import assemble, assemble_lengths
from entformer.analysis.figures import draw_figures
from entformer.files import write_bytes, write_text
from entformer.longcontext.figures import sweep_figures
from entformer.text.numbers import encodable


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report."""

    page: Path
    data: Path
    figures: tuple[Path, ...]


def write_report(data: dict[str, Any], page: Path, figures: Path, *, formats: Sequence[str] | None = None) -> ReportFiles:
    """Writes `page` (HTML), the data beside it with the extension .json, and the figures into a directory, as `formats`."""
    return ReportFiles(page, _write_page(page, assemble(data), data), tuple(draw_figures(data, figures, formats)))


def write_lengths_report(
    data: dict[str, Any], records: Mapping[str, list[dict[str, Any]]], page: Path, figures: Path
) -> ReportFiles:
    """Writes a report on long-context sweeps: `page`, its data beside it as .json, and figures of each sweep of `records`."""
    drawn = {figures / file: content for name, own in records.items() for file, content in sweep_figures(own, name).items()}
    for path, content in drawn.items():
        write_bytes(path, content)
    return ReportFiles(page, _write_page(page, assemble_lengths(data), data), tuple(drawn))


def _write_page(page: Path, text: str, data: dict[str, Any]) -> Path:
    """Writes a page and its data beside it, and returns the path of the data."""
    write_text(page, text)
    path = page.with_suffix(".json")
    write_text(path, encodable(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))) + "\n")
    return path
