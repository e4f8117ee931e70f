"""Nothing that entformer writes or reads is pickled: a file from elsewhere cannot run code."""

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "entformer"
PICKLED = re.compile(r"\b(?:import|from) (?:c?pickle|dill|joblib|shelve|marshal)\b|\btorch\.(?:load|save)\(|allow_pickle=True")


def test_no_module_pickles() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PICKLED.search(line)
    ]
    assert found == []
