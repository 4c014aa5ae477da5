"""What the compile configuration tells about the metrics that will be logged."""

import functools

import keras
import pytest
from keras import layers

from tfx_tips.callbacks.declared_metrics import declared_direction, declared_names, is_declared


def f1(y_true, y_pred):
    return keras.ops.mean(y_pred)


class Accuracy(keras.metrics.Mean):
    """A user's own, with a name that Keras has too."""


def model(**settings):
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "softmax")])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **settings})
    return model


def two_outputs(**settings):
    inputs = layers.Input((4,))
    outputs = {name: layers.Dense(1, name=name)(inputs) for name in ("a", "b_c")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", **settings)
    return model


# Functions, as a metric object makes variables, and no test does before it runs.
@pytest.mark.parametrize(
    ("metric", "name", "direction"),
    [
        (lambda: "mae", "mae", "min"),
        (lambda: "accuracy", "accuracy", "max"),
        (lambda: "acc", "acc", "max"),
        (lambda: keras.metrics.AUC(name="auc"), "auc", "max"),
        (lambda: keras.metrics.AUC(name="area"), "area", "max"),
        (
            lambda: keras.metrics.MeanSquaredError(name="mean_squared_error"),
            "mean_squared_error",
            "min",
        ),
        (lambda: keras.metrics.F1Score(average="macro", name="f1_score"), "f1_score", "max"),
        (lambda: keras.metrics.R2Score(name="r2_score"), "r2_score", "max"),
        (lambda: f1, "f1", None),
        (lambda: keras.metrics.Mean(name="mean"), "mean", None),
        (lambda: Accuracy(name="accuracy"), "accuracy", None),
        (lambda: keras.metrics.MeanMetricWrapper(f1, name="wrapped"), "wrapped", None),
    ],
)
@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_direction_of_a_metric(argument, metric, name, direction):
    compiled = model(**{argument: [metric()]})
    assert declared_direction(compiled, name) == direction
    assert declared_direction(compiled, "loss") == "min"


@pytest.mark.parametrize(
    ("metric", "remedy"),
    [
        (lambda: keras.metrics.F1Score(), "`average`"),
        (lambda: keras.metrics.FBetaScore(), "`average`"),
        (lambda: keras.metrics.R2Score(class_aggregation=None), "`class_aggregation`"),
    ],
)
def test_a_metric_with_a_value_for_each_class_is_refused(metric, remedy):
    metric = metric()
    with pytest.raises(ValueError, match=f"must be a single number.*{metric.name}.*{remedy}"):
        declared_direction(model(metrics=[metric]), metric.name)


def test_a_name_that_nothing_logs_is_a_key_error():
    for name in ("lss", "auc_2", "a_loss", "mae"):
        with pytest.raises(KeyError):
            declared_direction(model(metrics=["accuracy"]), name)


def test_metrics_and_losses_of_several_outputs():
    compiled = two_outputs(
        loss={"a": "mse", "b_c": "mse"},
        metrics={"a": [keras.metrics.AUC(name="area")], "b_c": ["mae", f1]},
    )
    directions = {
        "a_area": "max",
        "b_c_mae": "min",
        "b_c_f1": None,
        "a_loss": "min",
        "b_c_loss": "min",
        "loss": "min",
    }
    assert {name: declared_direction(compiled, name) for name in directions} == directions


def test_lists_of_losses_and_metrics_count_too():
    compiled = two_outputs(loss=["mse", "mae"], metrics=[["mae"], ["mse"]])
    assert declared_direction(compiled, "b_c_loss") == "min"
    assert declared_direction(compiled, "b_c_mse") == "min"


def test_a_name_that_is_the_end_of_another_does_not_decide_for_it():
    compiled = model(metrics=[keras.metrics.AUC(name="score"), f1])
    assert declared_direction(compiled, "f1") is None
    assert declared_direction(compiled, "score") == "max"


def test_names_stand_in_their_order_the_loss_first():
    compiled = model(metrics=["mae", f1], weighted_metrics=[keras.metrics.AUC(name="auc")])
    assert declared_names(compiled) == ["loss", "mae", "f1", "auc"]
    assert declared_names(model()) == ["loss"]


def test_what_keras_cannot_serialize_is_undeclared():
    """Keras trains with such a loss, but cannot tell its configuration."""
    compiled = model(loss=functools.partial(keras.losses.huber, delta=2.0))
    assert not is_declared(compiled)
    assert declared_direction(compiled, "loss") == "min"
    with pytest.raises(KeyError):
        declared_direction(compiled, "auc")
    assert is_declared(model())
