"""`scripts/check_words.py` finds forbidden words and no innocent ones."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_words.py"
spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
assert spec is not None
assert spec.loader is not None
check_words = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_words)
ENTRIES = check_words.read_entries(check_words.WORDS.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trace_x, tracer, traces, braces, a data race and a race condition; terrace_x", []),
        ("optimistic generalists lapse by chance. Finds the root; gates, guards", []),
        ("the Normaliser optimises " + "behaviour", ["Normalis", "optimis", "behaviour"]),
        ("_race_figure(racers), race_it()", ["_race", "racers", "race_it"]),
        ("class Gate: chance = 1; chance.random()", ["class Gate:", "chance =", "chance.r"]),
    ],
)
def test_words_are_found(line: str, words: list[str]) -> None:
    hits = list(check_words.find_words("file.py", line, ENTRIES))
    assert sorted(hit.split(": ", 1)[1].split(" -> ")[0] for hit in hits) == sorted(words)


def test_paths_count_and_allowed_files_do_not() -> None:
    entries = check_words.read_entries("\\bdoors?\\b -> entry point  # allow: docs/*, src/dutch.py")
    assert list(check_words.find_words("src/door.py", "a door", entries)) == [
        "src/door.py:0: door -> entry point",
        "src/door.py:1: door -> entry point",
    ]
    assert list(check_words.find_words("src/dutch.py", "a door", entries)) == []
