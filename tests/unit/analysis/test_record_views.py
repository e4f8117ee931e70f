"""A record looks like something: figures by `plot`, small drawings in a notebook."""

from io import BytesIO

import pytest

from entformer.data.store import TokenStore
from entformer.decode.attention import record_attention
from entformer.decode.records import AttentionRecord
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.text.subwords import Subwords

from .conftest import make_model


@pytest.fixture
def record(model: Seq2Seq, subwords: Subwords, store: TokenStore) -> AttentionRecord:
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


def test_null_rows_and_unnamed_tokens_are_drawn(subwords: Subwords, store: TokenStore) -> None:
    record = record_attention(make_model(subwords.size, "rela"), *(side.tolist() for side in store[0]))
    record.plot("decoder", 0).savefig(BytesIO(), format="png")
    assert "α" not in record._repr_html_()
