"""One exact pass of a model over an evaluation set."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_tips.callbacks.output_losses import has_output_losses, make_test_function
from tfx_tips.callbacks.padded_evaluation import PaddedTestFunction
from tfx_tips.data.evaluation_set import EvaluationSet

# A float32 sum of n similar values is off by about sqrt(n / 3) * 3.4e-8 of itself (rounding
# errors as a random walk): 1.6e-7 after 64 batches, past 1e-6 after some thousands.
_BATCHES_IN_FLOAT32 = 64


class EvaluationLoop:
    """Evaluates a compiled model on one set, by its own `test_step`.

    Metrics' sums are drained into float64 on the host every 64 batches, so that the
    result does not depend on the number of batches. Metrics whose updates are not Keras' own
    are left to accumulate as they do. The caller puts the model's state back.

    Under a strategy all replicas, and all hosts, take part and see the same result.

    Args:
        model: A compiled model.
        evaluation_set: What to evaluate on.
    """

    def __init__(self, model: Any, evaluation_set: EvaluationSet) -> None:
        self._model = model
        self._set = evaluation_set
        self._batches = model.distribute_strategy.experimental_distribute_dataset(
            evaluation_set.dataset
        )
        self._padded = PaddedTestFunction(model) if evaluation_set.padded else None
        self._execute: Callable[[Any], Any] | None = self._padded
        batches = int(evaluation_set.dataset.cardinality())
        per_execution = 1 if evaluation_set.padded else model.steps_per_execution
        self._executions = math.ceil(batches / per_execution) if batches >= 0 else None
        self._executions_in_float32 = max(1, _BATCHES_IN_FLOAT32 // per_execution)

    def probe(self) -> dict[str, Any]:
        """Evaluates the first batch alone, which also checks the data and padding.

        Returns:
            The names and shapes that an evaluation will have, with the batch's values.

        Raises:
            ValueError: If the set is empty, or cannot be evaluated exactly with padding.
        """
        values = self._run(executions=1)
        if values is None:
            raise ValueError(
                "The validation data must hold at least one example. Received: an empty set. "
                "Check how it was filtered or split."
            )
        if self._padded is None and has_output_losses(self._model):
            self._execute = make_test_function(self._model)
        if self._padded is not None:
            self._padded.check(next(iter(self._set.dataset)))
        return values

    def run(self) -> dict[str, Any]:
        """Evaluates the whole set.

        Returns:
            Each metric as in `model.evaluate(..., return_dict=True)`: a float, or a NumPy array
            where the metric is not a scalar.
        """
        values = self._run(executions=self._executions)
        if values is None:
            raise ValueError(
                "The validation data held examples before and holds none now. "
                "Use a data set that can be read again at every evaluation."
            )
        return values

    def _run(self, *, executions: int | None) -> dict[str, Any] | None:
        model = self._model
        execute = self._execute
        if execute is None:
            model.make_test_function()
            execute = model.test_function
        model.reset_metrics()
        drained = _Float64Sums()
        iterator = iter(self._batches)
        logs, done = None, 0
        while done != executions:
            try:
                logs = execute(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            done += 1
            if done % self._executions_in_float32 == 0:
                drained.add_and_reset(model)
        if done == 0:
            return None
        drained.give_back(model)
        results = model.get_metrics_result()
        # As Keras' `evaluate`: a test step of the user's own may report what no metric holds.
        if logs is not None and set(results) != set(logs):
            results = logs
        return {name: _plain(value) for name, value in results.items()}


class _Float64Sums:
    """Sums of metrics' state that outgrew float32."""

    def __init__(self) -> None:
        self._sums: list[tuple[Any, np.ndarray[Any, Any]]] = []

    def add_and_reset(self, model: Any) -> None:
        metrics = list(_additive_metrics(model))
        variables = [variable for metric in metrics for variable in metric.variables]
        if not self._sums:
            self._sums = [(variable, np.zeros(variable.shape)) for variable in variables]
        for variable, total in self._sums:
            total += variable.numpy()
        for metric in metrics:
            metric.reset_state()

    def give_back(self, model: Any) -> None:
        if self._sums:
            self.add_and_reset(model)
            for variable, total in self._sums:
                variable.assign(total.astype(variable.dtype))


def _additive_metrics(model: Any) -> Iterator[Any]:
    """Yields the metrics whose state starts at zero and grows by addition: Keras' own."""
    for metric in model.metrics:
        for single in getattr(metric, "metrics", None) or [metric]:
            if all(map(_is_keras_method, (single.update_state, single.reset_state))):
                yield single


def _is_keras_method(method: Callable[..., Any]) -> bool:
    module = inspect.getmodule(method)
    return module is not None and module.__name__.startswith("keras.")


def _plain(value: Any) -> Any:
    array = keras.ops.convert_to_numpy(value)
    return float(array.item()) if array.size == 1 else np.array(array)
