"""The notebooks of the tutorials run, and what is stored of them is whole."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.ipynb"))


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_stored_outputs_are_whole(path: Path) -> None:
    assert path.stat().st_size < 600_000
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    text = path.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/work/", "/tmp/", "site-packages"))


@pytest.mark.slow
def test_every_tutorial_runs(tmp_path: Path) -> None:
    """All in one kernel, one after the other: torch and transformers are imported once."""
    assert len(TUTORIALS) == 6
    book = nbformat.v4.new_notebook(cells=[cell for path in TUTORIALS for cell in code_cells(path)])
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output.data["text/html"] for cell in book.cells for output in cell.outputs if "text/html" in output.get("data", {})
    ]
    assert len(shown) == 5
    assert all(text.startswith("<iframe ") for text in shown)
    assert (tmp_path / "heads.html").exists()
    assert (tmp_path / "runs" / "words" / "best.json").exists()  # the tutorial on translation has trained
