"""How many examples of each rare class a model gets right, in whole numbers."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        ValueError: If `rare_below` is not an integer of at least 1, or a name comes twice.
    """

    def __init__(self, rare_below: bool | int, names: Sequence[str] | None) -> None:
        self._rare_below = _RARE_BELOW if rare_below is True else rare_below
        require_positive_int("class_counts", self._rare_below, "True stands for 100.")
        self._names = None if names is None else [str(name) for name in names]
        if self._names is not None and len(set(self._names)) != len(self._names):
            raise ValueError(
                "`class_names` must name each class differently. "
                f"Received: class_names={self._names}. Number the equal ones."
            )
        self._sets: dict[str, _Batches] = {}
        self._count_batch: Callable[..., Any] | None = None
        self._counts: dict[str, dict[str, tuple[int, int]]] = {}

    def prepare(self, model: Any, sets: Mapping[str, EvaluationSet]) -> None:
        """Counts one batch of each set, which shows whether model and labels fit.

        Args:
            model: A compiled classifier.
            sets: The evaluation sets by name.

        Raises:
            ValueError: If the model has several outputs, labels are missing or stand for
                several classes at once, or `class_names` does not fit the classes.
        """
        self._count_batch = _batch_counter(model)
        self._sets = {name: _Batches(model, one) for name, one in sets.items()}
        for one in sets.values():
            for element in one.dataset.take(1):
                _require_one_class_each(model, element[0] if one.padded else element)
        for batches in self._sets.values():
            self._named(self._tally(batches, limit=1)[1])

    def count(self, set_name: str) -> dict[str, float]:
        """Makes one forward pass over a set.

        Labels are integers, `(rows,)` or `(rows, 1)`, or one-hot rows; an output of size 1 is
        a probability of class 1, or a logit where the loss says so. The largest output wins,
        the first of equal ones. A label outside the classes is left out.

        Returns:
            `<set>_correct/<class>` and `<set>_count/<class>` of each rare class.
        """
        correct, total = self._tally(self._sets[set_name])
        self._counts[set_name] = {
            name: (int(c), int(t))
            for name, c, t in zip(self._named(total), correct, total, strict=True)
            if t < self._rare_below
        }
        metrics: dict[str, float] = {}
        for name, (c, t) in self._counts[set_name].items():
            metrics[f"{set_name}_correct/{name}"] = float(c)
            metrics[f"{set_name}_count/{name}"] = float(t)
        return metrics

    def _tally(self, batches: "_Batches", limit: int | None = None) -> Any:
        assert self._count_batch is not None
        counts = [
            self._count_batch(*element).numpy().astype("int64")
            for element in itertools.islice(batches, limit)
        ]
        return np.sum(counts, axis=0)

    def _named(self, total: Any) -> list[str]:
        names = self._names or [str(index) for index in range(len(total))]
        if len(names) != len(total):
            raise ValueError(
                "`class_names` must name each class once. Received: "
                f"{len(names)} names for {len(total)} classes. Name all, or leave it out."
            )
        return names

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


class _Batches:
    """Batches and their masks, None where the set is not padded."""

    def __init__(self, model: Any, evaluation_set: EvaluationSet) -> None:
        strategy = model.distribute_strategy
        self._batches = strategy.experimental_distribute_dataset(evaluation_set.dataset)
        self._padded = evaluation_set.padded

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for element in self._batches:
            yield element if self._padded else (element, None)


def _batch_counter(model: Any) -> Callable[..., Any]:
    """Returns a function that counts a batch: shape `(2, classes)`, correct ones and all."""
    strategy = model.distribute_strategy
    takes_training = "training" in inspect.signature(model.call).parameters

    def on_replica(batch: Any, mask: Any) -> tf.Tensor:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        outputs = model(x, training=False) if takes_training else model(x)
        if keras.tree.is_nested(outputs) or keras.tree.is_nested(y) or y is None:
            raise ValueError(
                "`class_counts` needs a classifier with one output and labels. Received: "
                f"{len(keras.tree.flatten(outputs))} outputs and "
                f"{0 if y is None else len(keras.tree.flatten(y))} labels. "
                "Leave `class_counts` out."
            )
        labels, predicted, classes = _labels(y, outputs, _is_logit(model))
        seen = tf.one_hot(labels, classes, dtype=tf.int32)
        if mask is not None:
            weight = tf.cast(tf.reshape(mask, [-1] + [1] * (seen.shape.rank - 1)), tf.int32)
            seen *= weight
        axes = list(range(seen.shape.rank - 1))
        hits = seen * tf.cast(labels == predicted, tf.int32)[..., tf.newaxis]
        return tf.stack([tf.reduce_sum(hits, axes), tf.reduce_sum(seen, axes)])

    def on_batch(batch: Any, mask: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(on_replica, args=(batch, mask)), axis=None)

    if model.run_eagerly:
        return on_batch
    return tf.function(on_batch, reduce_retracing=True, autograph=False)


def _require_one_class_each(model: Any, batch: Any) -> None:
    outputs = getattr(model, "outputs", None)
    _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    if not outputs or y is None or keras.tree.is_nested(y):
        return
    one_hot = y.shape.rank == len(outputs[0].shape) and y.shape[-1] > 1
    most = np.sum(np.asarray(y, "float64"), axis=-1).max() if one_hot else 1
    if most > 1.001:  # Smoothed labels sum to 1.
        raise ValueError(
            "`class_counts` needs labels of one class for each example. Received: labels that "
            f"sum to {most:g} over the classes. Leave `class_counts` out, and add metrics such "
            "as `keras.metrics.Recall(class_id=0)`."
        )


def _is_logit(model: Any) -> bool:
    losses = keras.tree.flatten(model.loss)
    return any(bool(getattr(loss, "from_logits", False)) for loss in losses)


def _labels(y: Any, outputs: Any, is_logit: bool) -> tuple[tf.Tensor, tf.Tensor, int]:
    if outputs.shape.rank == 1:
        outputs = outputs[:, tf.newaxis]
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
