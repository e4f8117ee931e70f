"""Turns paths in the pages' text, which name files of the repository, into links between pages of the site."""

import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links `docs/attention.md` to that page; code blocks stay as they are."""
    up = "../" * page.file.src_uri.count("/")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    linked = [re.sub(r"`docs/([\w-]+)\.md`", rf"[\1]({up}\1.md)", part) for part in parts[::2]]
    return "".join(text + code for text, code in zip(linked, [*parts[1::2], ""], strict=True))


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Does the same for notebooks, which are HTML when they come here."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r"<code>docs/([\w-]+)\.md</code>", r'<a href="../\1.html">\1</a>', html)
