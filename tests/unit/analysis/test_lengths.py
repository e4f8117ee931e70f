"""The report of long-context sweeps: means over seeds as in the sweep's own table, scaled heads alone, a command that runs."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from entformer.analysis.lengths import find_sweeps, lengths_data
from entformer.cli import longctx
from entformer.cli.main import app
from entformer.errors import ArgumentError, DataError
from entformer.longcontext.methods import scaled_heads
from entformer.longcontext.registry import TaskConfig, get_task_config, make_command
from entformer.longcontext.results import read_results, table

REQUESTED: dict[str, Any] = {
    "methods": "softmax,asentmax",
    "positions": "nape,rope",
    "seeds": "2",
    "eval_lengths": "6,12",
    "budget": None,
    "size": "laptop",
    "options": ["alphabet=4"],
    **{"train_length": 6, "steps": 3, "sequences": 4, "batch": 4, "width": 16, "heads": 4},
    "threads": 1,
    "as_json": False,
}


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    longctx.run_task("copy", **REQUESTED, out=folder / "copy")
    longctx.run_task(
        "flip-flop", **REQUESTED | {"options": [], "positions": "nape", "methods": "ssmax"}, out=folder / "flip-flop"
    )
    return folder


def test_a_directory_of_sweeps_stands_for_its_sweeps(sweeps: Path, tmp_path: Path) -> None:
    assert find_sweeps([sweeps]) == [sweeps / "copy", sweeps / "flip-flop"]
    assert find_sweeps([sweeps / "copy", sweeps]) == [sweeps / "copy", sweeps / "flip-flop"]
    with pytest.raises(DataError, match="no results"):
        find_sweeps([sweeps, tmp_path])


def test_means_are_those_of_the_sweep(sweeps: Path) -> None:
    [sweep] = lengths_data([sweeps / "copy"])["sweeps"]
    assert (sweep["task"], sweep["train_length"], sweep["lengths"], sweep["seeds"]) == ("copy", 6, [6, 12], [0, 1])
    for metric in ("token_accuracy", "exact_match"):
        cells = table(read_results(sweeps / "copy" / "results.jsonl"), metric)
        for series in sweep["series"]:
            for point in series["points"]:
                cell = cells[series["method"], series["positions"]][point["length"]]
                assert point[metric]["mean"] == pytest.approx(cell.mean)
                assert point[metric]["spread"] == pytest.approx(cell.spread)
                assert len(point[metric]["values"]) == cell.seeds == 2
                assert point[metric]["low"] <= point[metric]["mean"] <= point[metric]["high"]


def test_attention_is_told_for_all_heads_and_for_those_without_alibi(sweeps: Path) -> None:
    records = read_results(sweeps / "copy" / "results.jsonl")
    [sweep] = lengths_data([sweeps / "copy"])["sweeps"]
    for series in sweep["series"]:
        mine = [r for r in records if (r["method"], r["positions"], r["length"]) == (series["method"], series["positions"], 12)]
        point = series["points"][1]
        for which, heads in (("all", range(4)), ("free", (2, 3) if series["positions"] == "nape" else range(4))):
            per_seed = [
                [layer[head] for layer in record["heads"]["support"] for head in heads] for record in mine
            ]  # two seeds, two layers
            wanted = sum(sum(values) / len(values) for values in per_seed) / len(per_seed)
            assert point["support"][which]["mean"] == pytest.approx(wanted)


def test_only_scaled_heads_have_learned_anything(sweeps: Path) -> None:
    data = lengths_data(find_sweeps([sweeps]))
    copy, flip_flop = data["sweeps"]
    by_name = {(series["method"], series["positions"]): series["learned"] for series in copy["series"]}
    assert by_name["softmax", "nape"] == by_name["softmax", "rope"] == []
    assert {dot["head"] for dot in by_name["asentmax", "nape"]} == {2, 3}
    assert {dot["head"] for dot in by_name["asentmax", "rope"]} == {0, 1, 2, 3}
    assert {dot["gamma"] for dot in flip_flop["series"][0]["learned"]} == {1.0}  # SSMax: s ln n
    assert scaled_heads("nape-0.25", 4) == [1, 2, 3]


def test_the_command_gives_the_recipe_again(sweeps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [sweep] = lengths_data([sweeps / "copy"])["sweeps"]
    words = shlex.split(sweep["command"])
    assert words[:3] == ["entformer", "longctx", "copy"]
    made: list[TaskConfig] = []

    def sweep_instead(recipe: TaskConfig, *_: object, **__: object) -> list[dict[str, Any]]:
        made.append(recipe)
        return read_results(sweeps / "copy" / "results.jsonl")

    monkeypatch.setattr("entformer.longcontext.results.sweep", sweep_instead)
    done = CliRunner().invoke(app, [*words[1:], "--out", str(sweeps / "again")], catch_exceptions=False)
    assert done.exit_code == 0
    held = json.loads((sweeps / "copy" / "runs" / "softmax_nape_0" / "run.json").read_text())["recipe"]
    assert made[0] == TaskConfig(**held | {"eval_lengths": tuple(held["eval_lengths"])})


def test_usual_settings_are_left_out_of_the_command() -> None:
    command = make_command(get_task_config("copy"), methods=["softmax"], positions=["nape"], seeds=[0, 1, 2])
    assert command == "entformer longctx copy --methods softmax --positions nape --seeds 3"
    assert make_command(get_task_config("copy"), methods=["softmax"], positions=["nape"], seeds=[4]).endswith("--seeds 4,")


def test_the_command_writes_page_data_and_figures(sweeps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", str(sweeps / "copy"), "--out", str(out), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    data = json.loads(out.with_suffix(".json").read_text())
    assert said["sweeps"][0]["command"] == data["sweeps"][0]["command"]
    assert "<script" in out.read_text()
    assert "://" not in out.read_text().replace("http://www.w3.org/2000/svg", "")  # nothing is loaded
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"copy-{kind}.{ending}" for kind in ("curves", "scaling") for ending in ("png", "svg", "pdf")
    }
    assert (tmp_path / "figures" / "copy-curves.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("entformer.analysis.html_report.sweep_figures", lambda *_: {})
    plain = CliRunner().invoke(app, ["report", str(sweeps), "--out", str(out)], catch_exceptions=False)
    assert "| asentmax | nape |" in plain.stdout


def test_mistakes_are_told(sweeps: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    other = tmp_path / "run"
    other.mkdir()
    for arguments, why in (
        ([str(sweeps), str(other)], "report on it separately"),
        ([str(sweeps), "--data", "x"], "have no text"),
        ([str(sweeps), "--out", str(tmp_path / "x.json")], r"ends in .html"),
    ):
        with pytest.raises(ArgumentError, match=why):
            runner.invoke(app, ["report", *arguments], catch_exceptions=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "results.jsonl").write_text("")
    with pytest.raises(DataError, match="is empty"):
        lengths_data([empty])
