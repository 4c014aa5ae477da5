import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks.evaluation_loop import EvaluationLoop
from tfx_tips.data.evaluation_set import evaluation_set

ROWS = 1003
L2 = 0.01


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    y = (3 + rng.normal(size=(ROWS, 1)) * np.linspace(1, 50, ROWS)[:, None]).astype("float32")
    weight = rng.uniform(0, 3, size=ROWS).astype("float32")
    return x, y, weight


@pytest.fixture(scope="module")
def regression():
    """A model with a regularizer, a dropout layer, and metrics with and without weights."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, kernel_regularizer=keras.regularizers.L2(L2)),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mape"])
    return model


def evaluate(model, data, **options):
    loop = EvaluationLoop(model, evaluation_set(data, name="val", **options))
    loop.probe()
    return loop.run()


def predict(model, x):
    return np.float64(model.predict(x, batch_size=100, verbose=0))


def expected_regression(model, x, y, weight):
    """Keras divides a weighted loss by the rows, and a weighted metric by the weights."""
    p, y, weight = predict(model, x), np.float64(y), np.float64(weight)
    penalty = L2 * np.sum(np.float64(model.layers[0].kernel.numpy()) ** 2)
    share = 100 * np.abs((y - p) / np.maximum(np.abs(y), 1e-7))[:, 0]
    return {
        "loss": np.mean(weight * (p - y)[:, 0] ** 2) + penalty,
        "mae": np.mean(np.abs(p - y)),
        "mape": np.sum(weight * share) / np.sum(weight),
    }


@pytest.mark.parametrize("batch_size", [7, 32, 1000, 2000])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_float64_over_the_predictions_at_any_batch_size(
    regression, data, batch_size, weighted
):
    x, y, weight = data if weighted else (*data[:2], np.ones(ROWS))
    values = evaluate(regression, (x, y, weight) if weighted else (x, y), batch_size=batch_size)
    assert values == pytest.approx(expected_regression(regression, x, y, weight), rel=1e-6, abs=0)


def test_equals_float64_where_the_number_of_batches_is_unknown(regression, data):
    x, y, _ = data

    def rows():
        for start in range(0, ROWS, 10):
            yield x[start : start + 10], y[start : start + 10]

    signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    expected = expected_regression(regression, x, y, np.ones(ROWS))
    assert evaluate(regression, dataset) == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.parametrize("steps_per_execution", [1, 100])
def test_thousands_of_batches_of_one_row_stay_exact(steps_per_execution):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3000, 4)).astype("float32")
    y = (5 + rng.normal(size=(3000, 1))).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    values = evaluate(model, (x, y), batch_size=1)
    error = predict(model, x) - y
    # Summed in float32 throughout, these are off by more than 3e-7 already.
    assert values["loss"] == pytest.approx(np.mean(error**2), rel=2e-7, abs=0)
    assert values["mae"] == pytest.approx(np.mean(np.abs(error)), rel=2e-7, abs=0)


def roc_auc(labels, scores):
    """The area under the curve through 200 thresholds, Keras' default, by trapezoids."""
    thresholds = np.array([-1e-7, *(np.arange(1, 199) / 199), 1 + 1e-7])
    above = scores[None, :] > thresholds[:, None]
    hits = (above & (labels == 1)).sum(1) / (labels == 1).sum()
    alarms = (above & (labels == 0)).sum(1) / (labels == 0).sum()
    return np.sum((alarms[:-1] - alarms[1:]) * (hits[:-1] + hits[1:]) / 2)


def f1_scores(labels, scores):
    predicted = np.eye(3)[scores.argmax(1)]
    truth = np.eye(3)[labels]
    return 2 * (predicted * truth).sum(0) / (predicted.sum(0) + truth.sum(0))


