"""The files of a report. In: ReportData. Out: one HTML file that needs nothing else, report.json, and figures for papers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entformer.analysis.assemble import assemble
from entformer.analysis.figures import draw_figures
from entformer.checkpoint.atomic import write_text
from entformer.text.numbers import encodable


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    page: Path
    data: Path
    figures: tuple[Path, ...]


def write_report(data: dict[str, Any], page: Path, figures: Path, *, formats: Sequence[str] | None = None) -> ReportFiles:
    """Write `page` (HTML), the data beside it under the same name with .json, and the figures into a folder, as `formats`."""
    write_text(page, assemble(data))
    numbers = page.with_suffix(".json")
    write_text(numbers, encodable(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))) + "\n")
    return ReportFiles(page, numbers, tuple(draw_figures(data, figures, formats)))
