"""Which files of `page/` make the page of a report, and that of long-context sweeps."""

from typing import Any

from entformer.pages import data_page, page_file

STYLES = ("page.css", "controls.css", "tables.css", "heads.css", "story.css", "inspector.css", "charts.css")

# Classic scripts in one scope. What a script runs at once may use only files above it; what it defines may use any.
COMPONENTS = (
    "solver.js",
    "dom.js",
    "numbers.js",
    "colors.js",
    "theme.js",
    "data.js",
    "tokens.js",
    "heatmap.js",
    "lines.js",
    "heads.js",
    "inspector.js",
    "charts.js",
    "paths.js",
)
SCRIPTS = (*COMPONENTS, "table.js", "roles.js", "layers.js", "compare.js", "summary.js", "story.js", "app.js")

LENGTHS_STYLES = ("page.css", "controls.css", "tables.css", "charts.css", "lengths.css")
LENGTHS_SCRIPTS = (
    *("dom.js", "numbers.js", "colors.js", "theme.js", "data.js"),
    *("charts.js", "curves.js", "scaling.js", "lengths.js"),
)


def assemble(data: dict[str, Any]) -> str:
    """Returns the page of a report. The data must be plain JSON: null, never NaN, where a number is unknown."""
    return data_page(page_file("page.html"), STYLES, SCRIPTS, data)


def assemble_lengths(data: dict[str, Any]) -> str:
    """Returns the page of long-context sweeps, from the data of `lengths.py`."""
    return data_page(page_file("lengths.html"), LENGTHS_STYLES, LENGTHS_SCRIPTS, data)
