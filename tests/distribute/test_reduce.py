"""One process for each strategy: several over the same devices collide."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.distribute import reduce

SCRIPT = """
import json
import tensorflow as tf
from tfx_tips.distribute import reduce

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])

@tf.function
def run():
    def one():
        number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "float32")
        value = tf.stack([number, 10.0 * number])
        infinite = tf.where(number == 2, float("inf"), value)
        with tf.GradientTape() as tape:
            tape.watch(value)
            summed = reduce.sum_over_group(value, 2)
            loss = tf.reduce_sum(summed * [1.0 + number, 0.0])
        largest = reduce.largest_over_local_replicas(value.shape[0])
        return (
            reduce.gather_from_replicas(value), summed, tape.gradient(loss, value),
            reduce.sum_over_group(infinite, 2), tf.constant([reduce.num_replicas(), largest]),
            reduce.group_index(2),
        )
    return strategy.run(one)

print(json.dumps([
    [each.numpy().tolist() for each in strategy.experimental_local_results(value)]
    for value in run()
]))
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [np.array(value) for value in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.multi_process
def test_every_replica_gets_the_values_of_all(found):
    for gathered in found[0]:
        np.testing.assert_array_equal(gathered, [[0, 0], [1, 10], [2, 20], [3, 30]])


@pytest.mark.multi_process
def test_neighbours_sum_and_gradients_come_from_the_whole_group(found):
    np.testing.assert_array_equal(found[1], [[1, 10], [1, 10], [5, 50], [5, 50]])
    np.testing.assert_array_equal(found[2], [[3, 0], [3, 0], [7, 0], [7, 0]])
    np.testing.assert_array_equal(found[5], [0, 0, 1, 1])


@pytest.mark.multi_process
def test_infinity_stays_in_its_group(found):
    np.testing.assert_array_equal(found[3], [[1, 10], [1, 10], [np.inf] * 2, [np.inf] * 2])


@pytest.mark.multi_process
def test_replicas_know_their_number_and_the_largest_value(found):
    np.testing.assert_array_equal(found[4], [[4, 2]] * 4)


def test_outside_of_a_strategy_there_is_one_replica():
    assert reduce.num_replicas() == 1
    assert tf.distribute.get_replica_context() is not None
    assert reduce.largest_over_local_replicas(3) == 3
