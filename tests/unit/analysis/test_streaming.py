"""Medians and samples of streams: as good as with everything in memory."""

import numpy as np
import pytest

from entformer.analysis.streaming import Reservoir, StreamingMeans, StreamingMedians


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_medians_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).random((count, 3)) ** 3
    medians = StreamingMedians(3)
    for part in np.array_split(values, 4):
        medians.add(part)
    assert medians.values() == pytest.approx(np.median(values, 0), abs=1e-3)


def test_medians_of_equal_values_are_exact() -> None:
    medians = StreamingMedians(3)
    medians.add(np.array([[0.0, 1.0, 0.3333], [0.0, 1.0, 0.3333]]))
    assert medians.values() == [0.0, 1.0, 0.3333]


def test_unknown_values_are_skipped() -> None:
    for statistic in (StreamingMedians(2), StreamingMeans(2)):
        statistic.add(np.array([[0.25, np.nan], [np.nan, np.nan]]))
        assert statistic.values() == [0.25, None]


def test_reservoir_is_a_uniform_sample() -> None:
    hits = np.zeros(20)
    for seed in range(2000):
        reservoir = Reservoir(5, seed)
        for number in range(20):
            reservoir.add(number)
        assert len(set(reservoir.ids)) == 5
        hits[reservoir.ids] += 1
    assert hits.min() > 430  # 500 expected, standard deviation 19
    assert hits.max() < 570
