"""Input pipelines that start at any step."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_tips._core.validation import require_positive_int


def from_step(
    make_batch: Callable[[Any], Any], start_step: int = 0, *, compiled: bool = False
) -> tf.data.Dataset:
    """Makes an endless data set of the batches `start_step`, `start_step` + 1, and so on.

    As each batch is a function of its number alone, a resumed run gets the batches that the
    uninterrupted one would have got, at no cost for those before.

    Args:
        make_batch: Returns the batch of a number: `(x, y)` or any nested structure of arrays
            of fixed dtypes and ranks. Draw random numbers from the number, for example with
            `numpy.random.default_rng([seed, step])` or `tf.random.stateless_uniform`.
        start_step: The first number, from 0.
        compiled: Whether `make_batch` is made of TensorFlow operations and takes the number as
            a scalar int64 tensor; then it is compiled and called in parallel. Otherwise it gets
            a Python integer and runs in one thread.

    Raises:
        ValueError: If `start_step` is not an integer of at least 0.

    Example:
        def make_batch(step):
            rows = np.random.default_rng([7, step]).integers(len(x), size=32)
            return x[rows], y[rows]

        model.fit(from_step(make_batch, 0), steps_per_epoch=100)
    """
    require_positive_int("start_step", start_step, "Batches are counted from 0.", minimum=0)
    if compiled:
        numbers = tf.data.Dataset.counter(start_step, dtype=tf.int64)
        batches = numbers.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return batches.prefetch(tf.data.AUTOTUNE)

    def generate() -> Iterator[Any]:
        step = start_step
        while True:
            yield make_batch(step)
            step += 1

    signature = keras.tree.map_structure(_spec, make_batch(start_step))
    batches = tf.data.Dataset.from_generator(generate, output_signature=signature)
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return batches.apply(endless).prefetch(tf.data.AUTOTUNE)


def _spec(part: Any) -> tf.TensorSpec:
    # The first axis may differ from batch to batch, the others are taken to be fixed.
    array = np.asarray(part)
    shape = [None, *array.shape[1:]] if array.ndim else []
    return tf.TensorSpec(shape, array.dtype)
