"""The table of paths in docs/kernels.md is that of the compiled kernels."""

from pathlib import Path

import pytest

from entformer.kernels import native

DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.mark.usefixtures("kernels")
def test_documented_paths_are_those_of_the_kernels() -> None:
    lines = DOCS.read_text().split("| choice | path | condition |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    documented = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert documented == native.dispatch_table()
    for choice in {choice for choice, _, _ in documented}:
        paths = [row for row in documented if row[0] == choice]
        assert paths[-1][2] == "otherwise"
        assert len({path for _, path, _ in paths}) == len(paths)
