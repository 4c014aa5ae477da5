import keras
import numpy as np
import pytest

from tfx_tips.layers.ghost_formation import form_ghosts
from tfx_tips.layers.ghost_statistics import (
    GhostStatistics,
    at_least_one,
    ghost_statistics,
    merge,
)


def measure(x, v=8, mask=None):
    inputs = keras.ops.convert_to_tensor(x)
    partition = form_ghosts(inputs, 1, mask, virtual_batch_size=v, single=False, subsample=False)
    return ghost_statistics(partition.arrange(inputs), partition)[0]


def mean(statistics):
    return np.array(statistics.center, "float64") + np.array(statistics.residual, "float64")


@pytest.mark.parametrize("offset", [0, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("rows", [64, 61])
def test_variance_is_right_where_the_mean_is_large(rng, offset, rows):
    x = (offset + 0.05 * rng.normal(size=(rows, 3))).astype("float32")
    whole = merge(measure(x, v=rows))
    ghosts = merge(measure(x))
    exact = x.astype("float64")

    for found in (whole, ghosts):
        np.testing.assert_allclose(found.variance, exact.var(0), rtol=1e-3)
        np.testing.assert_allclose(mean(found), exact.mean(0), rtol=1e-7, atol=1e-7)


def test_merging_needs_the_distance_of_the_means():
    parts = GhostStatistics(
        np.array([[6.0], [2.0]], "float32"),
        np.array([[2.5], [102.0]], "float32"),
        np.zeros((2, 1), "float32"),
        np.array([[17.5 / 6], [4.0]], "float32"),
    )

    assert float(mean(merge(parts))[0]) == 27.375
    np.testing.assert_allclose(merge(parts).variance, [1859.484375], rtol=1e-6)
    within = merge(parts, between=False)
    np.testing.assert_allclose(within.variance, [(17.5 + 8) / 8], rtol=1e-6)


def test_equal_counts_merge_as_unequal_ones_do(rng):
    x = rng.normal(size=(32, 3)).astype("float32")
    statistics = measure(x)
    assert isinstance(statistics.count, float)
    counts = np.full((4, 1), statistics.count, "float32")
    for between in (True, False):
        short = merge(statistics, between=between)
        long = merge(statistics._replace(count=counts), between=between)
        np.testing.assert_allclose(mean(short), mean(long), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(short.variance, long.variance, rtol=1e-6)
        np.testing.assert_array_equal(long.count, 32)


def test_ghosts_without_a_count_have_no_weight():
    statistics = GhostStatistics(
        np.array([[0.0], [4.0]], "float32"),
        np.array([[0.0], [1e5]], "float32"),
        np.zeros((2, 1), "float32"),
        np.array([[0.0], [2.0]], "float32"),
    )
    merged = merge(statistics)

    assert [float(np.ravel(each)[0]) for each in merged] == [4, 1e5, 0, 2]


def test_nothing_merges_to_nothing():
    nothing = GhostStatistics(*np.zeros((4, 2, 3), "float32"))
    assert not np.any(merge(nothing))


def test_variance_of_equal_values_is_zero_and_never_below():
    for value in (0.1, 12345.678, 1e10):
        statistics = measure(np.full((24, 2), value, "float32"))
        assert not np.any(statistics.variance)


def test_counts_can_divide():
    assert at_least_one(0.0) == 1.0
    assert at_least_one(3.0) == 3.0
    np.testing.assert_array_equal(at_least_one(np.array([0.0, 2.0])), [1, 2])
