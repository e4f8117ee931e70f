"""Source files stay below 400 lines, in every language."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400


def test_files_are_short() -> None:
    paths = [path for directory in ("src", "tests", "benchmarks", "scripts") for path in (ROOT / directory).rglob("*")]
    sources = [path for path in paths if path.suffix in (".py", ".cpp", ".h", ".js", ".css", ".html")]
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert len(lines) > 200
    assert {name: count for name, count in lines.items() if count > LIMIT} == {}
