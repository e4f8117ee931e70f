#!/usr/bin/env python3
"""Reject the words of `scripts/forbidden_words.txt` in tracked text: `python scripts/check_words.py [PATH ...]`.

Prints `file:line: word -> replacement` for each hit and exits with 1 if there is any. Skips the list itself, its
test, binary files and the toy corpus.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

WORDS = Path(__file__).with_name("forbidden_words.txt")
SKIPPED = (
    "scripts/forbidden_words.txt",
    "tests/architecture/test_words.py",
    "src/entformer/data/toy_corpus/*",
    "docs/demo.html",
)


class Entry(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    allowed: tuple[str, ...]


def read_entries(text: str) -> list[Entry]:
    """Parses the list: `pattern -> replacement  # allow: path, path`."""
    entries = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        rule, _, note = line.partition("  # allow: ")
        pattern, arrow, replacement = rule.partition(" -> ")
        if not arrow:
            raise ValueError(f"{WORDS.name}: expected 'pattern -> replacement', got {line!r}")
        has_capital = re.search("[A-Z]", re.sub(r"\\.", "", pattern)) is not None
        flags = 0 if has_capital else re.IGNORECASE
        entries.append(
            Entry(re.compile(pattern, flags), replacement, tuple(path.strip() for path in note.split(",") if path.strip()))
        )
    return entries


def find_words(name: str, text: str, entries: Iterable[Entry]) -> Iterator[str]:
    """Yields one message per forbidden word in the path `name` (as line 0) and in the lines of `text`."""
    entries = [entry for entry in entries if not any(fnmatch(name, path) for path in entry.allowed)]
    for number, line in enumerate([name, *text.splitlines()]):
        for entry in entries:
            for match in entry.pattern.finditer(line):
                yield f"{name}:{number}: {match.group(0)} -> {entry.replacement}"


def main(paths: list[str]) -> int:
    entries = read_entries(WORDS.read_text(encoding="utf-8"))
    tracked = subprocess.run(["git", "ls-files", "-z", *paths], capture_output=True, text=True, check=True).stdout.split("\0")
    hits: list[str] = []
    for name in filter(None, tracked):
        file = Path(name)
        if not file.is_file() or any(fnmatch(name, skipped) for skipped in SKIPPED):
            continue
        content = file.read_bytes()
        if b"\0" in content:
            continue
        hits += find_words(name, content.decode("utf-8"), entries)
    print(*hits, f"{len(hits)} forbidden words" if hits else "no forbidden words", sep="\n")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
