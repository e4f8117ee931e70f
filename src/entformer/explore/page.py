"""The explorer's page. In: the name of the run. Out: one HTML text, and the policy that lets a browser run it and nothing else.

It is made of the report's own parts (`analysis/page/`) and a few of its own (`explore/page/`). The policy names style and
script by their hashes, so that nothing that a sentence or a name smuggled in could ever run.
"""

import base64
import hashlib
import html
import re
from importlib.resources import files

from entformer.analysis.assemble import COMPONENTS, page_file

STYLES = ("page.css", "heads.css", "inspector.css", "charts.css")
OWN_STYLES = ("explore.css",)
OWN_SCRIPTS = ("api.js", "words.js", "translations.js", "alignment.js", "changes.js", "explore.js")


def explorer_page(name: str) -> tuple[str, str]:
    """The page and its Content-Security-Policy."""
    parts = {
        "title": html.escape(name),
        "style": "\n".join([*map(page_file, STYLES), *map(_own, OWN_STYLES)]),
        "script": "\n".join([*map(page_file, COMPONENTS), *map(_own, OWN_SCRIPTS)]),
    }
    page = re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _own("page.html"))
    style, script = (_hash(f"\n{parts[kind]}\n") for kind in ("style", "script"))  # as they stand between their tags
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _own(name: str) -> str:
    return (files("entformer.explore") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
