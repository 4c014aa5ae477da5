"""A test function that weights the losses of a model's single outputs by rows.

Keras averages the loss of each output over batches, weighted by a batch's static number of
rows. Where that is unknown while tracing, as for most data sets, a partial batch counts as
much as a full one: checked on Keras 3.10 to 3.15. The total loss is not concerned.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

_NOT_GIVEN = object()


def has_output_losses(model: Any) -> bool:
    """Returns whether the model tracks a loss for each output; known once it saw a batch."""
    return any(_output_losses(model))


def make_test_function(model: Any) -> Callable[[Any], Any]:
    """Returns a function like `model.test_function`, which itself stays as it is."""
    kept, step = model.test_function, model.test_step

    def test_step(data: Any) -> Any:
        rows = tf.shape(keras.tree.flatten(data)[0])[0]
        with _weighted_by(model, rows):
            return step(data)

    model.test_step = test_step
    try:
        model.make_test_function(force=True)
        return model.test_function
    finally:
        del model.test_step
        model.test_function = kept


def _output_losses(model: Any) -> Iterator[Any]:
    for metric in model.metrics[1:]:
        if type(metric) is keras.metrics.Mean:
            yield metric


@contextlib.contextmanager
def _weighted_by(model: Any, rows: tf.Tensor) -> Iterator[None]:
    changed = list(_output_losses(model))
    for metric in changed:
        metric.update_state = _weighted_update(metric.update_state, rows)
    try:
        yield
    finally:
        for metric in changed:
            del metric.update_state


def _weighted_update(update: Callable[..., Any], rows: tf.Tensor) -> Callable[..., Any]:
    def update_state(value: Any, sample_weight: Any = _NOT_GIVEN) -> Any:
        # Keras passes an unknown number of rows as None; a user's own mean gets no weight.
        if sample_weight is _NOT_GIVEN:
            return update(value)
        return update(value, sample_weight=rows if sample_weight is None else sample_weight)

    return update_state
