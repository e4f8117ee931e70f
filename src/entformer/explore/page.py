"""The explorer's page, and the policy that lets a browser run it and nothing else.

It consists of the report's components (`analysis/page/`) and its own files (`explore/page/`). The policy allows style and
script by their hashes, so that no text in a sentence or a name can run.
"""

import base64
import hashlib
import html
from importlib.resources import files

from entformer.analysis.assemble import COMPONENTS
from entformer.pages import fill_page, page_file

STYLES = ("page.css", "controls.css", "heads.css", "inspector.css", "charts.css")
OWN_STYLES = ("explore.css",)
OWN_SCRIPTS = ("api.js", "words.js", "translations.js", "alignment.js", "changes.js", "facts.js", "explore.js", "training.js")
ICON = (
    """<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect """
    """width='16' height='16' rx='3' fill='%231f66a8'/%3E%3Cpath d='M3 12h3V8h3V4h4' stroke='%23fff' stroke-width='2' """
    """fill='none'/%3E%3C/svg%3E">"""
)


def explorer_page(name: str) -> tuple[str, str]:
    """Returns the page and its Content-Security-Policy."""
    parts = {
        "title": html.escape(name),
        "policy": ICON,  # the policy is a header, which can forbid framing too
        "made": "entformer explore",
        "about": own_file("about_api.html"),
        "data": "",
        "style": "\n".join([*map(page_file, STYLES), *map(own_file, OWN_STYLES)]),
        "script": "\n".join([*map(page_file, COMPONENTS), *map(own_file, OWN_SCRIPTS)]),
    }
    style, script = (_hash(f"\n{parts[part]}\n") for part in ("style", "script"))  # as they are between their tags
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return fill_page(own_file("page.html"), parts), policy


def own_file(name: str) -> str:
    """Returns the text of one file of the explorer's page."""
    return (files("entformer.explore") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
