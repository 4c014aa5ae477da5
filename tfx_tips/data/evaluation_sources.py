"""What validation data can come as: each source gives its batches again at every evaluation."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class ArraySource:
    """Arrays: `x`, `(x, y)` or `(x, y, sample_weight)`, cut into batches of any size.

    Raises:
        ValueError: If it is something that can be read only once, or arrays that are empty or
            of different lengths.
    """

    rows: int | None = None
    joins = False

    def __init__(self, data: Any, *, name: str) -> None:
        iterable = callable(getattr(data, "__iter__", None))
        if isinstance(data, Iterator) or (iterable and not _is_array_like(data)):
            raise ValueError(
                f"The validation data {name!r} must be arrays, a `tf.data.Dataset` or a "
                "`keras.utils.PyDataset`, which can be read again at every evaluation. "
                f"Received: an object of type {type(data).__name__}. Wrap a generator with "
                "`tf.data.Dataset.from_generator`."
            )
        self._arrays = _cast_floats(_tuple(data))
        lengths = {np.shape(array)[:1] for array in keras.tree.flatten(self._arrays)}
        if len(lengths) != 1 or lengths == {()}:
            shapes = [np.shape(array) for array in keras.tree.flatten(self._arrays)[:8]]
            raise ValueError(
                f"The arrays of the validation data {name!r} must have the same number of rows. "
                f"Received: shapes {shapes}. Pass `(x, y)` or `(x, y, sample_weight)`, each "
                "part an array or a structure of arrays as the model takes it."
            )
        if lengths == {(0,)}:
            raise empty(name)

    def dataset(self, rows: int) -> tf.data.Dataset:
        """Returns slices, without a second copy of the arrays in the data set."""
        with tf.device("CPU"):  # A set need not fit beside the model on an accelerator.
            tensors = keras.tree.map_structure(tf.convert_to_tensor, self._arrays)
        total = _rows_of(tensors)

        def batch(start: tf.Tensor) -> Any:
            return keras.tree.map_structure(lambda t: t[start : start + rows], tensors)

        starts = tf.data.Dataset.range(0, total, rows, output_type=tf.int64)
        return starts.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


class ExampleSource:
    """A `tf.data.Dataset` of single examples."""

    rows: int | None = None
    joins = False

    def __init__(self, data: tf.data.Dataset) -> None:
        self._data = data

    def dataset(self, rows: int) -> tf.data.Dataset:
        """Returns batches of `rows` examples."""
        return self._data.batch(rows)


class BatchSource:
    """A `tf.data.Dataset` of batches; `rows` is the size of its first one.

    `joins` says whether batches can be put together: their other axes are the same.

    Raises:
        ValueError: If it is empty.
    """

    def __init__(self, data: tf.data.Dataset, *, name: str) -> None:
        first = next(iter(data.take(1)), None)
        if first is None:
            raise empty(name)
        self._data = data
        self.rows: int | None = _rows_of(first)
        self.joins = all(
            spec.shape.rank is not None and None not in spec.shape[1:].as_list()
            for spec in keras.tree.flatten(data.element_spec)
        )

    def dataset(self, rows: int) -> tf.data.Dataset:
        """Returns the batches as they come."""
        return self._data


class PyDatasetSource:
    """A `keras.utils.PyDataset`, read in order and in this process.

    Args:
        data: The batches; the first and the last are read here, for their shapes.
        name: The set's name, for errors.
        steps: How many batches of the evaluation's size are wanted; all by default.

    Raises:
        ValueError: If it is empty, or infinite without `steps`.
    """

    def __init__(self, data: keras.utils.PyDataset, *, name: str, steps: int | None) -> None:
        count = data.num_batches
        if count is None and steps is None:
            raise infinite(name)
        if count == 0:
            raise empty(name)
        self._data, self._count, self._steps = data, count, steps
        self._first = self._batch(0)
        last = self._first if count is None else self._batch(count - 1)
        self.rows: int | None = _rows_of(self._first)
        if self.rows == 0:
            raise empty(name)
        # The last batch may have fewer rows; other axes are static where both ends agree.
        ends = map(keras.tree.flatten, (self._first, last))
        self.joins = all(a.shape[1:] == b.shape[1:] for a, b in zip(*ends, strict=True))

    def dataset(self, rows: int) -> tf.data.Dataset:
        """Returns the batches as they come; with `steps`, enough for batches of `rows` rows."""
        count = self._count
        if self._steps is not None:
            needed = math.ceil(self._steps * rows / (self.rows or 1))
            count = needed if count is None else min(count, needed)

        def batches() -> Iterator[Any]:
            self._data.on_epoch_begin()
            for index in range(count):
                yield self._batch(index)
            self._data.on_epoch_end()

        def spec(array: Any) -> tf.TensorSpec:
            axes = array.shape[1:] if self.joins else [None] * (array.ndim - 1)
            return tf.TensorSpec([None, *axes], array.dtype)

        signature = keras.tree.map_structure(spec, self._first)
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(1)

    def _batch(self, index: int) -> tuple[Any, ...]:
        return _cast_floats(_tuple(self._data[index]))


def infinite(name: str) -> ValueError:
    """Makes the error for a set without end."""
    return ValueError(
        f"The validation data {name!r} is infinite, so an evaluation of it would never end. "
        "Received: steps=None. Pass `steps`, the number of batches of one evaluation, or take "
        "a finite part of the data set."
    )


def empty(name: str) -> ValueError:
    """Makes the error for a set without examples."""
    return ValueError(
        f"The validation data {name!r} must hold at least one example. Received: an empty set. "
        "Check how it was filtered or split."
    )


def _rows_of(batch: Any) -> int:
    return int(np.shape(keras.tree.flatten(batch)[0])[0])


def _is_array_like(data: Any) -> bool:
    return isinstance(data, (tuple, list, Mapping)) or hasattr(data, "__array__")


def _tuple(batch: Any) -> tuple[Any, ...]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    # tf.data would stack a list's arrays into one.
    x, y, sample_weight = map(keras.tree.lists_to_tuples, (x, y, sample_weight))
    if sample_weight is not None:
        return (x, y, sample_weight)
    return (x,) if y is None else (x, y)


def _cast_floats(structure: Any) -> Any:
    """Gives floating-point arrays Keras' float type, as Keras does with arrays."""

    def cast(array: Any) -> Any:
        array = np.asarray(array)
        is_float = np.issubdtype(array.dtype, np.floating)
        return array.astype(keras.config.floatx(), copy=False) if is_float else array

    return keras.tree.map_structure(cast, structure)
