"""Files stay short enough to read at a sitting: 400 lines, unless they are listed here with a reason."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400
LONGER: dict[str, tuple[int, str]] = {}  # file -> (its own limit, the reason)
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cpp", ".h")
)


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("name", SOURCES)
def test_file_is_short(name: str) -> None:
    limit, _ = LONGER.get(name, (LIMIT, ""))
    assert count_lines(ROOT / name) <= limit


def test_exceptions_are_still_needed() -> None:
    assert [name for name in LONGER if count_lines(ROOT / name) <= LIMIT] == []


def test_sources_are_found() -> None:
    assert "src/entformer/errors.py" in SOURCES
    assert len(SOURCES) > 20
