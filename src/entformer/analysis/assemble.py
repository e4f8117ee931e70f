"""Assembles self-contained HTML pages from the files of `page/`.

Head, style, scripts and data are inserted into a template. Data cannot become markup: the title is escaped, and every `<` in
the JSON is written as an escape, so no text can end the script element. The scripts set texts only as text.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from entformer.errors import DataError
from entformer.text.numbers import encodable

POLICY = """<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">"""
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


def page_file(name: str) -> str:
    """Returns the text of one file of the page."""
    return (files("entformer.analysis") / "page" / name).read_text(encoding="utf-8")


def assemble(data: dict[str, Any]) -> str:
    """Returns the page of a report. The data must be plain JSON: null, never NaN, where a number is unknown."""
    return _data_page("page.html", STYLES, SCRIPTS, data)


def assemble_lengths(data: dict[str, Any]) -> str:
    """Returns the page of long-context sweeps, from the data of `lengths.py`."""
    return _data_page("lengths.html", LENGTHS_STYLES, LENGTHS_SCRIPTS, data)


def _data_page(template: str, styles: Sequence[str], scripts: Sequence[str], data: dict[str, Any]) -> str:
    parts = {
        "title": html.escape(str(data.get("title", "entformer report"))),
        "policy": POLICY,
        "style": "\n".join(map(page_file, styles)),
        "script": "\n".join(map(page_file, scripts)),
        "data": data_text(data),
    }
    return fill_page(page_file(template), parts)


def data_text(data: dict[str, Any]) -> str:
    """Returns data as JSON inside a script element, which no text can end."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as err:
        raise DataError(f"the report cannot be written as JSON ({err}); write null where a number is unknown.") from err
    return text.replace("<", "\\u003c")


def fill_page(template: str, parts: Mapping[str, str]) -> str:
    """Fills in a template that begins with the head of all pages, and may end as those with data do."""
    whole = template
    for name in ("head", "end"):
        whole = whole.replace(f"{{{{ {name} }}}}", page_file(f"{name}.html").rstrip(), 1)
    # One pass: a part that contains "{{ script }}" is not filled in again.
    return encodable(re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], whole))
