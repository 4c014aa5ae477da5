"""A weight for each row, in the shape in which a loss or a metric takes sample weights."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

# These align weights with all axes of the predictions but the last.
_CONFUSION_METRICS = (
    keras.metrics.AUC,
    keras.metrics.FalseNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.Precision,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.Recall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
    keras.metrics.TrueNegatives,
    keras.metrics.TruePositives,
)
_ONE_HOT_METRICS = (keras.metrics.OneHotIoU, keras.metrics.OneHotMeanIoU)


def as_rank(weights: tf.Tensor, like: Any) -> tf.Tensor:
    """Returns weights of shape `(rows,)` with further axes of size 1, and the dtype, of `like`."""
    like = tf.convert_to_tensor(like)
    shape = [-1] + [1] * (max(like.shape.rank, 1) - 1)
    return tf.cast(tf.reshape(weights, shape), like.dtype)


def metric_weights(metric: Any, weights: tf.Tensor, y_true: Any, y_pred: Any) -> tf.Tensor:
    """Returns weights of shape `(rows,)` as `metric` takes them for these arguments."""
    if isinstance(metric, _ONE_HOT_METRICS):
        y_true = y_true[..., 0]
    elif isinstance(metric, _CONFUSION_METRICS):
        return tf.cast(as_rank(weights, y_pred[..., 0]), weights.dtype)
    elif not isinstance(metric, keras.metrics.IoU):
        return weights
    # These flatten labels and weights alike, into counts of their dtype.
    weights = tf.cast(weights, metric.dtype)
    shaped = tf.reshape(weights, [-1] + [1] * (y_true.shape.rank - 1))
    return tf.broadcast_to(shaped, tf.shape(y_true))


def loss_weights(model: Any, y: Any, y_pred: Any, weights: tf.Tensor) -> Any:
    """Returns weights of shape `(rows,)` as each output's loss takes them, nested like `y_pred`.

    Values of rank r need weights of rank r; only a loss itself tells the rank of its values.
    """
    names = getattr(model, "output_names", None)
    outputs = keras.tree.flatten(y_pred)
    losses, targets = (_by_output(part, y_pred, names) for part in (model.loss, y))
    shaped = [
        tf.cast(as_rank(weights, _values(loss, target, output)), weights.dtype)
        for loss, target, output in zip(losses, targets, outputs, strict=True)
    ]
    return keras.tree.pack_sequence_as(y_pred, shaped)


def _by_output(part: Any, y_pred: Any, names: Any) -> list[Any]:
    """Returns the piece of losses or targets for each output; None where it cannot be told."""
    count = len(keras.tree.flatten(y_pred))
    if not keras.tree.is_nested(part):
        return [part] * count
    pieces = keras.tree.flatten(part)
    if isinstance(part, Mapping):
        if isinstance(y_pred, Mapping):
            # The order in which Keras flattens.
            names = list(y_pred) if isinstance(y_pred, OrderedDict) else sorted(y_pred)
        pieces = [part.get(name) for name in names or ()]
    is_flat = len(pieces) == count and not any(map(keras.tree.is_nested, pieces))
    return pieces if is_flat else [None] * count


def _values(loss: Any, target: Any, output: tf.Tensor) -> tf.Tensor:
    """Returns something of the rank of a loss's values."""
    if not callable(loss) or target is None:
        # Keras' own losses, which are named by strings, reduce the last axis.
        return output[..., 0]
    target, output = (tf.cast(part, keras.config.floatx()) for part in (target, output))
    if isinstance(loss, keras.losses.Loss):
        return loss.call(target, output)
    # As Keras does before it calls a function.
    if target.shape.rank == output.shape.rank + 1 and target.shape[-1] == 1:
        output, target = _same_rank(output, target)
    elif output.shape.rank == target.shape.rank + 1 and output.shape[-1] == 1:
        target, output = _same_rank(target, output)
    return loss(target, output)


def _same_rank(lower: tf.Tensor, higher: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if lower.shape.rank == 1:
        return lower[:, tf.newaxis], higher
    return lower, higher[..., 0]
