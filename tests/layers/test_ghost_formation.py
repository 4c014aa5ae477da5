import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.layers.ghost_formation import form_ghosts
from tfx_tips.layers.ghost_partition import EvenPartition, IndexedPartition

SPLIT = {"virtual_batch_size": 4, "single": False, "subsample": False}


def form(rows, mask=None, **options):
    inputs = keras.ops.convert_to_tensor(np.ones((rows, 2), "float32"))
    return form_ghosts(inputs, 1, mask, **(SPLIT | options)), inputs


def members(partition, rows):
    """Returns how much of each row's value ends up in each ghost."""
    found = []
    for row in range(rows):
        values = np.zeros((rows, 2), "float32")
        values[row] = 1
        found.append(np.array(partition.total(partition.sample(partition.arrange(values))))[:, 0])
    return np.array(found).T


def test_rows_that_divide_evenly_are_only_reshaped():
    partition, _ = form(8)
    assert isinstance(partition, EvenPartition)
    assert partition.counts == 4.0


def test_other_rows_fall_into_balanced_contiguous_ghosts():
    partition, _ = form(10)
    assert isinstance(partition, IndexedPartition)
    np.testing.assert_array_equal(np.ravel(partition.counts), [4, 3, 3])


@pytest.mark.parametrize("rows", [7, 8])
def test_a_group_takes_all_rows_for_one_ghost(rows):
    partition, _ = form(rows, single=True)
    assert partition.counts == rows


@pytest.mark.parametrize("rows", [2, 4, 5, 10])
def test_subsample_strides_evenly(rows):
    partition, inputs = form(rows, subsample=True)
    size = min(4, rows)
    kept = np.array(partition.restore(partition.where_sampled(partition.arrange(inputs))))

    assert partition.counts == size
    np.testing.assert_array_equal(np.flatnonzero(kept[:, 0]), np.arange(size) * rows // size)


@pytest.mark.parametrize("options", [{}, {"single": True}, {"subsample": True}])
@pytest.mark.parametrize("rows", [0, 1, 5, 12])
def test_rows_known_at_run_time_only_form_the_same_ghosts(options, rows):
    @tf.function(input_signature=[tf.TensorSpec((None, 2))])
    def dynamic(inputs):
        partition = form_ghosts(inputs, 1, None, **(SPLIT | options))
        values = partition.sample(partition.arrange(inputs))
        return partition.total(values), partition.counts + tf.zeros((1, 1))

    values = np.arange(2 * rows, dtype="float32").reshape(rows, 2)
    total, counts = dynamic(values)
    static = form_ghosts(tf.constant(values), 1, None, **(SPLIT | options))
    wanted = static.total(static.sample(static.arrange(values)))

    np.testing.assert_array_equal(total, wanted)
    np.testing.assert_array_equal(*np.broadcast_arrays(counts, static.counts + 0 * counts))


@pytest.mark.parametrize("options", [{}, {"subsample": True}, {"single": True}])
def test_masked_rows_do_not_count_for_forming_ghosts(options):
    mask = np.array([0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0], bool)
    present = int(mask.sum())
    masked, _ = form(15, mask, **options)
    alone, _ = form(present, **options)
    got = members(masked, 15)
    wanted = np.zeros_like(got)
    part = members(alone, present) if not options.get("subsample") else subsample_row(present)
    wanted[: len(part), mask] = part

    np.testing.assert_array_equal(got, wanted)


def subsample_row(rows):
    row = np.zeros((1, rows))
    row[0, np.arange(4) * rows // 4] = 1
    return row


def test_mask_that_leaves_nothing_leaves_no_count():
    for options in ({}, {"single": True}, {"subsample": True}):
        partition, _ = form(6, np.zeros(6, bool), **options)
        assert not np.any(partition.counts)
