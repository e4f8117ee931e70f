"""A record looks like something: figures by `plot`, small drawings in a notebook."""

import dataclasses
from io import BytesIO

import numpy as np
import pytest

from entformer.data.store import TokenStore
from entformer.decoding.attention_record import record_attention
from entformer.decoding.records import AttentionRecord, HeadKey, SparseRows
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

from .conftest import make_model


@pytest.fixture
def record(model: Seq2Seq, subwords: SubwordTokenizer, store: TokenStore) -> AttentionRecord:
    return record_attention(model, *(side.tolist() for side in store[1]), subwords=subwords)


def test_plot_one_head_and_many(record: AttentionRecord) -> None:
    figure = record.plot("cross", 1, 0)
    (axes,) = figure.axes
    assert "cross 1.0" in axes.get_title(loc="left")
    assert len(axes.get_yticklabels()) == len(record.target) - 1
    figure.savefig(BytesIO(), format="png")
    assert len(record.plot("encoder").axes) == 4
    assert len(record.plot().axes) == 12
    with pytest.raises(ArgumentError, match="no head"):
        record.plot("encoder", 9)


def test_notebooks_show_a_rectangle_per_weight(record: AttentionRecord) -> None:
    page = record._repr_html_()
    assert page.count("<svg") == 12
    assert page.count("<rect") == sum(len(rows.col) for rows in record.heads.values())
    assert "<script" not in page


def test_notebooks_show_tokens_and_what_the_colors_mean(record: AttentionRecord) -> None:
    page = record._repr_html_()
    assert all(f"{side}: " in page for side in ("source", "target"))
    assert " ".join(record.target_pieces).replace("<", "&lt;").replace(">", "&gt;") in page
    assert all(f"</span>{name}" in page for name in ("small weight", "weight 1", "exactly 0", "masked"))
    assert page.count("<path") == sum(key.kind == "decoder" for key in record.heads)  # masked keys


def test_figures_are_displayed_without_pyplot(record: AttentionRecord) -> None:
    assert record.plot("cross", 0, 0)._repr_png_().startswith(b"\x89PNG")


def test_a_head_prints_its_keys_and_weights() -> None:
    weights = np.array([[0.75, 0.0, 0.25], [0.0, 0.0, 1e-9], [0.0, 0.0, 0.0]], np.float32)
    assert repr(SparseRows.from_dense(weights)).splitlines() == [
        "3 queries, 3 keys; 3 weights are not zero, 33% of all.",
        "query 0: key 0 0.75, key 2 0.25",
        "query 1: key 2 1.0e-9",
        "query 2: no key",
    ]


def test_drawings_that_leave_weights_out_say_so(record: AttentionRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what is left out would look like exact zeros."""
    most = max(len(rows.col) for rows in record.heads.values())
    monkeypatch.setattr("entformer.decoding.records.MOST_CELLS", most - 1)
    page = record._repr_html_()
    cut = sum(len(rows.col) == most for rows in record.heads.values())
    assert page.count(f"largest {most - 1} of {most} weights") == cut


def test_a_head_that_is_hardly_there_is_not_0_percent(record: AttentionRecord) -> None:
    key = HeadKey("encoder", 0, 0)
    rows = SparseRows(np.array([0, 1, *[1] * 499]), np.array([3], np.int32), np.array([2.3e-5], np.float32), 500)
    page = dataclasses.replace(record, heads={key: rows}, alphas={key: 1.001})._repr_html_()
    assert "1 weights, 4.0e-4% of all pairs" in page
    assert "α 1.001" in page


def test_tokens_and_kinds_are_drawn_as_they_are(record: AttentionRecord) -> None:
    pieces = (r"▁$\frac$", "$", "▁a\nb", *record.source_pieces[3:])
    odd = HeadKey(r"$\frac$", 0, 0)
    for key, like in ((HeadKey("encoder", 0, 0), "encoder"), (odd, "cross")):
        changed = dataclasses.replace(record, source_pieces=pieces, heads={key: record.heads[HeadKey(like, 0, 0)]})
        changed.plot().savefig(BytesIO(), format="svg")  # mathematics that cannot be parsed would raise


def test_null_rows_and_unnamed_tokens_are_drawn(subwords: SubwordTokenizer, store: TokenStore) -> None:
    record = record_attention(make_model(subwords.size, "rela"), *(side.tolist() for side in store[0]))
    record.plot("decoder", 0).savefig(BytesIO(), format="png")
    assert "α" not in record._repr_html_()
