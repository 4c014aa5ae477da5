import keras
import numpy as np
import pytest

from tfx_tips.layers.ghost_partition import (
    EvenPartition,
    IndexedPartition,
    number_of_ghosts,
    shape_of,
)


@pytest.mark.parametrize("v", [*range(2, 129)])
def test_ghosts_of_any_batch_are_near_the_wanted_size_and_none_is_alone(v):
    for b in range(1, 601):
        n = number_of_ghosts(b, v)
        sizes = np.bincount(np.arange(b) * n // b, minlength=n)
        assert sizes.sum() == b
        assert sizes.max() - sizes.min() <= 1
        assert sizes.min() >= min(b, 2)
        if b >= v:
            assert np.floor(0.75 * v) <= sizes.min()
            assert sizes.max() <= np.ceil(1.5 * v)


def test_number_of_ghosts_is_the_nearest_and_at_least_one():
    found = [number_of_ghosts(b, 64) for b in (0, 1, 63, 95, 96, 128, 160)]

    assert found == [1, 1, 1, 1, 2, 2, 3]
    assert number_of_ghosts(3, 2) == 1


def test_number_of_ghosts_of_a_tensor_is_the_same():
    for b in (0, 1, 9, 65, 100):
        assert int(number_of_ghosts(keras.ops.convert_to_tensor(b), 4)) == number_of_ghosts(b, 4)


@pytest.mark.parametrize(
    ("shape", "axis"), [((6, 3), 1), ((6, 2, 5, 3), 3), ((6, 3, 2, 5), 1), ((6, 4, 3), 2)]
)
@pytest.mark.parametrize("ghosts", [1, 2, 3])
def test_even_and_indexed_partitions_sum_and_spread_alike(rng, shape, axis, ghosts):
    x = rng.normal(size=shape).astype("float32")
    ids = np.arange(6, dtype="int32") * ghosts // 6
    other = tuple(d for d in range(1, len(shape)) if d != axis)
    ghosts_rows = [x[ids == g] for g in range(ghosts)]
    wanted = np.stack([rows.sum(axis=(0, *other)) for rows in ghosts_rows])
    per_row = wanted[ids]
    spread = np.expand_dims(per_row, other) + np.zeros_like(x)

    for partition in (
        EvenPartition(keras.ops.convert_to_tensor(x), axis, ghosts),
        IndexedPartition(keras.ops.convert_to_tensor(x), axis, ids, ghosts),
    ):
        total = partition.total(partition.sample(partition.arrange(x)))
        np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5)
        arranged = partition.arrange(np.zeros_like(x)) + partition.spread(total)
        np.testing.assert_allclose(partition.restore(arranged), spread, rtol=1e-5, atol=1e-5)
        counts = np.broadcast_to(partition.counts, wanted.shape)
        np.testing.assert_array_equal(counts, x.size / ghosts / shape[axis])


@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 3)])
def test_sampled_rows_alone_make_the_totals(rng, shape):
    x = rng.normal(size=shape).astype("float32")
    partition = EvenPartition(keras.ops.convert_to_tensor(x), len(shape) - 1, 1, np.array([0, 4]))

    total = partition.total(partition.sample(partition.arrange(x)))
    kept = partition.restore(partition.where_sampled(partition.arrange(x)))

    np.testing.assert_allclose(total[0], x[[0, 4]].reshape(-1, 3).sum(0), rtol=1e-5)
    np.testing.assert_array_equal(kept[4], x[4])
    assert not np.any(np.delete(kept, [0, 4], axis=0))
    assert partition.counts == 2 * x[0].size / 3


def test_what_does_not_count_is_left_out_even_if_it_is_not_a_number():
    x = np.array([[1.0], [np.nan], [3.0]], "float32")
    counted = np.array([[True], [False], [True]])
    partition = IndexedPartition(
        keras.ops.convert_to_tensor(x), 1, np.zeros(3, "int32"), 1, counted
    )

    assert float(partition.total(partition.sample(x))[0, 0]) == 4
    assert float(partition.counts[0, 0]) == 2
    assert partition.may_be_empty


def test_static_shape_adds_nothing_to_the_graph():
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder("float32", (4, 2))
        before = len(graph.get_operations())
        assert shape_of(x) == (4, 2)
        assert len(graph.get_operations()) == before
