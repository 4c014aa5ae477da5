"""Evaluating batches of one static shape, where padded rows weigh nothing.

Zero sample weights alone do not do that: a loss is divided by the number of rows with the
padded ones, its tracker counts them, and unweighted metrics see them. Here every loss is
rescaled by rows / valid rows, every tracker counts valid rows, and every metric gets the
mask as its weight. All of it has static shapes, for TPU and XLA.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

# Loss reductions whose value over a batch is the mean over its rows.
_MEANS = ("sum_over_batch_size", "mean")
# A model's methods that decide what a test step computes.
_METHODS = ("test_step", "compute_loss", "compute_metrics", "metrics")


class PaddedTestFunction:
    """A compiled test step over `((x, y, ...), mask)`, called with an iterator.

    Args:
        model: A compiled model whose test step, losses and metrics decompose over rows.

    Raises:
        ValueError: If it can be seen that they do not.
    """

    def __init__(self, model: Any) -> None:
        _require_default_steps(model)
        _require_mean_losses(model)
        self._model = model
        strategy = model.distribute_strategy

        def on_batch(batch: Any, mask: Any) -> None:
            strategy.run(self._step, args=(batch, mask))

        if not model.run_eagerly:
            on_batch = tf.function(
                on_batch, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False
            )
        self._on_batch = on_batch

    def __call__(self, iterator: Any) -> None:
        """Takes one batch and adds it to the model's metrics.

        Raises:
            StopIteration: If there is no further batch.
        """
        self._on_batch(*next(iterator))

    def check(self, batch: Any) -> None:
        """Raises if the rows that the mask leaves out change any loss or metric.

        Args:
            batch: The first element of the padded set; the metrics' state is overwritten.

        Raises:
            ValueError: If they do, naming the metric.
        """
        data, mask = batch
        rows = mask.shape[0]
        half = tf.cast(tf.range(rows) < (rows + 1) // 2, mask.dtype)

        def same_row(part: tf.Tensor) -> tf.Tensor:
            kept = part[: (rows + 1) // 2]
            return tf.concat([kept, tf.repeat(part[:1], rows // 2, axis=0)], axis=0)

        results = []
        for variant in (data, keras.tree.map_structure(same_row, data)):
            self._model.reset_metrics()
            one = tf.data.Dataset.from_tensors((variant, half))
            strategy = self._model.distribute_strategy
            self(iter(strategy.experimental_distribute_dataset(one)))
            values = self._model.get_metrics_result()
            results.append({k: keras.ops.convert_to_numpy(v) for k, v in values.items()})
        first, second = results
        for name, value in first.items():
            # Rows of another content may take another path through a reduction.
            close = abs(value - second[name]) <= 1e-5 * abs(value) + 1e-12
            if not (close | ((value != value) & (second[name] != second[name]))).all():
                raise ValueError(
                    f"{name!r} depends on rows whose weight is zero, so it cannot be evaluated "
                    "exactly with padding. Received: pad_partial_batch=True. "
                    "Pass `pad_partial_batch=False`, or a metric or loss that is a mean over "
                    "rows and heeds `sample_weight`."
                )

    def _step(self, batch: Any, mask: tf.Tensor) -> None:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        takes_training = "training" in inspect.signature(model.call).parameters
        y_pred = model(x, training=False) if takes_training else model(x)
        _require_no_mask(y_pred)
        rows = tf.cast(tf.shape(mask)[0], mask.dtype)
        valid = tf.reduce_sum(mask)
        scale = tf.math.divide_no_nan(rows, valid)
        if sample_weight is None:
            weights = _loss_weights(model, y, y_pred, mask)
        else:
            weights = keras.tree.map_structure(lambda w: w * _as_rank(mask, w), sample_weight)
        with _weighted_by(model, mask, scale=scale, valid=valid):
            loss = model.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=weights, training=False
            )
            # What `add_loss` and regularizers contribute does not depend on the mask.
            # Keras divides all of it by the number of replicas.
            loss *= tf.cast(model.distribute_strategy.num_replicas_in_sync, loss.dtype)
            added = sum(tf.cast(tf.reduce_sum(part), loss.dtype) for part in model.losses)
            scale = tf.cast(scale, loss.dtype)
            model.metrics[0].update_state((loss - added) * scale + added, sample_weight=valid)
            model.compute_metrics(x, y, y_pred, sample_weight=weights)


@contextlib.contextmanager
def _weighted_by(
    model: Any, mask: tf.Tensor, *, scale: tf.Tensor, valid: tf.Tensor
) -> Iterator[None]:
    """Gives the mask to metrics that get no weights, and valid rows to trackers of losses."""
    others = model.metrics[1:]
    changed = []

    def replace(metric: Any, update: Callable[..., Any]) -> None:
        metric.update_state = update
        changed.append(metric)

    for metric in others:
        children = getattr(metric, "metrics", None)
        for single in children or []:
            replace(single, _masked_update(single, mask))
        if children is None and isinstance(metric, keras.metrics.Mean):
            replace(metric, _rescaled_update(metric, scale, valid))
    try:
        yield
    finally:
        for metric in changed:
            del metric.update_state


def _masked_update(metric: Any, mask: tf.Tensor) -> Callable[..., Any]:
    update = metric.update_state
    if "sample_weight" not in inspect.signature(update).parameters:
        raise ValueError(
            f"The metric {metric.name!r} takes no sample weights, so padded rows cannot be kept "
            "out of it. Received: pad_partial_batch=True. Pass `pad_partial_batch=False`, or "
            "give its `update_state` a `sample_weight`."
        )

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is None:
            sample_weight = mask
            # These flatten labels and weights alike.
            if isinstance(metric, (keras.metrics.OneHotIoU, keras.metrics.OneHotMeanIoU)):
                sample_weight = tf.broadcast_to(
                    _as_rank(mask, y_true[..., 0]), tf.shape(y_true)[:-1]
                )
            elif isinstance(metric, keras.metrics.IoU):
                sample_weight = tf.broadcast_to(_as_rank(mask, y_true), tf.shape(y_true))
        return update(y_true, y_pred, sample_weight=sample_weight)

    return update_state


def _rescaled_update(metric: Any, scale: tf.Tensor, valid: tf.Tensor) -> Callable[..., Any]:
    update = metric.update_state

    def update_state(value: Any, sample_weight: Any = None) -> Any:
        return update(value * tf.cast(scale, value.dtype), sample_weight=valid)

    return update_state


def _as_rank(mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns the mask with further axes of size 1, and the dtype, of `like`."""
    like = tf.convert_to_tensor(like)
    shape = [-1] + [1] * (max(like.shape.rank, 1) - 1)
    return tf.cast(tf.reshape(mask, shape), like.dtype)


