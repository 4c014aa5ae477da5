"""Weights of rows against leaving those rows out."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks.row_weights import as_rank, loss_weights, metric_weights

KEPT = np.array([1, 1, 0, 1, 0], "float32")


def kept_only(array):
    return array[KEPT > 0]


@pytest.mark.parametrize(
    ("shape", "expected"), [((), (5,)), ((5,), (5,)), ((5, 3), (5, 1)), ((5, 3, 2), (5, 1, 1))]
)
def test_weights_get_the_rank_and_the_type_of_what_they_weigh(shape, expected):
    weights = as_rank(tf.constant(KEPT), np.zeros(shape, "float64"))

    assert tuple(weights.shape) == expected
    assert weights.dtype == "float64"
    np.testing.assert_array_equal(np.ravel(weights), KEPT)


def probabilities(rng, *shape):
    values = rng.uniform(0.05, 1, (5, *shape)).astype("float32")
    return values / values.sum(-1, keepdims=True) if shape else values


def one_hot(rng, *shape):
    return np.eye(shape[-1], dtype="float32")[rng.integers(0, shape[-1], (5, *shape[:-1]))]


CASES = {
    "accuracy of pixels": (keras.metrics.CategoricalAccuracy, one_hot, (4, 3)),
    "binary": (keras.metrics.BinaryAccuracy, one_hot, (3,)),
    "AUC": (keras.metrics.AUC, one_hot, (2,)),
    "precision of pixels": (keras.metrics.Precision, one_hot, (4, 3)),
    "one-hot IoU of pixels": (lambda: keras.metrics.OneHotMeanIoU(num_classes=3), one_hot, (4, 3)),
    "error": (keras.metrics.MeanSquaredError, probabilities, (3,)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_metric_with_rows_weighing_nothing_equals_one_that_never_saw_them(case, rng):
    make, labels, shape = CASES[case]
    y_true, y_pred = labels(rng, *shape), probabilities(rng, *shape)
    weighted, oracle = make(), make()
    weights = metric_weights(weighted, *map(tf.constant, (KEPT, y_true, y_pred)))

    weighted.update_state(y_true, y_pred, sample_weight=weights)
    oracle.update_state(kept_only(y_true), kept_only(y_pred))

    assert float(weighted.result()) == pytest.approx(float(oracle.result()), rel=1e-6)


def test_intersection_over_union_of_class_maps_leaves_the_rows_out(rng):
    y_true, y_pred = (rng.integers(0, 3, (5, 4)).astype("float32") for _ in range(2))
    weighted, oracle = (keras.metrics.MeanIoU(num_classes=3) for _ in range(2))
    weights = metric_weights(weighted, *map(tf.constant, (KEPT, y_true, y_pred)))

    weighted.update_state(y_true, y_pred, sample_weight=weights)
    oracle.update_state(kept_only(y_true), kept_only(y_pred))

    assert float(weighted.result()) == pytest.approx(float(oracle.result()), rel=1e-6)


def compiled(loss, shape, *, outputs=1):
    inputs = keras.Input((2,))
    heads = []
    for number in range(outputs):
        head = keras.layers.Dense(int(np.prod(shape)), name=f"head_{number}")(inputs)
        heads.append(keras.layers.Reshape(shape, name=f"out_{number}")(head))
    model = keras.Model(inputs, heads if outputs > 1 else heads[0])
    model.compile(loss=loss)
    return model


def per_row(y_true, y_pred):
    """A loss of the user's own with one value a row, whatever the rank."""
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=tuple(range(1, y_true.ndim)))


@pytest.mark.parametrize(
    ("loss", "shape", "expected"),
    [
        ("mse", (3,), (5,)),
        ("mse", (4, 3), (5, 1)),
        (keras.losses.MeanSquaredError(), (4, 3), (5, 1)),
        (per_row, (4, 3), (5,)),
    ],
)
def test_weights_of_a_loss_have_the_rank_of_its_values(loss, shape, expected, rng):
    model = compiled(loss, shape)
    y, y_pred = (tf.constant(probabilities(rng, *shape)) for _ in range(2))

    weights = loss_weights(model, y, y_pred, tf.constant(KEPT))

    assert tuple(weights.shape) == expected


def test_each_output_gets_weights_for_its_own_loss(rng):
    model = compiled({"out_0": "mse", "out_1": per_row}, (4, 3), outputs=2)
    y, y_pred = ([tf.constant(probabilities(rng, 4, 3)) for _ in range(2)] for _ in range(2))

    weights = loss_weights(model, y, y_pred, tf.constant(KEPT))

    assert [tuple(each.shape) for each in weights] == [(5, 1), (5,)]
