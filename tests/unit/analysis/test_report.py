"""From run folders to files: the data of a report, its sentences, scores to compute weights from, figures, the command."""

import base64
import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from entformer.analysis.alphas import initial_alphas, initial_correlation
from entformer.analysis.figures import FIGURES, FORMATS, draw_figures
from entformer.analysis.history import alpha_paths, metrics_of, settings_of, validation_scores
from entformer.analysis.html_report import ReportFiles
from entformer.analysis.measures import HEAD_MEASURES
from entformer.analysis.sentence import LONGEST_WITH_SCORES, MASKED, packed_scores, view_sentence
from entformer.analysis.table import Example
from entformer.checkpoint import RunFolder
from entformer.cli.report import _print, report
from entformer.data.store import TokenStore
from entformer.errors import ArgumentError, DataError
from entformer.kernels.entmax.api import entmax
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

from .conftest import make_model

KEYS = {f"{kind}.{layer}.{head}" for kind in ("encoder", "decoder", "cross") for layer in (0, 1) for head in (0, 1)}


def example(store: TokenStore, number: int) -> Example:
    return Example(number, "sample", *(tuple(side.tolist()) for side in store[number]))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi"])
def test_weights_follow_from_the_stored_scores(positions: str, subwords: SubwordTokenizer, store: TokenStore) -> None:
    model = make_model(subwords.size, positions=positions)
    view = view_sentence(model, example(store, 1), subwords)
    alphas = model.alphas()
    assert len(view.scores) == 12
    for key, scores in view.scores.items():
        kind, layer, head = key.split(".")
        weights = entmax(torch.from_numpy(scores).double(), float(alphas[kind][int(layer), int(head)]))
        assert view.heads[key].dense() == pytest.approx(weights.numpy(), abs=2e-5)


def test_packed_scores_come_back_to_within_a_level() -> None:
    scores = np.array([[1.5, -np.inf, -3.25], [0.0, 7.0, 2.0]], dtype=np.float32)
    packed = packed_scores(scores)
    levels = np.frombuffer(base64.b64decode(packed["data"]), "<i2").reshape(packed["rows"], packed["columns"])
    assert levels[0, 1] == MASKED
    seen = np.isfinite(scores)
    assert (levels[seen] * packed["scale"] + packed["offset"]) == pytest.approx(scores[seen], abs=packed["scale"])
    assert packed_scores(np.full((1, 2), 3.0, np.float32))["scale"] == 0.0


def test_a_long_sentence_carries_its_support_alone(model: Seq2Seq, subwords: SubwordTokenizer) -> None:
    ids = tuple(subwords.encode("the man sleeps . " * LONGEST_WITH_SCORES))
    view = view_sentence(model, Example(0, "longest", ids, ids[:5]), subwords)
    assert view.scores == {}
    assert view.heads["encoder.0.0"].queries == len(ids) + 1


def test_history_of_a_run(run_folder: Path) -> None:
    folder = RunFolder(run_folder)
    metrics = metrics_of(folder.metrics)
    assert [entry["kind"] for entry in metrics] == ["alphas", "alphas", "valid"]  # the line cut short is left out
    steps, paths = alpha_paths(metrics, 10)
    assert steps == [0, 10]
    assert paths is not None
    assert paths["encoder"][1][0] == [1.3, 1.7]  # layer 1, head 0
    assert alpha_paths(metrics, 0) == (None, None)
    scores = validation_scores(folder, metrics, 10)
    assert [score["name"] for score in scores] == ["validation BLEU", "validation chrF", "validation perplexity"]
    assert (scores[0]["value"], scores[0]["signature"]) == (12.5, "nrefs:1|tok:13a")
    assert "validation set" in scores[0]["about"]
    assert validation_scores(folder, metrics, 5) == []
    assert settings_of(folder)["model.heads"] == 2