def test_several_outputs_with_loss_weights_and_metrics_that_are_no_means(rng):
    x = rng.normal(size=(301, 4)).astype("float32")
    yes, kind = rng.integers(0, 2, size=(301, 1)), rng.integers(0, 3, size=301)
    keras.utils.set_random_seed(0)
    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((2,), name="b")}
    both = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    outputs = {
        "yes": keras.layers.Dense(1, activation="sigmoid", name="yes")(both),
        "kind": keras.layers.Dense(3, activation="softmax", name="kind")(both),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        loss={"yes": "binary_crossentropy", "kind": "categorical_crossentropy"},
        loss_weights={"yes": 2.0, "kind": 0.5},
        metrics={
            "yes": [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")],
            "kind": [keras.metrics.F1Score(average=None, name="f1"), "accuracy"],
        },
    )
    features = {"a": x[:, :2], "b": x[:, 2:]}
    targets = {"yes": yes, "kind": np.eye(3, dtype="float32")[kind]}
    # With batches of 2 rows the sums are drained, too.
    values = evaluate(model, (features, targets), batch_size=2)
    p = {name: np.float64(part) for name, part in model.predict(features, verbose=0).items()}
    score, positive = p["yes"][:, 0], yes[:, 0] == 1
    losses = {
        "yes": -np.mean(np.where(positive, np.log(score), np.log(1 - score))),
        "kind": -np.mean(np.log(p["kind"][np.arange(301), kind])),
    }
    expected = {
        "loss": 2 * losses["yes"] + 0.5 * losses["kind"],
        "yes_loss": losses["yes"],
        "kind_loss": losses["kind"],
        "yes_auc": roc_auc(yes[:, 0], score),
        "yes_precision": positive[score > 0.5].mean(),
        "kind_accuracy": np.mean(p["kind"].argmax(1) == kind),
    }
    vector = values.pop("kind_f1")
    np.testing.assert_allclose(vector, f1_scores(kind, p["kind"]), rtol=1e-6)
    assert values == pytest.approx(expected, rel=1e-6, abs=0)


class LastRows(keras.metrics.Metric):
    """Remembers the last batch alone: its state does not grow by addition."""

    def __init__(self):
        super().__init__(name="last_rows")
        self.last = self.add_variable(shape=(), initializer="zeros", name="last")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.last.assign(keras.ops.mean(y_true))

    def result(self):
        return self.last


class Total(keras.losses.Loss):
    def __init__(self):
        super().__init__(reduction="sum", name="total")

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


@pytest.mark.parametrize(
    "loss", [Total(), keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")]
)
def test_what_is_no_mean_over_rows_equals_keras_at_that_batch_size(data, loss):
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, metrics=[LastRows()])
    x, y, weight = data
    values = evaluate(model, (x, y, weight), batch_size=10)
    keras_values = model.evaluate(
        x, y, sample_weight=weight, batch_size=10, verbose=0, return_dict=True
    )
    assert values == pytest.approx(keras_values, rel=2e-6, abs=0)
    assert values["last_rows"] == pytest.approx(y[1000:].mean(), rel=1e-6)


class OwnSteps(keras.Model):
    """Reports by `test_step` what no metric holds."""

    def call(self, x):
        return x[:, :1]

    def test_step(self, data):
        x, y = data
        return {"largest": keras.ops.max(y - self(x)), "answer": keras.ops.convert_to_tensor(42.0)}


def test_a_test_step_may_report_what_no_metric_holds(data):
    model = OwnSteps()
    model.compile()
    x, y, _ = data
    values = evaluate(model, (x, y), batch_size=10)
    keras_values = model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert values == keras_values
    assert values["answer"] == 42.0


def test_probe_gives_names_and_shapes_from_the_first_batch(regression, data):
    x, y, _ = data
    loop = EvaluationLoop(regression, evaluation_set((x, y), name="val", batch_size=10))
    first = loop.probe()
    expected = expected_regression(regression, x[:10], y[:10], np.ones(10))
    assert first == pytest.approx(expected, rel=1e-6)


def test_an_empty_set_of_unknown_cardinality_is_refused(regression, data):
    x, y, _ = data
    nothing = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: False).batch(4)
    with pytest.raises(ValueError, match="at least one example"):
        EvaluationLoop(regression, evaluation_set(nothing, name="val")).probe()


def test_a_set_that_can_be_read_only_once_is_refused(regression, data):
    x, y, _ = data
    # Making the set looks at a batch and so does the probe.
    once = iter([(x[:4], y[:4])])

    def batches():
        yield from once

    signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    loop = EvaluationLoop(regression, evaluation_set(dataset, name="val"))
    with pytest.raises(ValueError, match="holds none now"):
        loop.run()


def test_many_evaluations_trace_the_test_step_once(data):
    traces = []

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def test_step(self, data):
            traces.append(data)
            return super().test_step(data)

    model = Counting()
    model.compile("sgd", "mse")
    loop = EvaluationLoop(model, evaluation_set(data[:2], name="val", batch_size=100))
    loop.probe()
    after_probe = len(traces)
    for _ in range(20):
        loop.run()
    assert len(traces) == after_probe
