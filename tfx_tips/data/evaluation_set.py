"""The batches of an evaluation, from whatever `fit` takes as validation data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfx_tips._core.validation import require_positive_int
from tfx_tips.data.evaluation_sources import (
    ArraySource,
    BatchSource,
    ExampleSource,
    PyDatasetSource,
    infinite,
)

# What Keras' own `evaluate` takes for arrays where no batch size is given.
_KERAS_BATCH_SIZE = 32

# A shape with the batch axis, None standing for an axis of any length.
_Shape = tuple[int | None, ...]


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
    input_shapes: Sequence[_Shape] | None = None,
    num_replicas: int = 1,
) -> EvaluationSet:
    """Turns validation data into an `EvaluationSet`.

    Args:
        data: `x`, `(x, y)` or `(x, y, sample_weight)` of arrays (nested as the model takes
            them), a `tf.data.Dataset` (batched, or unbatched with `batch_size`), or a
            `keras.utils.PyDataset`.
        name: The set's name, for errors.
        batch_size: Rows of a batch over all replicas. By default at least the training batch
            size: a data set that is batched smaller is rebatched, a larger batch is kept, and
            so are batches whose other axes differ from one to the next.
        steps: Batches of one evaluation, counted after rebatching; all by default.
        pad: Whether to fill up the last batch, by repeating its last row.
        training_batch_size: Rows of a training batch, or None where unknown.
        input_shapes: Shapes of the model's inputs, the batch axis included, or None where
            the model has no declared inputs.
        num_replicas: A padded batch is made a multiple of it, so that each replica's share
            has one static shape.

    Raises:
        ValueError: If the data is infinite and `steps` is None, is empty, is unbatched without
            `batch_size`, or is of a kind that cannot be read again at every evaluation.
    """
    for argument, value in (("batch_size", batch_size), ("steps", steps)):
        if value is not None:
            require_positive_int(argument, value, f"It counts for the set {name!r}.")
    source = _source(data, name=name, batch_size=batch_size, steps=steps, input_shapes=input_shapes)
    if batch_size is not None:
        rows = batch_size
    elif source.rows is None:
        rows = max(training_batch_size or 0, _KERAS_BATCH_SIZE)
    else:
        rows = max(source.rows, training_batch_size or 0) if source.joins else source.rows
    if pad:
        rows = math.ceil(rows / num_replicas) * num_replicas
    dataset = source.dataset(rows)
    may_rebatch = source.rows is not None and (source.joins or batch_size is not None)
    # Batches after the first may have another size, which a padded one must not exceed.
    if may_rebatch and (pad or rows != source.rows):
        dataset = dataset.rebatch(rows)
    if steps is not None:
        dataset = dataset.take(steps)
    if not isinstance(dataset.element_spec, tuple):
        dataset = dataset.map(lambda batch: (batch,))
    if pad:
        dataset = dataset.map(
            lambda *batch: _pad(batch, rows), num_parallel_calls=tf.data.AUTOTUNE
        ).prefetch(tf.data.AUTOTUNE)
    return EvaluationSet(dataset, rows, pad)


def _source(
    data: Any,
    *,
    name: str,
    batch_size: int | None,
    steps: int | None,
    input_shapes: Sequence[_Shape] | None,
) -> ArraySource | BatchSource | ExampleSource | PyDatasetSource:
    if isinstance(data, keras.utils.PyDataset):
        return PyDatasetSource(data, name=name, steps=steps)
    if not isinstance(data, tf.data.Dataset):
        return ArraySource(data, name=name)
    if steps is None and data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise infinite(name)
    if _is_batched(data.element_spec, batch_size, input_shapes, name):
        return BatchSource(data, name=name)
    if batch_size is None:
        raise ValueError(
            f"The validation data {name!r} must be batched, or `batch_size` be given. "
            f"Received: a data set of single examples, {data.element_spec}, and "
            "batch_size=None. Pass for example `batch_size=256`."
        )
    return ExampleSource(data)


def _is_batched(
    element_spec: Any, batch_size: int | None, input_shapes: Sequence[_Shape] | None, name: str
) -> bool:
    specs = keras.tree.flatten(element_spec)
    if any(spec.shape.rank is None for spec in specs):
        return True
    leading = {spec.shape[0] if spec.shape.rank else "scalar" for spec in specs}
    if "scalar" in leading or len(leading - {None}) > 1:
        return False
    x, _, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
    inputs = [spec.shape for spec in keras.tree.flatten(x)]
    if input_shapes is not None and len(inputs) == len(input_shapes):
        pairs = list(zip(inputs, input_shapes, strict=True))
        if any(given.rank >= len(declared) for given, declared in pairs):
            return True
        # Keras adds a last axis of size 1, so a batch of scalars fits an input of shape (1,).
        may_be_scalars = all(declared[-1] == 1 for _, declared in pairs)
        examples = all(given.is_compatible_with(declared[1:]) for given, declared in pairs)
        return may_be_scalars and (leading == {None} or not examples)
    if batch_size is None or leading == {None}:
        return True
    raise ValueError(
        f"It cannot be told whether the validation data {name!r} is batched, as the model "
        f"declares no inputs. Received: batch_size={batch_size} and elements {element_spec}. "
        f"Batch it with `dataset.batch({batch_size})` and leave out `batch_size`."
    )


def _pad(batch: tuple[Any, ...], rows: int) -> tuple[tuple[Any, ...], tf.Tensor]:
    """Fills a batch up to `rows` with copies of its last row, which is valid input."""
    given = tf.shape(keras.tree.flatten(batch)[0])[0]

    def fill() -> Any:
        def with_copies(part: tf.Tensor) -> tf.Tensor:
            missing = tf.repeat(part[-1:], rows - given, axis=0)
            return tf.ensure_shape(tf.concat([part, missing], axis=0), [rows, *part.shape[1:]])

        return keras.tree.map_structure(with_copies, batch)

    def keep() -> Any:
        return keras.tree.map_structure(
            lambda part: tf.ensure_shape(part, [rows, *part.shape[1:]]), batch
        )

    # Most batches are full, and copying them would cost more than a small model's step.
    filled = tf.cond(given < rows, fill, keep)
    return filled, tf.cast(tf.range(rows) < given, keras.config.floatx())