def _loss_weights(model: Any, y: Any, y_pred: Any, mask: tf.Tensor) -> Any:
    """Returns the mask in the shape in which each output's loss takes sample weights.

    A loss of rank r needs weights of rank r; only the loss itself tells its rank.
    """
    outputs, targets = keras.tree.flatten(y_pred), keras.tree.flatten(y)
    losses = keras.tree.flatten(model.loss)
    if len(losses) != len(outputs):
        losses = losses * len(outputs) if len(losses) == 1 else [None] * len(outputs)
        targets = targets if len(targets) == len(outputs) else [None] * len(outputs)
    weights = []
    for loss, target, output in zip(losses, targets, outputs, strict=True):
        values = None
        if callable(loss) and target is not None and not keras.tree.is_nested(y_pred):
            compute = loss.call if isinstance(loss, keras.losses.Loss) else loss
            values = compute(tf.cast(target, output.dtype), output)
        # Keras' own losses reduce the last axis.
        weights.append(_as_rank(mask, output[..., 0] if values is None else values))
    weights = [tf.cast(weight, mask.dtype) for weight in weights]
    return keras.tree.pack_sequence_as(y_pred, weights)


class _MaskProbe(keras.losses.Loss):
    """A loss that returns what its `call` made, unless Keras found a mask on the outputs."""

    def __init__(self) -> None:
        super().__init__(name="mask_probe", reduction="none")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.values = keras.ops.ones_like(y_pred)
        return self.values


def _require_no_mask(y_pred: Any) -> None:
    for output in keras.tree.flatten(y_pred):
        probe = _MaskProbe()
        if probe(output, output) is not probe.values:
            raise ValueError(
                "A loss over masked outputs is divided by the number of unmasked elements of "
                "its batch, so it cannot be evaluated exactly with padding. Received: a model "
                "whose outputs carry a mask, and pad_partial_batch=True. "
                "Pass `pad_partial_batch=False`."
            )


def _require_default_steps(model: Any) -> None:
    for name in _METHODS:
        if getattr(type(model), name, None) is not getattr(keras.Model, name):
            raise ValueError(
                f"`pad_partial_batch=True` needs Keras' own `{name}`, to know how rows enter "
                f"losses and metrics. Received: a {type(model).__name__} that overrides it. "
                "Pass `pad_partial_batch=False`."
            )


def _require_mean_losses(model: Any) -> None:
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", _MEANS[0])
        if reduction not in _MEANS:
            raise ValueError(
                f"The loss {getattr(loss, 'name', loss)!r} with reduction={reduction!r} is not a "
                "mean over rows, so it cannot be evaluated exactly with padding. Received: "
                "pad_partial_batch=True. Pass `pad_partial_batch=False`, or use "
                "`reduction='sum_over_batch_size'`."
            )
