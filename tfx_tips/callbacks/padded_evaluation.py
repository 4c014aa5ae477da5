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

from tfx_tips.callbacks.row_weights import as_rank, loss_weights, metric_weights

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
        made = [metric.built for metric in model.metrics if hasattr(metric, "built")]
        self._has_metrics = bool(made) and all(made)

    def __call__(self, iterator: Any) -> None:
        """Takes one batch and adds it to the model's metrics.

        Raises:
            StopIteration: If there is no further batch.
        """
        batch, mask = next(iterator)
        if not self._has_metrics:
            self._make_metrics(batch)
            self._has_metrics = True
        self._on_batch(batch, mask)

    def check(self, batch: Any) -> None:
        """Raises if rows whose mask is zero change any loss or metric.

        Runs five batches of the same shape.

        Args:
            batch: The first element of the padded set; the metrics' state is overwritten.

        Raises:
            ValueError: If they do, naming the metric.
        """
        data, mask = batch
        rows, half = mask.shape[0], mask.shape[0] // 2
        if half == 0:  # A batch of one row is never padded.
            return

        def pairs(part: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
            """Puts one row of `second` after each row of the first half."""
            both = tf.stack([part[:half], second], axis=1)
            both = tf.reshape(both, (2 * half, *part.shape[1:]))
            return tf.concat([both, part[2 * half :]], axis=0)

        twice = keras.tree.map_structure(lambda part: pairs(part, part[:half]), data)
        other = keras.tree.map_structure(
            lambda part: pairs(part, tf.repeat(part[:1], half, axis=0)), data
        )
        number = tf.range(rows)
        # By turns, so that every replica gets rows of both kinds.
        firsts = tf.cast((number % 2 == 0) & (number < 2 * half), mask.dtype)
        # The same examples three times: in two batches, with two contents of the rows that
        # weigh nothing, and in one. Only the last one's sums are rounded otherwise.
        values = self._values((twice, firsts), times=2)
        other_values = self._values((other, firsts), times=2)
        _require_equal(values, other_values, relative=1e-5, absolute=1e-12)
        together = self._values((twice, tf.cast(number < 2 * half, mask.dtype)), times=1)
        _require_equal(values, together, relative=1e-3, absolute=1e-6)

    def _make_metrics(self, batch: Any) -> None:
        """Has Keras make its metrics, as in the first step of all, for `_step` to weigh."""
        model = self._model

        def on_batch(batch: Any) -> None:
            model.distribute_strategy.run(model.test_step, args=(batch,))

        if model.run_eagerly:
            on_batch(batch)
            model.reset_metrics()
        else:
            tf.function(on_batch, autograph=False).get_concrete_function(batch)

    def _values(self, element: Any, *, times: int) -> dict[str, Any]:
        """Returns losses and metrics over one element, taken several times."""
        self._model.reset_metrics()
        repeated = tf.data.Dataset.from_tensors(element).repeat(times)
        batches = iter(self._model.distribute_strategy.experimental_distribute_dataset(repeated))
        for _ in range(times):
            self(batches)
        results = self._model.get_metrics_result()
        return {name: keras.ops.convert_to_numpy(value) for name, value in results.items()}

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
            weights = loss_weights(model, y, y_pred, mask)
        else:
            weights = keras.tree.map_structure(lambda w: w * as_rank(mask, w), sample_weight)
        with _weighted_by(
            model, mask, scale=scale, valid=valid, has_weights=sample_weight is not None
        ):
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


def _require_equal(
    values: dict[str, Any], others: dict[str, Any], *, relative: float, absolute: float
) -> None:
    for name, value in values.items():
        other = others[name]
        close = abs(value - other) <= relative * abs(value) + absolute
        if not (close | (value == other) | ((value != value) & (other != other))).all():
            raise ValueError(
                f"{name!r} depends on rows whose weight is zero, so it cannot be evaluated "
                "exactly with padding. Likely causes: a metric that does not heed "
                "`sample_weight` or divides by the number of all rows; a loss, `add_loss` or "
                "activity regularizer that reduces over the batch; a layer that mixes rows. "
                "Received: pad_partial_batch=True. Change that, or pass "
                "`pad_partial_batch=False`."
            )


@contextlib.contextmanager
def _weighted_by(
    model: Any, mask: tf.Tensor, *, scale: tf.Tensor, valid: tf.Tensor, has_weights: bool
) -> Iterator[None]:
    """Gives the mask to metrics that get no weights, and valid rows to trackers of losses."""
    updates: dict[int, tuple[Any, Callable[..., Any]]] = {}
    for metric in model.metrics[1:]:
        children = getattr(metric, "metrics", None)
        for single in children or []:
            updates[id(single)] = single, _masked_update(single, mask, has_weights)
        if children is None and isinstance(metric, keras.metrics.Mean):
            updates[id(metric)] = metric, _rescaled_update(metric, scale, valid)
    for metric, update in updates.values():
        metric.update_state = update
    try:
        yield
    finally:
        for metric, _ in updates.values():
            del metric.update_state


def _masked_update(metric: Any, mask: tf.Tensor, has_weights: bool) -> Callable[..., Any]:
    update = metric.update_state
    parameters = inspect.signature(update).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"The metric {metric.name!r} takes no sample weights, so padded rows cannot be kept "
            "out of it. Received: pad_partial_batch=True. Pass `pad_partial_batch=False`, or "
            "give its `update_state` a `sample_weight`."
        )

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None and has_weights:
            return update(y_true, y_pred, sample_weight=sample_weight)
        weights = metric_weights(metric, mask, y_true, y_pred)
        try:
            return update(y_true, y_pred, sample_weight=weights)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"The metric {metric.name!r} failed when it was given a weight for each row, of "
                f"shape {tuple(weights.shape)}, to keep padded rows out: {error}. Received: "
                "pad_partial_batch=True. Pass `pad_partial_batch=False`, or a metric whose "
                "`update_state` takes such a `sample_weight`."
            ) from error

    return update_state


def _rescaled_update(metric: Any, scale: tf.Tensor, valid: tf.Tensor) -> Callable[..., Any]:
    update = metric.update_state

    def update_state(value: Any, sample_weight: Any = None) -> Any:
        return update(value * tf.cast(scale, value.dtype), sample_weight=valid)

    return update_state


class _MaskProbe(keras.losses.Loss):
    """A loss that returns what its `call` made, unless Keras found a mask on the outputs."""

    def __init__(self) -> None:
        super().__init__(name="mask_probe", reduction="none")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.values = keras.ops.mean(y_pred, axis=-1)
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
