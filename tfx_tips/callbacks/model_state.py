"""Putting back whatever an evaluation touches, bit for bit."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Restores metrics, random generators and all other non-trainable state on leaving.

    Also after an exception. Each replica gets its own values back. Holding a value shares
    its buffer with the variable, and giving it back shares it again: TensorFlow copies only
    what is written in between, so the cost is some 30 microseconds a variable and a look for
    variables that Keras does not know (10 ms for a model of 150 layers). Metrics that come
    into being inside are reset.

    What does not belong to the model is out of reach: Keras' global generator, from which a
    layer draws that names no `seed`, and the generators of Python and NumPy.
    """
    kept = [(piece, piece.read_value()) for piece in _pieces(model)]
    metrics_before = {id(metric) for metric in _single_metrics(model)}
    try:
        yield
    finally:
        for piece, value in kept:
            piece.assign(value, read_value=False)
        for metric in _single_metrics(model):
            if id(metric) not in metrics_before:
                metric.reset_state()


def build(model: Any, x_spec: Any) -> None:
    """Builds a model that is not built yet without running it.

    An evaluation would build it, too, but its layers' state would come into being and change
    at once, so that the values from before could not be put back.

    Args:
        model: A model; left as it is where Keras cannot call it on symbolic inputs.
        x_spec: `tf.TensorSpec`s of a batch of its inputs, nested as the model takes them.
    """
    if model.built or type(model).call is keras.Model.call:
        return
    try:
        inputs = keras.tree.map_structure(
            lambda spec: keras.KerasTensor((None, *spec.shape[1:]), spec.dtype.name), x_spec
        )
        with warnings.catch_warnings(), model.distribute_strategy.scope():
            warnings.simplefilter("ignore")
            model(inputs)
    except Exception:  # noqa: BLE001 - a `call` that works eagerly alone fails in its own way
        _log.debug("The model cannot be built symbolically.", exc_info=True)


def _pieces(model: Any) -> Iterator[Any]:
    """Yields the TensorFlow variables behind the state, one for each local replica."""
    strategy = model.distribute_strategy
    known = [*model.metrics_variables, *model.non_trainable_variables]
    seen: set[int] = set()
    for variable in [*(variable.value for variable in known), *_plain_variables(model)]:
        if id(variable) not in seen:
            seen.add(id(variable))
            yield from strategy.experimental_local_results(variable)


def _plain_variables(model: Any) -> Iterator[Any]:
    """Yields `tf.Variable`s that layers and metrics hold without Keras knowing them.

    The state of a `tf.random.Generator` is one of them.
    """
    for part in tf.train.TrackableView(model).descendants():
        if isinstance(part, tf.Variable):
            yield part
    for metric in _single_metrics(model):
        for value in vars(metric).values():
            if isinstance(value, tf.Variable):
                yield value


def _single_metrics(model: Any) -> Iterator[Any]:
    for metric in model.metrics:
        children = getattr(metric, "metrics", None)
        yield from [metric] if children is None else children