def test_long_histories_are_thinned_and_keep_their_ends() -> None:
    metrics = [{"kind": "alphas", "step": step, "cross": [[1.0 + step / 1e4]]} for step in range(1001)]
    steps, paths = alpha_paths(metrics, -1)
    assert steps is not None
    assert paths is not None
    assert len(steps) <= 241
    assert (steps[0], steps[-1]) == (0, 1000)
    assert paths["cross"][0][0][-1] == pytest.approx(1.1)


@pytest.fixture(scope="module")
def written(run_folder: Path, rela_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs with gold links, by the command."""
    folder = tmp_path_factory.mktemp("report")
    gold = folder / "gold.wa"
    gold.write_text("0-0 1-1\n0-0\n0?0\n1-1\n0-0\n0-0\n")
    text = f"{run_folder / 'test.de'},{run_folder / 'test.en'}"  # the other order: reversed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("entformer.analysis.figures.FORMATS", ("svg",))
        report([run_folder, rela_folder], data=text, gold=gold, out=folder / "report.html", examples=4, checkpoint="last")
    return folder


@pytest.fixture(scope="module")
def data(written: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((written / "report.json").read_text(encoding="utf-8"))
    return found


def test_report_data_has_the_agreed_form(data: dict[str, Any]) -> None:
    assert data["version"] == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", data["created"])
    learned, rela = data["runs"]
    assert learned["languages"] == ["en", "de"]
    assert learned["normalizers"] == {"encoder": "entmax", "decoder": "entmax", "cross": "entmax"}
    assert learned["data"]["sentences"] == 6
    assert learned["alpha_steps"] == [0, 10]
    assert rela["alpha_paths"] is None
    assert len(learned["heads"]) == 12
    head = learned["heads"][0]
    assert len(head["density_histogram"]) == 20
    assert head.keys() >= {"roles", *(measure.name for measure in HEAD_MEASURES)}
    assert rela["heads"][0]["alpha"] is None
    assert any(head["null_rate"] > 0 for head in rela["heads"])
    assert {layer["attn_type"] for layer in learned["layers"]} == {"encoder", "decoder", "cross"}
    assert learned["alignment"].keys() >= {"best_head", "best_layer", "best_layer_raw", "averaged", "averaged_raw"}
    cross = [head for head in learned["heads"] if head["attn_type"] == "cross"]
    best = min(min(head["aer"], head["aer_shifted"]) for head in cross)
    assert learned["alignment"]["best_head"]["aer"] == pytest.approx(best)
    assert learned["heads"][0]["aer"] is None


def test_sentences_of_a_report(data: dict[str, Any]) -> None:
    first, second = (run["sentences"] for run in data["runs"])
    assert [sentence["id"] for sentence in second[:4]] == [sentence["id"] for sentence in first]  # side by side
    for sentence in first:
        assert sentence["source"][-1] == sentence["target"][-1] == "</s>"
        assert sentence["target"][0] == "<s>"
        assert sentence["heads"].keys() == KEYS
        cross = sentence["heads"]["cross.0.0"]
        assert len(cross["crow"]) == len(sentence["target"])  # a row for every token the decoder reads
        assert len(cross["col"]) == len(cross["weight"]) == cross["crow"][-1]
        assert cross["scores"]["rows"] == len(sentence["target"]) - 1
        assert cross["scores"]["columns"] == len(sentence["source"])
    for run_data in data["runs"]:
        for head in run_data["heads"]:
            for role in head["roles"]:
                assert all(0 <= place < len(run_data["sentences"]) for place in role["examples"])


def test_the_page_holds_the_data_and_asks_for_nothing(written: Path, data: dict[str, Any]) -> None:
    page = (written / "report.html").read_text(encoding="utf-8")
    inside = re.search(r'<script type="application/json" id="entformer-data">(.*?)</script>', page, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1]) == data
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)


def test_every_figure_is_drawn(written: Path) -> None:
    assert {path.name for path in (written / "figures").iterdir()} == {f"{name}.svg" for name in FIGURES}


def test_figures_have_every_format(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entformer.analysis.figures.FIGURES", {"density-by-layer": FIGURES["density-by-layer"]})
    files = draw_figures(data, tmp_path)
    assert [path.name for path in files] == [f"density-by-layer.{form}" for form in FORMATS]
    assert [path.read_bytes()[:5] for path in files] == [b"\x89PNG\r", b"<?xml", b"%PDF-"]


def test_figures_without_anything_to_show_are_left_out(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entformer.analysis.figures.FORMATS", ("svg",))
    rela = {**data["runs"][1], "alignment": None, "varied": []}
    names = {path.stem for path in draw_figures({**data, "runs": [rela]}, tmp_path)}
    assert not names & {"alpha-trajectories", "alpha-distribution", "alignment-error", "varied-sparsity"}
    assert {"density-distribution", "positional-heads", "head-measures"} <= names


def test_figures_count_layers_and_heads_from_0(data: dict[str, Any]) -> None:
    """As the page, the JSON and Python do; docs/conventions.md."""
    learned = {**data, "runs": data["runs"][:1]}

    def texts(name: str) -> set[str]:
        figure = FIGURES[name](learned)
        assert figure is not None
        return {text.get_text() for text in figure.findobj(Text)}

    assert {text for text in texts("head-measures") if re.fullmatch(r"\w+\.\d\.\d", text)} == KEYS
    assert {text for text in texts("alpha-trajectories") if text.startswith("layer")} == {"layer 0", "layer 1"}
    best = max(learned["runs"][0]["heads"], key=lambda head: head["positional.-1"] or 0.0)
    assert any(f"{best['attn_type']} layer {best['layer']} head {best['head']}," in text for text in texts("positional-heads"))
    for name in ("density-by-layer", "head-diversity", "alignment-error"):
        figure = FIGURES[name](learned)
        assert figure is not None
        lines = [line for axes in figure.axes for line in axes.lines]
        assert {tuple(np.asarray(line.get_xdata()).tolist()) for line in lines} == {(0, 1)}


def test_small_numbers_are_small_in_every_figure_and_in_the_terminal(
    data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = copy.deepcopy(data)
    for one in tiny["runs"]:
        for head in one["heads"]:
            head.update({name: 2.3e-5 for name, value in head.items() if isinstance(value, float) and "alpha" not in name})
        for layer in one["layers"]:
            layer.update({name: 2.3e-5 for name, value in layer.items() if isinstance(value, float)})
        one["roles"] = [{**ranking, "heads": [[key, 2.3e-5] for key, _ in ranking["heads"]]} for ranking in one["roles"]]
        one["varied"] = [{**pair, "densities": [2.3e-5, 2.3e-5]} for pair in one["varied"]]
        one["positional_heads"][0].update(heads=["encoder.0.0"], median_confidence=2.3e-5)
    texts = []
    for name in ("head-measures", "positional-heads", "merging-heads", "interrogation-heads", "varied-sparsity"):
        figure = FIGURES[name](tiny)
        assert figure is not None, name
        texts += [text.get_text() for text in figure.findobj(Text)]
    files = ReportFiles(tmp_path / "page.html", tmp_path / "page.json", ())
    files.page.write_text("")
    _print(tiny, files)
    texts += capsys.readouterr().out.replace("0.0 MB", "").splitlines()
    assert sum("2.3e-5" in text for text in texts) > 50
    assert any("0.0023%" in text for text in texts)
    zero = re.compile(r"(?<![\w.])0\.0+%?(?![\w.%])|(?<![\w.])0%")
    assert [text for text in texts if zero.search(text)] == []


def test_the_start_of_every_alpha_is_in_the_report(data: dict[str, Any]) -> None:
    learned, rela = data["runs"]
    start = {"0.0": 1.1, "0.1": 1.2, "1.0": 1.3, "1.1": 1.4}
    assert {head["alpha_initial"] for head in rela["heads"]} == {None}
    for head in learned["heads"]:
        assert head["alpha_initial"] == start[f"{head['layer']}.{head['head']}"]
    pairs = [(head["alpha_initial"], head["alpha"]) for head in learned["heads"]]
    assert learned["alpha_correlation"]["all"] == pytest.approx(np.corrcoef(*zip(*pairs, strict=True))[0, 1])
    assert learned["alpha_correlation"].keys() == {"all", "encoder", "decoder", "cross"}
    assert rela["alpha_correlation"] is None
    assert "with their random initialization" in learned["alpha_sentence"]
    assert rela["alpha_sentence"] is None


def test_a_question_is_drawn_beside_the_same_words_as_a_statement(data: dict[str, Any]) -> None:
    run = data["runs"][0]
    contrast = run["contrast"]
    question = run["sentences"][contrast["sentence"]]["source"]
    assert [(a, b) for a, b in zip(question, contrast["source"], strict=True) if a != b] in ([("▁?", "▁.")], [("?", ".")])
    assert contrast["heads"].keys() == {f"encoder.{layer}.{head}" for layer in (0, 1) for head in (0, 1)}
    for rows in contrast["heads"].values():
        assert len(rows["crow"]) == len(question) + 1
    figure = FIGURES["interrogation-heads"]({**data, "runs": [run]})
    assert figure is not None
    left, right = figure.axes
    assert "weight on ?" in left.get_title(loc="left")
    assert "full stop" in right.get_title(loc="left")
    assert [label.get_text().lstrip("~") for label in right.get_xticklabels()][-2] == "."
    alone = FIGURES["interrogation-heads"]({**data, "runs": [{**run, "contrast": None}]})
    assert alone is not None
    assert len(alone.axes) == 1


def test_a_correlation_needs_three_heads_that_differ() -> None:
    places = [("encoder", 0, head) for head in range(4)]
    apart = dict(zip(places, (1.1, 1.2, 1.5, 1.9), strict=True))
    assert initial_correlation(apart, apart) == pytest.approx({"all": 1.0, "encoder": 1.0})
    assert initial_correlation(apart, dict.fromkeys(places, 1.5)) == {"all": None, "encoder": None}
    assert initial_correlation(dict.fromkeys(places, 1.5), apart) == {"all": None, "encoder": None}
    assert initial_correlation(dict(list(apart.items())[:2]), apart) == {"all": None, "encoder": None}
    assert initial_correlation({}, apart) is None
    late = [{"kind": "alphas", "step": 25, "encoder": [[1.5]]}]
    assert initial_alphas(late) == {}  # not where they started


def test_best_weights_that_are_averaged_have_the_scores_of_the_average(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    metrics = metrics_of(folder.metrics)
    folder.averaged.mkdir()
    (folder.averaged / "average.json").write_text('{"step": 10, "validation": {"bleu": 13.5, "signature": "s", "chrf": null}}')
    (folder.path / "best.json").write_text('{"checkpoint": "averaged"}')
    assert [score["value"] for score in validation_scores(folder, metrics, 10)] == [13.5]
    assert [score["value"] for score in validation_scores(folder, metrics, 10, "averaged")] == [13.5]
    assert validation_scores(folder, metrics, 10, "last")[0]["value"] == 12.5
    (folder.path / "best.json").write_text('{"checkpoint": "step-00000010"}')
    assert validation_scores(folder, metrics, 10)[0]["value"] == 12.5


def test_mistakes_are_named(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    with pytest.raises(ArgumentError, match="twice"):
        report([run_folder, run_folder], out=out)
    with pytest.raises(DataError, match="prepared data"):
        report([run_folder], out=out, checkpoint="last")
    with pytest.raises(ArgumentError, match="--gold FILE"):
        report([run_folder], data=str(run_folder / "test"), gold_text="a,b", out=out, checkpoint="last")
    with pytest.raises(DataError, match="no run directory"):
        report([tmp_path / "nowhere"], out=out)
    with pytest.raises(ArgumentError, match=r"ends in \.html"):
        report([run_folder], out=tmp_path / "r.json")
