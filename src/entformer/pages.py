"""Makes self-contained HTML pages from the files of `analysis/page/`.

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


def page_file(name: str) -> str:
    """Returns the text of one file of the report's page."""
    return (files("entformer") / "analysis" / "page" / name).read_text(encoding="utf-8")


def data_page(
    template: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    own_style: str = "",
    own_script: str = "",
) -> str:
    """Returns a page with its data, made of files of the report's page and a style and script of its own."""
    parts = {
        "title": html.escape(str(data.get("title", "entformer report"))),
        "policy": POLICY,
        "style": "\n".join([*map(page_file, styles), own_style]),
        "script": "\n".join([*map(page_file, scripts), own_script]),
        "data": data_text(data),
    }
    return fill_page(template, parts)


def data_text(data: Mapping[str, Any]) -> str:
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
