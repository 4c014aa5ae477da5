"""The batches of an evaluation, from whatever `fit` takes as validation data."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_tips._core.validation import require_positive_int

# What Keras' own `evaluate` takes for arrays where no batch size is given.
_KERAS_BATCH_SIZE = 32


@dataclass(frozen=True)
class EvaluationSet:
    """Batches that are the same at every evaluation.

    Attributes:
        dataset: Yields `(x,)`, `(x, y)` or `(x, y, sample_weight)` with up to `batch_size`
            rows; where padded, `((x, y, ...), mask)` with exactly `batch_size` rows, the mask
            being 1.0 for a row of the set and 0.0 for a padded one, shape `(batch_size,)`.
        batch_size: Rows of a full batch, over all replicas.
        padded: Whether the last batch is filled up.
    """

    dataset: tf.data.Dataset
    batch_size: int
    padded: bool


def evaluation_set(
    data: Any,
    *,
    name: str,
    batch_size: int | None = None,
    steps: int | None = None,
    pad: bool = False,
    training_batch_size: int | None = None,
    input_ranks: list[int] | None = None,
    num_replicas: int = 1,
) -> EvaluationSet:
    """Turns validation data into an `EvaluationSet`.

    Args:
        data: `x`, `(x, y)` or `(x, y, sample_weight)` of arrays (nested as the model takes
            them), a `tf.data.Dataset` (batched, or unbatched with `batch_size`), or a
            `keras.utils.PyDataset`.
        name: The set's name, for errors.
        batch_size: Rows of a batch over all replicas. By default at least the training batch
            size: a data set that is batched smaller is rebatched, a larger batch is kept.
        steps: Batches of one evaluation; all by default.
        pad: Whether to fill up the last batch, by repeating its last row.
        training_batch_size: Rows of a training batch, or None where unknown.
        input_ranks: Ranks of the model's inputs, the batch axis included, or None where the
            model has no declared inputs.
        num_replicas: A padded batch is made a multiple of it, so that each replica's share
            has one static shape.

    Raises:
        ValueError: If the data is infinite and `steps` is None, is empty, is unbatched without
            `batch_size`, or is of a kind that cannot be read again at every evaluation.
    """
    for argument, value in (("batch_size", batch_size), ("steps", steps)):
        if value is not None:
            require_positive_int(argument, value, f"It counts for the set {name!r}.")
    if isinstance(data, keras.utils.PyDataset):
        dataset = _from_py_dataset(data, name=name, steps=steps)
        size = _resized(dataset, batch_size, training_batch_size, name)
    elif isinstance(data, tf.data.Dataset):
        if steps is None and data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise _infinite(name)
        dataset = data
        if _is_batched(dataset, batch_size, input_ranks, name):
            size = _resized(dataset, batch_size, training_batch_size, name)
        else:
            if batch_size is None:
                raise ValueError(
                    f"The validation data {name!r} must be batched, or `batch_size` be given. "
                    f"Received: a data set of single examples, {dataset.element_spec}, and "
                    "batch_size=None. Pass for example `batch_size=256`."
                )
            size = _Size(batch_size, rebatch=False)
            dataset = dataset.batch(batch_size)
    else:
        arrays = _arrays(data, name)
        size = _Size(batch_size or max(training_batch_size or 0, _KERAS_BATCH_SIZE), rebatch=False)
        dataset = _slices(arrays, size.rows)
    rows = size.rows
    if pad:
        padded_rows = math.ceil(rows / num_replicas) * num_replicas
        size = _Size(padded_rows, rebatch=size.rebatch or padded_rows != rows)
        rows = padded_rows
    if size.rebatch:
        dataset = dataset.rebatch(rows)
    if steps is not None:
        dataset = dataset.take(steps)
    dataset = dataset.map(_as_tuple) if not isinstance(dataset.element_spec, tuple) else dataset
    if pad:
        dataset = dataset.map(
            lambda *batch: _pad(batch, rows), num_parallel_calls=tf.data.AUTOTUNE
        ).prefetch(tf.data.AUTOTUNE)
    return EvaluationSet(dataset, rows, pad)


@dataclass(frozen=True)
class _Size:
    rows: int
    rebatch: bool


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    return (batch,)


def _infinite(name: str) -> ValueError:
    return ValueError(
        f"The validation data {name!r} is infinite, so an evaluation of it would never end. "
        "Received: steps=None. Pass `steps`, the number of batches of one evaluation, or take "
        "a finite part of the data set."
    )


def _empty(name: str) -> ValueError:
    return ValueError(
        f"The validation data {name!r} must hold at least one example. Received: an empty set. "
        "Check how it was filtered or split."
    )


def _rows_of(batch: Any) -> int:
    return int(np.shape(keras.tree.flatten(batch)[0])[0])


def _resized(
    dataset: tf.data.Dataset, batch_size: int | None, training_batch_size: int | None, name: str
) -> _Size:
    """Returns the batch to evaluate a batched data set with."""
    first = next(iter(dataset.take(1)), None)
    if first is None:
        raise _empty(name)
    rows = _rows_of(first)
    if batch_size is not None:
        return _Size(batch_size, rebatch=rows != batch_size)
    wanted = training_batch_size or 0
    # Batches whose other axes differ from one to the next cannot be put together.
    uniform = all(
        spec.shape.rank is not None and None not in spec.shape[1:].as_list()
        for spec in keras.tree.flatten(dataset.element_spec)
    )
    return _Size(wanted, rebatch=True) if rows < wanted and uniform else _Size(rows, rebatch=False)


def _is_batched(
    dataset: tf.data.Dataset, batch_size: int | None, input_ranks: list[int] | None, name: str
) -> bool:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    ranks = [spec.shape.rank for spec in keras.tree.flatten(x)]
    if input_ranks is not None and None not in ranks and len(ranks) == len(input_ranks):
        missing = sum(input_ranks) - sum(ranks)
        # A batch of scalars is accepted by a model whose input has shape (1,).
        scalars = missing == 1 and ranks == [1] and keras.tree.flatten(x)[0].shape[0] != 1
        return missing == 0 or scalars or missing != len(ranks)
    if batch_size is None:
        return True
    leading = {
        None if spec.shape.rank is None else (spec.shape.as_list() or ["scalar"])[0]
        for spec in keras.tree.flatten(dataset.element_spec)
    }
    if "scalar" in leading:
        return False
    if leading == {None}:
        return True
    raise ValueError(
        f"It cannot be told whether the validation data {name!r} is batched, as the model "
        f"declares no inputs. Received: batch_size={batch_size} and elements "
        f"{dataset.element_spec}. Batch it with `dataset.batch({batch_size})` and leave out "
        "`batch_size`."
    )


def _from_py_dataset(
    data: keras.utils.PyDataset, *, name: str, steps: int | None
) -> tf.data.Dataset:
    count = data.num_batches
    if count is None and steps is None:
        raise _infinite(name)
    if count == 0:
        raise _empty(name)
    batch_count = min(number for number in (count, steps) if number is not None)
    # The last batch may have fewer rows; other axes are static where both ends agree on them.
    ends = [_cast_floats(_tuple(data[index])) for index in (0, batch_count - 1)]

    def batches() -> Iterator[Any]:
        data.on_epoch_begin()
        for index in range(batch_count):
            yield _cast_floats(_tuple(data[index]))
        data.on_epoch_end()

    def spec(first: Any, last: Any) -> tf.TensorSpec:
        same = first.shape[1:] == last.shape[1:]
        axes = first.shape[1:] if same else [None] * (first.ndim - 1)
        return tf.TensorSpec([None, *axes], first.dtype)

    signature = keras.tree.map_structure(spec, *ends)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(batch_count)).prefetch(1)


def _tuple(batch: Any) -> tuple[Any, ...]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
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


def _arrays(data: Any, name: str) -> tuple[Any, ...]:
    if isinstance(data, Iterator) or (
        callable(getattr(data, "__iter__", None)) and not _is_array_like(data)
    ):
        raise ValueError(
            f"The validation data {name!r} must be arrays, a `tf.data.Dataset` or a "
            "`keras.utils.PyDataset`, which can be read again at every evaluation. "
            f"Received: an object of type {type(data).__name__}. Wrap a generator with "
            "`tf.data.Dataset.from_generator`."
        )
    arrays = _cast_floats(_tuple(data))
    lengths = {np.shape(array)[:1] for array in keras.tree.flatten(arrays)}
    if len(lengths) != 1 or lengths == {()}:
        shapes = [np.shape(array) for array in keras.tree.flatten(arrays)]
        raise ValueError(
            f"The arrays of the validation data {name!r} must have the same number of rows. "
            f"Received: shapes {shapes}. Pass `(x, y)` or `(x, y, sample_weight)`."
        )
    if lengths == {(0,)}:
        raise _empty(name)
    return arrays


def _is_array_like(data: Any) -> bool:
    return isinstance(data, (tuple, list, Mapping)) or hasattr(data, "__array__")


def _slices(arrays: tuple[Any, ...], rows: int) -> tf.data.Dataset:
    """Batches arrays by slicing, without a second copy of them in the data set."""
    tensors = keras.tree.map_structure(tf.convert_to_tensor, arrays)
    total = _rows_of(tensors)

    def batch(start: tf.Tensor) -> Any:
        return keras.tree.map_structure(lambda t: t[start : start + rows], tensors)

    starts = tf.data.Dataset.range(0, total, rows, output_type=tf.int64)
    return starts.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _pad(batch: tuple[Any, ...], rows: int) -> tuple[tuple[Any, ...], tf.Tensor]:
    """Fills a batch up to `rows` with copies of its last row, which is valid input."""
    given = tf.shape(keras.tree.flatten(batch)[0])[0]

    def fill(part: tf.Tensor) -> tf.Tensor:
        missing = tf.repeat(part[-1:], rows - given, axis=0)
        return tf.ensure_shape(tf.concat([part, missing], axis=0), [rows, *part.shape[1:]])

    mask = tf.cast(tf.range(rows) < given, keras.config.floatx())
    return keras.tree.map_structure(fill, batch), mask
