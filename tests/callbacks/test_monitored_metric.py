import keras
import numpy as np
import pytest

from tfx_tips.callbacks.monitored_metric import compiled_metrics, known_directions, resolve_mode

X = np.ones((4, 2), "float32")


def f1(y_true, y_pred):
    return keras.ops.mean(y_true * y_pred)


class OwnAUC(keras.metrics.AUC):
    """A class of the user's own may turn what it inherits into its opposite."""


@pytest.fixture(scope="module")
def one_output():
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        loss="binary_crossentropy",
        metrics=["accuracy", "mae", f1, keras.metrics.AUC(name="auc"), OwnAUC(name="own_auc")],
        weighted_metrics=[keras.metrics.Recall(name="recall")],
    )
    model.evaluate(X, np.ones((4, 1)), verbose=0)
    return model


@pytest.fixture(scope="module")
def two_outputs():
    inputs = keras.Input((2,))
    outputs = {
        name: keras.layers.Dense(1, activation="sigmoid", name=name)(inputs) for name in "ab"
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        loss={"a": "binary_crossentropy", "b": "mse"},
        metrics={
            "a": [keras.metrics.AUC(name="score"), keras.metrics.Precision(name="precision")],
            "b": [keras.metrics.MeanSquaredError(name="score")],
        },
    )
    model.evaluate(X, {"a": np.ones((4, 1)), "b": np.ones((4, 1))}, verbose=0)
    return model


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("noisy_loss", "min"),
        ("accuracy", "max"),
        ("val_accuracy", "max"),
        ("val_mae", "min"),
        ("val_auc", "max"),
        ("test_set_recall", "max"),
    ],
)
def test_losses_and_built_in_metrics_decide_for_themselves(one_output, monitor, mode):
    assert resolve_mode(one_output, monitor, "auto") == mode


@pytest.mark.parametrize("monitor", ["val_f1", "f1", "val_own_auc", "val_unknown"])
def test_functions_own_classes_and_unknown_names_have_to_be_told(one_output, monitor):
    with pytest.raises(ValueError, match=rf"(?s)'{monitor}'.*mode='max'"):
        resolve_mode(one_output, monitor, "auto")
    assert resolve_mode(one_output, monitor, "max") == "max"
    assert resolve_mode(one_output, monitor, "min") == "min"


def test_outputs_metrics_and_losses_decide_unless_equal_names_disagree(two_outputs):
    assert resolve_mode(two_outputs, "val_a_precision", "auto") == "max"
    assert resolve_mode(two_outputs, "val_b_loss", "auto") == "min"
    for monitor in ("val_a_score", "val_b_score"):
        with pytest.raises(ValueError, match=monitor):
            resolve_mode(two_outputs, monitor, "auto")


def test_an_unknown_mode_is_refused(one_output):
    with pytest.raises(ValueError, match="Received: mode='maximum'"):
        resolve_mode(one_output, "val_auc", "maximum")


def test_the_longest_name_counts(one_output):
    assert resolve_mode(one_output, "val_auc", "auto") == "max"
    # Not the built-in AUC, whose name ends this one, but a class of the user's own.
    with pytest.raises(ValueError, match="val_own_auc"):
        resolve_mode(one_output, "val_own_auc", "auto")


def test_compiled_metrics_leave_losses_out(two_outputs):
    names = [metric.name for metric in compiled_metrics(two_outputs)]
    assert sorted(names) == ["precision", "score", "score"]


def test_known_directions_leave_out_what_has_to_be_told():
    def closeness(y_true, y_pred):
        return keras.ops.mean(y_pred - y_true)

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae", closeness, keras.metrics.AUC(name="auc")])
    model.evaluate(np.zeros((2, 2)), np.zeros((2, 1)), verbose=0)
    names = ["val_loss", "val_mae", "val_closeness", "val_auc"]
    assert known_directions(model, names) == {
        "val_loss": "min",
        "val_mae": "min",
        "val_auc": "max",
    }
