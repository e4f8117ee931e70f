"""The scripts and style sheets of the pages: no debugging, and no style that nothing uses."""

import re
from pathlib import Path

import entformer

PACKAGES = ("analysis", "explore", "widget")
PAGES = [path for name in PACKAGES for path in (Path(entformer.__file__).parent / name / "page").iterdir()]


def read(*endings: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in PAGES if path.suffix in endings)


def test_scripts_are_strict_and_leave_no_debugging() -> None:
    scripts = [path.read_text(encoding="utf-8") for path in PAGES if path.suffix == ".js"]
    assert len(scripts) > 20
    for text in scripts:
        assert '"use strict";' in text
        assert not re.search(r"\bconsole\.|\bdebugger\b|\bvar \w|innerHTML|[^=!]==[^=]", text)


def test_every_style_is_used() -> None:
    styles = re.sub(r"/\*.*?\*/", "", read(".css"), flags=re.DOTALL)
    selectors = " ".join(re.findall(r"([^{}]+)\{", styles))
    names = set(re.findall(r"[.#]([a-zA-Z][\w-]*)", selectors))
    used = read(".js", ".html")
    assert len(names) > 100
    assert [name for name in sorted(names) if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", used)] == []
    variables = set(re.findall(r"(--[\w-]+)\s*:", styles))
    assert [name for name in sorted(variables) if f"var({name})" not in styles and f'"{name}"' not in used] == []
