"""Links of the documents and the notebooks lead somewhere: to a file beside them, and to a heading in it."""

import json
import re
from pathlib import Path

import pytest

from .test_file_map import DOCUMENTS, ROOT

PAGES = [*DOCUMENTS, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.ipynb"))]
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")


def text_of(page: Path) -> str:
    """Returns the Markdown of a document, or of the text cells of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings of a page, as the documentation site and code hosts form them."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"[`*]", "", title).strip().lower() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title)) for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(CODE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            if not re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?|mailto:\S+@\S+", link):
                found.append(link)
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        outside = path and not target.is_relative_to(ROOT)
        if outside or not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_wrong_link_is_found(tmp_path: Path) -> None:
    own = tmp_path / "own.md"
    text = "# A `heading`\n\n[here](#a-heading) [no](#b) [gone](gone.md) [web](http://x) `[code](gone.md)`\n"
    own.write_text(text, encoding="utf-8")
    assert broken(own) == ["#b", "gone.md", "http://x"]
