"""The size of a report is bounded: dense heads are cut and say where, sparse ones are whole, and the page stays below 10 MB."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from entformer.analysis import budget
from entformer.analysis.assemble import assemble
from entformer.analysis.budget import allocate_budget, keep_affordable
from entformer.analysis.sentence import SentenceView, packed_rows, view_sentence
from entformer.analysis.table import Example
from entformer.cli.report import report
from entformer.decoding.sparse_rows import SparseRows, cut_rows
from entformer.kernels.attention.reference import to_csr
from entformer.models.config import PRESETS
from entformer.text.tokenizer import SubwordTokenizer

from .conftest import make_model


def rows_of(weights: list[list[float]]) -> SparseRows:
    crow, col, weight = (part.numpy() for part in to_csr(torch.tensor(weights)))
    return SparseRows.from_lists({"crow": crow, "col": col, "weight": weight}, len(weights[0]))


def test_a_cut_keeps_the_largest_weights_and_says_the_least() -> None:
    rows = rows_of([[0.5, 0.3, 0.1234, 0.0766], [0.9, 0.0, 0.06, 0.04], [0.25, 0.25, 0.25, 0.25]])
    kept, cut = cut_rows(rows, 8)
    assert cut == 0.13  # the eighth largest is 0.1234; what is kept is all that is not below the cut
    assert kept.dense() == pytest.approx(np.where(rows.dense() >= 0.13, rows.dense(), 0.0))
    assert kept.crow.tolist() == [0, 2, 3, 7]


def test_where_all_weights_are_equal_none_is_preferred() -> None:
    kept, cut = cut_rows(rows_of([[0.25] * 4] * 4), 7)
    assert len(kept.col) == 0
    assert cut == 0.26


def view(heads: dict[str, SparseRows], scores: int = 0) -> SentenceView:
    kept = {key: np.zeros((scores, scores), np.float32) for key in heads} if scores else {}
    return SentenceView(Example(0, "sample", (), ()), (), (), heads, kept, {})


def test_sparse_heads_are_whole_and_dense_ones_share_the_rest() -> None:
    rng = np.random.default_rng(1)
    sparse = rows_of(np.diag([1.0] * 10 + [0.0] * 10).tolist())
    dense = [rows_of(rng.dirichlet(np.ones(20), size=20).tolist()) for _ in range(2)]
    heads = {"encoder.0.0": dense[0], "encoder.0.1": sparse, "encoder.0.2": dense[1]}
    (held,) = allocate_budget([view(heads)], weights=310, scores=0)
    assert list(held.heads) == list(heads)
    assert held.heads["encoder.0.1"] == (sparse, None)
    sizes = [len(held.heads[key][0].col) for key in ("encoder.0.0", "encoder.0.2")]
    assert 240 < sum(sizes) <= 300
    assert all(held.heads[key][1] is not None for key in ("encoder.0.0", "encoder.0.2"))
    assert held.omitted == []
    (held,) = allocate_budget([view(heads)], weights=45, scores=0)  # less than a weight per query for one of the dense ones
    assert (list(held.heads), held.omitted) == (["encoder.0.1", "encoder.0.2"], ["encoder.0.0"])


def test_of_long_texts_as_many_are_kept_as_show_something() -> None:
    dense, sparse = rows_of([[0.05] * 20] * 30), rows_of([[1.0] + [0.0] * 19] * 30)
    computed: list[int] = []

    def views(count: int) -> Iterator[SentenceView]:
        for number in range(count):
            computed.append(number)
            yield SentenceView(Example(number, "sample", (), ()), (), (), {"decoder.0.0": dense, "decoder.0.1": sparse}, {}, {})

    need = 30 * budget.ROW_WEIGHTS + 30  # of the dense and of the sparse head
    assert [view.example.id for view in keep_affordable(views(9), 3 * need)] == [0, 1, 2]
    assert computed == [0, 1, 2, 3]  # no more than the first that does not fit
    assert [view.example.id for view in keep_affordable(views(9), 1)] == [0]
    assert len(keep_affordable(views(9), 100 * need)) == 9


def test_what_short_sentences_leave_long_ones_get_and_scores_are_held_whole_or_not_at_all() -> None:
    short, long = (view({"cross.0.0": rows_of(np.full((n, n), 1 / n).tolist())}, scores=n) for n in (4, 10))
    held = allocate_budget([long, short], weights=116, scores=50)
    assert [own.heads["cross.0.0"][1] for own in held] == [None, None]
    assert [own.scores for own in held] == [False, True]


def test_a_sentence_of_512_dense_tokens_stay_below_10_mb(subwords: SubwordTokenizer) -> None:
    """Transformer-Tiny with softmax: 48 heads, 10 million weights above zero in one sentence."""
    model = make_model(subwords.size, "softmax", **PRESETS["tiny"])
    rng = np.random.default_rng(1)
    ids = [tuple(rng.integers(5, subwords.size, size=511).tolist()) for _ in range(2)]
    long = view_sentence(model, Example(0, "longest", *ids), subwords)
    assert long.entries > 10_000_000
    (held,) = allocate_budget([long], budget.MOST_WEIGHTS, budget.MOST_SCORES)
    assert len(held.heads) == 48
    sentence = {key: {**packed_rows(rows), "cut": cut} for key, (rows, cut) in held.heads.items()}
    assert len(assemble({"title": "long", "sentence": sentence}).encode()) < 7_000_000  # scores may add 2.7 million


def test_a_report_says_what_it_leaves_out(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "MOST_WEIGHTS", 900)
    monkeypatch.setattr(budget, "MOST_SCORES", 0)
    monkeypatch.setattr("entformer.analysis.html_report.draw_figures", lambda *_: [])
    report([run_folder], data=f"{run_folder / 'test'}", out=tmp_path / "r.html", examples=2, checkpoint="last", as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert summary["runs"][0]["kinds"]["encoder"]["normalizer"] == "entmax"
    data = json.loads(Path(summary["data"]).read_text(encoding="utf-8"))
    stored = [head for sentence in data["runs"][0]["sentences"] for head in sentence["heads"].values()]
    assert 0 < sum(len(head["col"]) for head in stored) <= 900
    assert any(head["cut"] is not None for head in stored)
    assert all(min(head["weight"]) >= head["cut"] for head in stored if head["cut"] is not None and head["weight"])
    assert all(head["scores"] is None for head in stored)
