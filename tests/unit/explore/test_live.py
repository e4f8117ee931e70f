"""Which runs a live page can hold, and what it stores of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from entformer.analysis.training_text import TrainingText
from entformer.checkpoint import LoadedRun, RunFolder
from entformer.cli.main import app
from entformer.errors import ArgumentError
from entformer.explore import live
from entformer.explore.live import live_page


@pytest.mark.parametrize("cross", [{"normalizer": "rela"}, {"normalizer": "asentmax"}, {"normalizer": "topk"}])
def test_other_normalizers_are_refused_by_name(make_run: Callable[..., LoadedRun], cross: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"cross attention.*{cross['normalizer']}.*explore"):
        live_page(make_run(cross=cross), name="run")


def test_a_large_model_is_refused(make_run: Callable[..., LoadedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_PARAMETERS", 1000)
    with pytest.raises(ArgumentError, match="at most 1,000 parameters"):
        live_page(make_run(), name="run")


def test_the_command_writes_one_file(
    make_run: Callable[..., LoadedRun], save_run: Callable[[LoadedRun, Path], RunFolder], tmp_path: Path
) -> None:
    save_run(make_run(), tmp_path / "run")
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", "--live", str(tmp_path / "run"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = out.read_text(encoding="utf-8")
    assert "entformer live" in text
    assert str(tmp_path) not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


def test_two_runs_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--live", "a", "b", "--out", str(tmp_path / "page.html")])
    assert isinstance(done.exception, ArgumentError)
    assert "one run" in str(done.exception)


def test_words_are_compared_without_case_and_punctuation() -> None:
    text = TrainingText(pairs=2, words=frozenset(("the", "dog's", "bark")), toy=False)
    assert text.unknown('The "dog\'s" loud BARK, loud?') == ["loud"]
    assert text.describe().startswith("Trained on 2 sentence pairs with 3 different source words")
