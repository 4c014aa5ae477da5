"""A model's state at one instant, and writing it while training goes on."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np


@dataclass(frozen=True)
class ModelSnapshot:
    """What a model and its optimizer held at one instant.

    On a CPU under TensorFlow the values share the variables' buffers, and TensorFlow copies
    a buffer when training writes to it next. Elsewhere they are copies on the host.

    Attributes:
        weights: Values in the order of `model.weights`.
        optimizer: Values in the order of `optimizer.variables`; empty without an optimizer.
        generators: State of the random generators, as `generator_states` gives it.
    """

    weights: list[Any]
    optimizer: list[Any]
    generators: list[dict[str, Any]]

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights and optimizer state."""
        values = (*self.weights, *self.optimizer)
        return sum(np.asarray(value).nbytes for value in values)


def take_snapshot(model: Any, *, with_optimizer: bool) -> ModelSnapshot:
    """Takes a snapshot of a built model.

    Every host must call it, since reading a synchronised variable may need all of them.
    """
    optimizer = model.optimizer if with_optimizer else None
    return ModelSnapshot(
        weights=[_held(variable) for variable in model.weights],
        optimizer=[] if optimizer is None else [_held(v) for v in optimizer.variables],
        generators=generator_states(model),
    )


def generator_states(model: Any) -> list[dict[str, Any]]:
    """Returns the state of a model's random generators as JSON values, in a fixed order.

    Keras' own files do not hold it.
    """
    return [
        {
            "path": variable.path,
            "dtype": variable.dtype,
            "value": keras.ops.convert_to_numpy(variable).tolist(),
        }
        for variable in _generator_variables(model)
    ]


def restore_generators(model: Any, states: list[dict[str, Any]]) -> None:
    """Gives a model's random generators the state that `generator_states` returned.

    Raises:
        ValueError: If the model has other generators than the one whose state it was.
    """
    variables = _generator_variables(model)
    shapes = [list(np.shape(state["value"])) for state in states]
    if shapes != [list(variable.shape) for variable in variables]:
        raise ValueError(
            f"The model must have the random generators of the one that was saved. Received: a "
            f"model with {len(variables)} of them, and the state of {len(states)}. "
            "Build the model as it was built for the run that is resumed."
        )
    for variable, state in zip(variables, states, strict=True):
        variable.assign(np.array(state["value"], state["dtype"]))


class SnapshotWriter:
    """Writes snapshots of a model with Keras' own saving, from any thread.

    Holds a second model of the same architecture, which takes a snapshot's values and is
    saved; what it writes equals `model.save` bit for bit, optimizer state included. Make it in
    the thread that trains. Memory: one copy of weights and optimizer state.

    Args:
        model: A built and compiled model.
        weights_only: Whether to write `.weights.h5`, without optimizer, in place of `.keras`.

    Raises:
        ValueError: If no second model can be made.
    """

    def __init__(self, model: Any, *, weights_only: bool) -> None:
        self._weights_only = weights_only
        with _global_generators_kept():
            self._twin = _twin_of(model, with_optimizer=not weights_only)

    def require_alike(self, model: Any) -> None:
        """Raises unless the second model has the variables of the first.

        To be called once the optimizer is built, which Keras does in the first step.

        Raises:
            ValueError: If it has not.
        """
        _require_alike(model.weights, self._twin.weights)
        if not self._weights_only:
            _require_alike(model.optimizer.variables, self._twin.optimizer.variables)

    def write(self, snapshot: ModelSnapshot, path: Path) -> None:
        """Writes a snapshot to a local path."""
        twin = self._twin
        for variable, value in zip(twin.weights, snapshot.weights, strict=True):
            variable.assign(value)
        if self._weights_only:
            twin.save_weights(path)
            return
        for variable, value in zip(twin.optimizer.variables, snapshot.optimizer, strict=True):
            variable.assign(value)
        twin.save(path)


def _held(variable: Any) -> Any:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        value = tf.convert_to_tensor(variable.value)
        if "CPU" in value.device:
            return value
    return np.array(keras.ops.convert_to_numpy(variable))


def _generator_variables(model: Any) -> list[Any]:
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def _twin_of(model: Any, *, with_optimizer: bool) -> Any:
    try:
        with _as_if_not_compiled(model):
            twin = keras.models.clone_model(model)
        if not twin.built:
            twin.build_from_config(model.get_build_config())
        if with_optimizer:
            # The losses and metrics are those that the file shall name, not what twins compute.
            compile_config = model.get_compile_config()
            optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
            twin.compile(optimizer=optimizer, loss="mse")
            optimizer.build(twin.trainable_variables)
            twin.get_compile_config = lambda: (
                compile_config | {"optimizer": keras.saving.serialize_keras_object(optimizer)}
            )
    except Exception as error:
        raise ValueError(
            f"No second {type(model).__name__} could be made from its configuration: {error}"
        ) from error
    return twin


def _require_alike(variables: list[Any], others: list[Any]) -> None:
    # An optimizer's names begin with those of layers, which are counted up for a second model.
    first = [(v.name.rsplit("_", 1)[-1], tuple(v.shape), v.dtype) for v in variables]
    second = [(v.name.rsplit("_", 1)[-1], tuple(v.shape), v.dtype) for v in others]
    if first != second:
        raise ValueError(
            f"A model made from this model's configuration has other variables: {len(second)} "
            f"in place of {len(first)}, or other names or shapes."
        )


@contextlib.contextmanager
def _as_if_not_compiled(model: Any) -> Iterator[None]:
    """Keeps `clone_model` from compiling, which fails for functions that are not registered."""
    compiled, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = compiled


@contextlib.contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Puts back the random state of Python and NumPy.

    Initializers without a seed draw one from Python's, those of a user's own may use NumPy's.
    Keras' global generator is out of reach; nothing of Keras' own draws from it here.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
