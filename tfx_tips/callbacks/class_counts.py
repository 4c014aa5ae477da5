"""How many examples of each rare class a model gets right, in whole numbers."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_tips._core.validation import require_positive_int
from tfx_tips.data.evaluation_set import EvaluationSet

_RARE_BELOW = 100


class ClassCounts:
    """Counts examples and correct predictions of a classifier's rare classes.

    Args:
        rare_below: A class with fewer examples is reported; True for 100.
        names: Names of the classes in the order of the outputs; their numbers by default.

    Raises:
        ValueError: If `rare_below` is not an integer of at least 1.
    """

    def __init__(self, rare_below: bool | int, names: Sequence[str] | None) -> None:
        self._rare_below = _RARE_BELOW if rare_below is True else rare_below
        require_positive_int("class_counts", self._rare_below, "True stands for 100.")
        self._names = None if names is None else list(names)
        self._counts: dict[str, dict[str, tuple[int, int]]] = {}

    def count(self, model: Any, evaluation_set: EvaluationSet, set_name: str) -> dict[str, float]:
        """Makes one forward pass over a set.

        Labels are integers, `(rows,)` or `(rows, 1)`, or one-hot rows; an output of size 1 is
        a probability of class 1, or a logit where the loss says so. The largest output wins,
        the first of equal ones. A label outside the classes is left out.

        Returns:
            `<set>_correct/<class>` and `<set>_count/<class>` of each rare class.

        Raises:
            ValueError: If the model has several outputs, or `class_names` does not fit it.
        """
        correct, total = _tally(model, evaluation_set)
        names = self._names or [str(index) for index in range(len(total))]
        if len(names) != len(total):
            raise ValueError(
                "`class_names` must name each class once. Received: "
                f"{len(names)} names for {len(total)} classes."
            )
        self._counts[set_name] = {
            name: (int(c), int(t))
            for name, c, t in zip(names, correct, total, strict=True)
            if t < self._rare_below
        }
        metrics: dict[str, float] = {}
        for name, (c, t) in self._counts[set_name].items():
            metrics[f"{set_name}_correct/{name}"] = float(c)
            metrics[f"{set_name}_count/{name}"] = float(t)
        return metrics

    def report(self) -> str:
        """Says of the last counts how much recall a single example stands for."""
        lines = []
        for set_name, classes in self._counts.items():
            for name, (correct, total) in classes.items():
                worth = (
                    f"recall {correct / total:.1%}, one example is {1 / total:.1%}"
                    if total
                    else "no examples, so nothing is known of it"
                )
                lines.append(f"{set_name}, class {name}: {correct} of {total} correct, {worth}")
        return "\n".join(lines) or f"No class has fewer than {self._rare_below} examples."


def _tally(model: Any, evaluation_set: EvaluationSet) -> Any:
    strategy = model.distribute_strategy
    takes_training = "training" in inspect.signature(model.call).parameters

    def on_replica(batch: Any, mask: Any) -> tf.Tensor:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        outputs = model(x, training=False) if takes_training else model(x)
        if keras.tree.is_nested(outputs) or keras.tree.is_nested(y) or y is None:
            raise ValueError(
                "`class_counts` needs a classifier with one output and labels. Received: "
                f"outputs {outputs} and labels {y}. Leave `class_counts` out."
            )
        labels, predicted, classes = _labels(y, outputs, _is_logit(model))
        seen = tf.one_hot(labels, classes, dtype=tf.int32)
        if mask is not None:
            weight = tf.cast(tf.reshape(mask, [-1] + [1] * (seen.shape.rank - 1)), tf.int32)
            seen *= weight
        axes = list(range(seen.shape.rank - 1))
        hits = seen * tf.cast(labels == predicted, tf.int32)[..., tf.newaxis]
        return tf.stack([tf.reduce_sum(hits, axes), tf.reduce_sum(seen, axes)])

    @tf.function(reduce_retracing=True, autograph=False)
    def on_batch(batch: Any, mask: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(on_replica, args=(batch, mask)), axis=None)

    counts: Any = 0
    for element in strategy.experimental_distribute_dataset(evaluation_set.dataset):
        batch, mask = element if evaluation_set.padded else (element, None)
        counts += tf.cast(on_batch(batch, mask), tf.int64)
    return np.asarray(counts)


def _is_logit(model: Any) -> bool:
    losses = keras.tree.flatten(model.loss)
    return any(bool(getattr(loss, "from_logits", False)) for loss in losses)


def _labels(y: Any, outputs: Any, is_logit: bool) -> tuple[tf.Tensor, tf.Tensor, int]:
    classes = outputs.shape[-1]
    if classes == 1:
        threshold = 0.0 if is_logit else 0.5
        predicted = tf.cast(outputs[..., 0] > threshold, tf.int64)
        y = y[..., 0] if y.shape.rank == outputs.shape.rank else y
        return tf.cast(tf.round(tf.cast(y, tf.float32)), tf.int64), predicted, 2
    predicted = tf.argmax(outputs, axis=-1)
    if y.shape.rank == outputs.shape.rank:
        y = y[..., 0] if y.shape[-1] == 1 else tf.argmax(y, axis=-1)
    return tf.cast(y, tf.int64), predicted, classes
