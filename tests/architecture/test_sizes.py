"""Source files stay short enough to read in one sitting, in every language."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400


def test_files_are_short() -> None:
    paths = [p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*")]
    sources = [p for p in paths if p.suffix in (".py", ".cpp", ".h", ".js", ".css", ".html")]
    lines = {p.relative_to(ROOT).as_posix(): len(p.read_text(encoding="utf-8").splitlines()) for p in sources}
    assert len(lines) > 200
    assert {name: count for name, count in lines.items() if count > LIMIT} == {}
