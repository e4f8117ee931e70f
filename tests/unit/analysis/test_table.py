"""The table of heads, and roles found from it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from entformer.analysis import Collector, HeadTable, LayerRows, Role
from entformer.analysis.roles import ROLES, RoleDefinition, find_roles, rank_heads
from entformer.errors import ArgumentError


@pytest.fixture
def table() -> HeadTable:
    """Three heads over ten tokens: previous token, even, itself."""
    weights = np.zeros((4, 3, 10, 10))
    weights[:, 0] = np.eye(10, k=-1)
    weights[:, 0, 0, 0] = 1.0
    weights[:, 1] = 0.1
    weights[:, 2] = np.eye(10)
    collector = Collector()
    collector.add(LayerRows.from_dense("encoder", 0, weights))
    return collector.table({("encoder", 0): [1.9, 1.0, 1.5]})


def test_roles_are_found_with_scores(table: HeadTable) -> None:
    found = [[(role.role, role.score) for role in row.roles] for row in table]
    assert found[0] == [("previous token", 1.0)]
    assert found[1] == [("broad context", pytest.approx(1.0))]
    assert found[2] == [("current token", 1.0)]


def test_roles_are_ranked_whether_or_not_they_are_candidates(table: HeadTable) -> None:
    ranking = {ranking.role: ranking.heads for ranking in rank_heads(table, top=2)}
    assert ranking["previous token"][0] == ("encoder.0.0", 1.0)
    assert ranking["previous token"][1][0] == "encoder.0.1"
    assert len(ranking["next token"]) == 2
    assert "merges subwords" not in ranking  # nothing to measure it on


def test_more_roles_can_be_defined(table: HeadTable) -> None:
    sparse = RoleDefinition("one key only", "support", 0.9, lambda head: 1.0 / head.support)
    assert find_roles(table.heads[0], (*ROLES, sparse)).roles[0].role in ("one key only", "previous token")
    assert len(find_roles(table.heads[0], (*ROLES, sparse)).roles) == 2


def test_measures_are_attributes(table: HeadTable) -> None:
    assert table.heads[0].density == table.heads[0].values["density"] == pytest.approx(0.1)
    assert table.heads[0].aer is None
    with pytest.raises(AttributeError, match="no measure 'beauty'"):
        _ = table.heads[0].beauty


def test_columns_and_order(table: HeadTable) -> None:
    assert table.column("alpha") == [1.9, 1.0, 1.5]
    assert table.column("positional.-1") == [1.0, pytest.approx(0.1), 0.0]
    assert [row.head for row in table.sorted("alpha")] == [0, 2, 1]
    assert [row.head for row in table.sorted("density", descending=False)] == [0, 2, 1]
    assert [row.head for row in table.sorted("merging")] == [0, 1, 2]
    with pytest.raises(ArgumentError, match="no measure"):
        table.column("beauty")


def test_small_measures_are_small_in_the_terminal_and_in_notebooks(table: HeadTable) -> None:
    tiny = replace(table.heads[0].with_values(density=2.3e-5, entropy=0.0004), roles=(Role("previous token", 2.3e-5),))
    layer = table.layers[0].with_values(null_rate=2.3e-5)
    shown = replace(table, heads=(tiny,), layers=(layer,))
    for text in (repr(shown), shown._repr_html_()):
        assert text.count("2.3e-5") >= 2
        assert "4.0e-4" in text
        assert "0.000 " not in text
        assert ">0.000<" not in text


def test_it_becomes_json_and_html(table: HeadTable) -> None:
    assert json.loads(table.to_json()) == table.to_dict()
    assert table.to_dict()["heads"][0]["roles"][0]["role"] == "previous token"
    page = table._repr_html_()
    assert page.count("<tr>") == 4 + 2  # heads and layers, each with a line of titles
    assert "Jensen-Shannon divergence, base: heads" in page
    assert "encoder.0.2" in page
    assert "encoder.0.2" in repr(table)
