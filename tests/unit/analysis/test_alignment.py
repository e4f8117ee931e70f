"""Word alignment: gold files, argmax links from row i and i + 1, the error rate of a case counted by hand."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from entformer.analysis.alignment import (
    Counts,
    alignment_error_rate,
    collect_alignment,
    link_counts,
    precision_recall,
    strongest_keys,
)
from entformer.analysis.gold import Gold, read_gold
from entformer.analysis.rows import LayerRows
from entformer.analysis.words import word_numbers
from entformer.data.batching import TokenBatches
from entformer.data.store import TokenStore
from entformer.decoding.attention_record import record_attention
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import EOS, SubwordTokenizer

from .conftest import SOURCES, TARGETS, make_model


def test_error_rate_by_hand() -> None:
    # 4 links; 2 of the 3 sure ones found, 3 of the 4 are possible: 1 - (2 + 3) / (4 + 3)
    counts = Counts(links=4, sure=2, possible=3, gold=3)
    assert alignment_error_rate(counts) == pytest.approx(2 / 7)
    assert precision_recall(counts) == pytest.approx((3 / 4, 2 / 3))
    assert alignment_error_rate(Counts(0, 0, 0, 0)) == 1.0


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_gold_is_read_sure_and_possible(tmp_path: Path) -> None:
    path = write(tmp_path / "gold.wa", "0-0 1?1 1-2-P\n2p0 0-1\n")
    gold = read_gold(path, ["a b", "a b c"], ["x y z", "x y"])
    assert gold.sure == (frozenset({(0, 0)}), frozenset({(0, 1)}))
    assert gold.possible == (frozenset({(0, 0), (1, 1), (1, 2)}), frozenset({(2, 0), (0, 1)}))
    assert gold.turned().sure[1] == frozenset({(1, 0)})
    one = read_gold(write(path, "1-1\n\n"), ["a b", "a b c"], ["x y z", "x y"], first=1)
    assert one.sure == (frozenset({(0, 0)}), frozenset())


def test_a_link_to_no_word_is_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "gold.wa", "0-0\n0-0 5-1\n")
    with pytest.warns(UserWarning, match=r"gold\.wa:2: 5-1"):
        gold = read_gold(path, ["a", "b"], ["x", "y"])
    assert gold.sure[1] == frozenset({(0, 0)})


def test_wrong_gold_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gold\.wa:1: '0:0' is not a link"):
        read_gold(write(tmp_path / "gold.wa", "0:0\n"), ["a"], ["x"])
    with pytest.raises(DataError, match="has 1 lines"):
        read_gold(tmp_path / "gold.wa", ["a", "b"], ["x", "y"])


def by_hand(
    subwords: SubwordTokenizer, source: list[int], target: list[int], weights: np.ndarray, shift: int
) -> set[tuple[int, int]]:
    """Links of one head: the loop that the paper describes. weights (T, S)."""
    from_words, to_words = word_numbers(subwords, source), word_numbers(subwords, target)
    links = set()
    for piece, word in enumerate(to_words):
        row = weights[piece + shift, : len(source)]
        if row.max() > 0:
            links.add((from_words[int(row.argmax())], word))
    return links


@pytest.mark.parametrize("normalizer", ["softmax", "entmax15", "rela"])
def test_links_are_those_of_a_plain_loop(normalizer: str, subwords: SubwordTokenizer, store: TokenStore) -> None:
    model = make_model(subwords.size, normalizer)
    sure = tuple(frozenset((i, i) for i in range(len(line.split()))) for line in TARGETS)
    sure = tuple(
        frozenset(link for link in links if link[0] < len(line.split())) for links, line in zip(sure, SOURCES, strict=True)
    )
    gold = Gold(sure, tuple(links | {(0, 1)} for links in sure))
    scores = collect_alignment(model, TokenBatches(store, tokens=40, shuffle=False).epoch(0), subwords, gold)
    assert scores.sentences == len(store)
    pairs = [(source.tolist(), target.tolist()) for source, target in store]
    records = [record_attention(model, *pair) for pair in pairs]
    for (layer, head), both in scores.heads.items():
        for shift in (0, 1):
            expected = np.zeros(4)
            for number, (pair, record) in enumerate(zip(pairs, records, strict=True)):
                dense = record.head("cross", layer, head).dense()
                links = by_hand(subwords, *pair, dense, shift)
                expected += len(links), len(links & sure[number]), len(links & gold.possible[number]), len(sure[number])
            assert both[shift] == pytest.approx(tuple(expected))

    def links_of_mean(normalize: Callable[[np.ndarray], np.ndarray], heads: list[tuple[int, ...]]) -> int:
        found = 0
        for pair, record in zip(pairs, records, strict=True):
            weights = np.stack([record.head("cross", *at).dense().astype(np.float64) for at in heads])
            found += len(by_hand(subwords, *pair, normalize(weights).mean(0), 0))
        return found

    for layer in (0, 1):
        heads = [(layer, 0), (layer, 1)]
        assert scores.layers[layer][0].links == links_of_mean(shares, heads)
        assert scores.layers_raw[layer][0].links == links_of_mean(np.asarray, heads)
    assert scores.averaged[0].links == links_of_mean(shares, list(np.ndindex(2, 2)))
    assert scores.averaged_raw[0].links == links_of_mean(np.asarray, list(np.ndindex(2, 2)))
    if normalizer != "rela":
        assert scores.averaged_raw == scores.averaged  # rows sum to one


def shares(weights: np.ndarray) -> np.ndarray:
    return np.nan_to_num(weights / weights.sum(-1, keepdims=True).clip(1e-30))


def test_a_loud_head_decides_the_raw_mean_and_not_the_mean_of_normalized_weights() -> None:
    """As with ReLA: two heads agree on the first key, a third gives a hundred times as much to the second."""
    weights = np.array([[[1.0, 0.0]], [[0.8, 0.2]], [[0.0, 100.0]]])[None]
    rows = LayerRows.from_dense("cross", 0, weights)
    for values, best in ((rows.normalized, 0), (rows.weight, 1)):
        mixture = rows.mixed(values)
        assert strongest_keys(mixture.row, mixture.col, mixture.value, 1).tolist() == [best]


def test_too_short_a_gold_standard_is_refused(subwords: SubwordTokenizer, store: TokenStore) -> None:
    batches = TokenBatches(store, tokens=4096, shuffle=False).epoch(0)
    with pytest.raises(ArgumentError, match="gold standard has 1 lines"):
        collect_alignment(make_model(subwords.size), batches, subwords, Gold((frozenset(),), (frozenset(),)))


def test_the_end_of_the_source_is_never_linked(subwords: SubwordTokenizer) -> None:
    """Even if all weight lies there: then there is no link at all."""
    model = make_model(subwords.size, "rela")
    with torch.no_grad():
        for _, _, module in model.attention_layers():
            module.in_proj_weight.zero_()
    store = TokenStore.from_examples([(subwords.encode("a man"), subwords.encode("ein Mann"))])
    gold = Gold((frozenset({(0, 0)}),), (frozenset({(0, 0)}),))
    scores = collect_alignment(model, TokenBatches(store).epoch(0), subwords, gold)
    assert scores.heads[0, 0][0].links == 0  # scores of zero: ReLA gives no weight
    assert EOS not in store[0][0]


DATA = Path(os.environ.get("ENTFORMER_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "alignments"


@pytest.mark.skipif(not DATA.is_dir(), reason="no gold alignments here; ENTFORMER_DATA names the folder of data")
@pytest.mark.parametrize(("pair", "percent"), [("roen", 20.75), ("enfr", 4.07), ("jaen", 37.36)])
@pytest.mark.filterwarnings("error")  # no link may fall out of range
def test_error_rates_of_a_published_aligner(pair: str, percent: float) -> None:
    """The output of awesome-align (Dou and Neubig 2021), whose published rates are 20.7, 4.1 and 37.4."""
    lines = (DATA / f"{pair}.src-tgt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    sources, targets = zip(*(line.split("|||") for line in lines), strict=True)
    gold = read_gold(DATA / f"{pair}.gold", sources, targets, first=1)
    found = read_gold(DATA / f"{pair}.awesome-align.out", sources, targets)
    assert 100 * alignment_error_rate(link_counts(found.sure, gold)) == pytest.approx(percent, abs=0.005)


@pytest.mark.filterwarnings("error")
def test_an_ideographic_space_is_a_word_of_aligned_text(tmp_path: Path) -> None:
    path = write(tmp_path / "gold.wa", "0-0 1-1 2-2\n")
    gold = read_gold(path, ["a \u3000 b"], ["x  y z "])
    assert gold.sure[0] == frozenset({(0, 0), (1, 1), (2, 2)})


def test_links_of_any_origin_are_counted(tmp_path: Path) -> None:
    gold = read_gold(write(tmp_path / "gold.wa", "0-0 1?1\n2-0\n"), ["a b", "a b c"], ["x y", "x"])
    found = [frozenset({(0, 0), (1, 1), (0, 1)}), frozenset()]
    assert link_counts(found, gold) == Counts(links=3, sure=1, possible=2, gold=2)
    with pytest.raises(ArgumentError, match="links of 1 lines"):
        link_counts(found[:1], gold)
