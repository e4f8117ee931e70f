"""Every measure on a case computed by hand."""

import math

import numpy as np
import pytest

from entformer.analysis.density import (
    density,
    density_by_keys,
    density_histogram,
    entropy,
    null_rate,
    sentence_density,
    union_density,
)
from entformer.analysis.diversity import jensen_shannon
from entformer.analysis.interrogation import interrogation_weights
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES, measure_sentence
from entformer.analysis.merging import merging_scores
from entformer.analysis.positional import first_key_weight, last_key_weight, positional_confidence
from entformer.analysis.rows import LayerRows
from entformer.analysis.totals import LayerTotals
from entformer.analysis.words import Marks
from entformer.errors import ArgumentError

# One sentence, two heads, three queries, four keys.
TWO_HEADS = np.array(
    [
        [
            [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0]],
            [[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
        ]
    ]
)


def rows(weights: np.ndarray, **options: object) -> LayerRows:
    return LayerRows.from_dense("encoder", 0, weights, **options)  # type: ignore[arg-type]


def mark_words(*words: list[int]) -> Marks:
    return Marks(np.array(words), np.zeros((len(words), len(words[0])), np.bool_), np.full(len(words), -1))


def test_every_measure_has_a_name_of_its_own_and_a_text() -> None:
    for measures in (HEAD_MEASURES, LAYER_MEASURES):
        assert len({measure.name for measure in measures}) == len({measure.title for measure in measures}) == len(measures)
        assert all(measure.text.endswith((".", "better.")) for measure in measures)


def test_a_sentence_is_measured_by_the_same_records() -> None:
    first, second = measure_sentence(rows(TWO_HEADS), None).values()
    assert (first["density"], second["density"]) == pytest.approx((1.75 / 3, 1.0 / 3))
    assert (first["support"], second["support"]) == pytest.approx((7 / 3, 4 / 3))
    assert (first["effective_keys"], second["effective_keys"]) == pytest.approx((7 / 3, 4 / 3))
    assert (first["normalized_entropy"], second["normalized_entropy"]) == pytest.approx(((0.5 + 1.0) / 3, 0.5 / 3))
    assert first["null_rate"] == second["null_rate"] == 0.0
    assert not {"alpha", "aer", "merging", "interrogation"} & first.keys()  # not computed from weights, or need words


def test_density_counts_visible_keys_only() -> None:
    causal = np.tril(np.full((1, 1, 3, 3), 0.5))
    assert density(rows(causal, causal=True)).tolist() == [[[1.0, 1.0, 1.0]]]
    padded = np.zeros((2, 1, 2, 4))
    padded[0, 0, :, 0] = 1.0
    padded[1, 0, 0, :2] = 0.5
    padded[1, 0, 1, 3] = 1.0  # what padding attends to does not count
    found = density(rows(padded, query_lengths=np.array([2, 1]), key_lengths=np.array([4, 2])))
    assert found[0].tolist() == [[0.25, 0.25]]
    assert found[1, 0, 0] == 1.0
    assert math.isnan(found[1, 0, 1])


def test_the_histogram_counts_sentences_not_rows() -> None:
    per_sentence = sentence_density(density(rows(TWO_HEADS)))
    assert per_sentence == pytest.approx(np.array([[(0.5 + 1.0 + 0.25) / 3, (0.5 + 0.25 + 0.25) / 3]]))
    found = density_histogram(per_sentence)
    assert found.shape == (2, 20)
    assert [{i: n for i, n in enumerate(head) if n} for head in found.tolist()] == [{11: 1}, {6: 1}]


def test_density_by_the_number_of_visible_keys() -> None:
    weights = np.tril(np.ones((1, 2, 9, 9)))
    weights[:, 1] = np.eye(9)
    sums, counts = density_by_keys(rows(weights, causal=True))
    assert counts[:5].tolist() == [1, 2, 4, 2, 0]  # queries that see 1, 2 to 3, 4 to 7, 8 to 9 keys
    assert sums[0, :4].tolist() == counts[:4].tolist()
    assert sums[1, :4] == pytest.approx([1.0, 1 / 2 + 1 / 3, 1 / 4 + 1 / 5 + 1 / 6 + 1 / 7, 1 / 8 + 1 / 9])
    totals = LayerTotals(2)
    for length in (9, 2):
        totals.add(rows(weights[:, :, :length, :length], causal=True), np.array([length]), None)
    assert totals.density_by_keys(0) == (1.0, 1.0, 1.0, 1.0)
    assert totals.density_by_keys(1) == pytest.approx((1.0, (1 / 2 + 1 / 3 + 1 / 2) / 3, *(sums[1, 2:4] / counts[2:4])))


def test_the_histogram_puts_exact_shares_in_their_bins_and_skips_empty_sentences() -> None:
    shares = np.array([[0.0], [0.05], [0.15], [0.3], [0.95], [1.0], [np.nan]])  # 20 * 0.15 is 3.0000000000000004 or less
    assert {i: n for i, n in enumerate(density_histogram(shares)[0].tolist()) if n} == {0: 1, 1: 1, 3: 1, 6: 1, 19: 2}


def test_rows_that_do_not_sum_to_one_are_measured_by_normalized_weights() -> None:
    assert entropy(rows(7.0 * TWO_HEADS))[0, 0] == pytest.approx([math.log(2), math.log(4), 0.0])
    for found, expected in zip(jensen_shannon(rows(7.0 * TWO_HEADS)), jensen_shannon(rows(TWO_HEADS)), strict=True):
        assert found == pytest.approx(expected)


def test_a_row_of_zeros_is_null() -> None:
    weights = TWO_HEADS.copy()
    weights[0, 1, 2] = 0.0
    found = rows(weights)
    assert null_rate(found).tolist() == [[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
    assert density(found)[0, 1, 2] == 0.0
    assert math.isnan(entropy(found)[0, 1, 2])


def test_union_density_counts_a_key_once() -> None:
    assert union_density(rows(TWO_HEADS)).tolist() == [[0.5, 1.0, 0.5]]


def test_jensen_shannon_by_hand() -> None:
    found = jensen_shannon(rows(TWO_HEADS))
    mixed = [0.625, 0.125, 0.125, 0.125]
    middle = -sum(p * math.log(p) for p in mixed) - (math.log(4) + 0.0) / 2
    assert found.by_keys[0] == pytest.approx([0.0, middle / math.log(4), math.log(2) / math.log(4)])
    assert found.by_heads[0] == pytest.approx([0.0, middle / math.log(2), 1.0])


def test_by_heads_the_divergence_of_disjoint_heads_does_not_depend_on_the_number_of_keys() -> None:
    for keys in (2, 5, 40):
        weights = np.zeros((1, 2, 1, keys))
        weights[0, 0, 0, 0] = weights[0, 1, 0, 1] = 1.0
        found = jensen_shannon(rows(weights))
        assert found.by_heads.item() == pytest.approx(1.0)
        assert found.by_keys.item() == pytest.approx(math.log(2) / math.log(keys))
    alone = jensen_shannon(rows(np.full((1, 1, 1, 4), 0.25)))
    assert alone.by_keys.item() == 0.0
    assert math.isnan(alone.by_heads.item())  # one head has nobody to differ from


def test_jensen_shannon_of_null_rows() -> None:
    weights = np.zeros((1, 2, 1, 3))
    weights[0, 0, 0, 0] = 2.0  # the other head gives nothing
    assert jensen_shannon(rows(weights)).by_keys.item() == pytest.approx(math.log(2) / math.log(4))
    assert jensen_shannon(rows(weights)).by_heads.item() == pytest.approx(1.0)


def test_jensen_shannon_needs_a_choice() -> None:
    assert np.isnan(jensen_shannon(rows(np.ones((1, 2, 1, 1))))).all()


def test_a_large_table_is_added_up_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(1).random((2, 3, 4, 5)) * (np.random.default_rng(2).random((2, 3, 4, 5)) > 0.5)
    small = jensen_shannon(rows(weights)).by_keys
    monkeypatch.setattr("entformer.analysis.rows.DENSE_CELLS", 0)
    assert jensen_shannon(rows(weights)).by_keys == pytest.approx(small, nan_ok=True)


def test_positional_confidence_is_the_mean_weight_of_a_neighbor() -> None:
    weights = np.array([[[[0.2, 0.8, 0.0], [0.9, 0.1, 0.0], [0.0, 0.5, 0.5]]]])
    assert positional_confidence(rows(weights), -1).item() == pytest.approx((0.9 + 0.5) / 2)
    assert positional_confidence(rows(weights), 0).item() == pytest.approx((0.2 + 0.1 + 0.5) / 3)
    assert positional_confidence(rows(weights), 1).item() == pytest.approx((0.8 + 0.0) / 2)


def test_a_query_without_a_choice_proves_nothing() -> None:
    causal = np.array([[[[1.0, 0.0], [0.75, 0.25]]]])
    assert positional_confidence(rows(causal, causal=True), 0).item() == pytest.approx(0.25)
    assert math.isnan(positional_confidence(rows(np.ones((1, 1, 1, 1))), 0).item())
    assert math.isnan(positional_confidence(rows(causal, causal=True), 1).item())


def test_neighbors_in_padding_do_not_count() -> None:
    weights = np.zeros((1, 1, 3, 3))
    weights[0, 0, 0, 1] = weights[0, 0, 1, 0] = weights[0, 0, 2, 1] = 1.0
    short = rows(weights, query_lengths=np.array([2]), key_lengths=np.array([2]))
    assert positional_confidence(short, 1).item() == 1.0
    assert positional_confidence(short, -1).item() == 1.0


def test_first_and_last_key() -> None:
    weights = np.array([[[[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]]])
    assert first_key_weight(rows(weights)).item() == pytest.approx(0.75)
    assert last_key_weight(rows(weights)).item() == pytest.approx(0.25)


def test_merging_by_hand() -> None:
    # Tokens: "blo" "wing" | "up" | end. The paper: the most that any piece gives to the rest of its word.
    weights = np.array([[[[0.1, 0.6, 0.3, 0.0], [0.9, 0.1, 0.0, 0.0], [0.5, 0.2, 0.3, 0.0], [0.0, 0.0, 0.0, 1.0]]]])
    found = merging_scores(rows(weights), mark_words([0, 0, 1, -1]))
    assert found.sizes.tolist() == [2, 1]
    assert found.rest[0] == pytest.approx([0.9, 0.3])
    assert found.with_self[0] == pytest.approx([1.0, 0.3])


def test_merging_keeps_sentences_and_heads_apart() -> None:
    weights = np.zeros((2, 2, 2, 2))
    weights[:, 0] = np.eye(2)
    weights[:, 1] = np.eye(2)[::-1]
    found = merging_scores(rows(weights), mark_words([0, 0], [0, 1]))
    assert found.sizes.tolist() == [2, 1, 1]
    assert found.rest.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    assert found.with_self.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]


def test_interrogation_by_hand() -> None:
    # "what is it ?": the query "what" gives 0.7 to the mark, the others do not count; the second sentence has no mark.
    weights = np.zeros((2, 1, 4, 4))
    weights[:, 0] = [[0.3, 0.0, 0.0, 0.7], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    asking = np.array([[True, False, False, False]] * 2)
    assert interrogation_weights(rows(weights), asking, np.array([3, -1])) == pytest.approx(np.array([[0.7]]))


@pytest.mark.parametrize("bad", [-0.5, float("nan")])
def test_negative_weights_and_nan_are_refused(bad: float) -> None:
    weights = TWO_HEADS.copy()
    weights[0, 0, 0, 0] = bad
    with pytest.raises(ArgumentError, match="negative"):
        rows(weights)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="dimensions"):
        rows(TWO_HEADS[0])
    with pytest.raises(ArgumentError, match="rows"):
        LayerRows.from_support("encoder", 0, (np.zeros(3), np.zeros(0), np.zeros(0)), 2, 2, 2, np.array([2]), np.array([2]))
