"""One HTML file from the parts of the page. In: ReportData as a dictionary. Out: the text of a page that needs no network.

Pure string work on the files of `page/`: style, scripts and data are put into the template. Nothing that comes from the data
can become markup: the title is escaped, and in the JSON every `<` is written as an escape, so no text can end the script
element it lies in. The page itself sets texts only as text.
"""

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from entformer.errors import DataError
from entformer.text.numbers import encodable

STYLES = ("page.css", "tables.css", "heads.css", "inspector.css", "charts.css")

# Classic scripts that share one scope; each uses only names of files above it.
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
)
SCRIPTS = (*COMPONENTS, "table.js", "roles.js", "paths.js", "layers.js", "compare.js", "summary.js", "app.js")

LENGTHS_STYLES = ("page.css", "tables.css", "charts.css", "lengths.css")
LENGTHS_SCRIPTS = (
    *("dom.js", "numbers.js", "colors.js", "theme.js", "data.js"),
    *("charts.js", "curves.js", "scaling.js", "lengths.js"),
)


def page_file(name: str) -> str:
    """The text of one file of the page."""
    return (files("entformer.analysis") / "page" / name).read_text(encoding="utf-8")


def assemble(data: dict[str, Any]) -> str:
    """The whole page. The data must be plain JSON: null, never NaN, where a number is unknown."""
    return fill_page("page.html", STYLES, SCRIPTS, data)


def assemble_lengths(data: dict[str, Any]) -> str:
    """The page of long-context sweeps, from the data of `lengths.py`."""
    return fill_page("lengths.html", LENGTHS_STYLES, LENGTHS_SCRIPTS, data)


def fill_page(template: str, styles: Sequence[str], scripts: Sequence[str], data: dict[str, Any]) -> str:
    """A template of `page/` with its styles, its scripts and the data in it."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as problem:
        raise DataError(f"the report cannot be written as JSON ({problem}); write null where a number is unknown.") from problem
    parts = {
        "title": html.escape(str(data.get("title", "entformer report"))),
        "style": "\n".join(page_file(name) for name in styles),
        "script": "\n".join(page_file(name) for name in scripts),
        "data": text.replace("<", "\\u003c"),
    }
    # One pass: a part that happens to contain "{{ script }}" is not filled in again.
    return encodable(re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], page_file(template)))
