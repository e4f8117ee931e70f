"""Names of runs, whatever letters they have: figures, page, terminal and report.json show them as they are."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from entformer.analysis.assemble import assemble
from entformer.cli.output import progress_bar
from entformer.cli.report import report
from entformer.text.numbers import printable

NASTY = (r"run$\frac$", '<b>&amp;"it\'s" <script>\nnew [/line] $x$'.replace("/", "|"), "long" * 50)


def test_names_of_runs_are_shown_as_they_are(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("entformer.analysis.figures.FORMATS", ("svg",))
    folders = [tmp_path / name for name in NASTY]
    for folder in folders:
        shutil.copytree(run_folder, folder)
    text = str(run_folder / "test")
    report(folders, data=text, out=tmp_path / "report.html", examples=2, checkpoint="last", title="</script>" + NASTY[1])
    names = [printable(folder.name) for folder in folders]
    assert all("\n" not in name for name in names)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    inside = re.search(r'<script type="application/json" id="entformer-data">(.*?)</script>', page, re.DOTALL)
    assert inside is not None
    assert [one["name"] for one in json.loads(inside[1])["runs"]] == names
    assert "<b>" not in page
    shown = capsys.readouterr().out
    assert all(f"{name}: 6 sentences" in shown for name in names)
    drawn = {path.stem: ElementTree.fromstring(path.read_bytes()) for path in (tmp_path / "figures").iterdir()}
    texts = "\n".join(text for figure in drawn.values() for text in figure.itertext())
    for name in names:
        assert (name if len(name) <= 60 else f"{name[:59]}…") in texts


def test_text_that_utf8_does_not_have_can_be_written() -> None:
    """As in a path among the settings; Python gives bytes that are no text as lone surrogates."""
    page = assemble({"title": "run \udcff", "runs": [], "settings": {"data": "\udcfe"}})
    assert "run ?" in page.encode("utf-8").decode("utf-8")


def test_progress_does_not_read_names_as_markup() -> None:
    console = Console(force_terminal=True, width=80)
    with console.capture() as shown, progress_bar(console) as progress:
        progress("run [/bold] [red]: heads", 1, 2)
    assert "[/bold]" in shown.get()
