import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks.model_state import build, untouched
from tfx_tips.callbacks.step_evaluation import StepEvaluation

RNG = np.random.default_rng(3)
X, Y = (RNG.normal(size=(22, width)).astype("float32") for width in (4, 1))
X_VAL, Y_VAL = (RNG.normal(size=(13, width)).astype("float32") for width in (4, 1))


class Counting(keras.layers.Layer):
    """Adds how often it was called, at inference as well; its state is made at its first call."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), trainable=False, initializer="zeros")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + 0.01 * self.calls


class OutsideKeras(keras.layers.Layer):
    """Holds a generator and a variable of TensorFlow, which Keras does not list."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(5)
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + self.calls + self.generator.normal(tf.shape(x))


class OutsideMetric(keras.metrics.Metric):
    """A sum whose variable Keras does not list."""

    def __init__(self):
        super().__init__(name="outside")
        self.sum = tf.Variable(0.0)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sum.assign_add(tf.reduce_sum(y_true))

    def result(self):
        return self.sum

    def reset_state(self):
        self.sum.assign(0.0)


class Subclassed(keras.Model):
    """Is built by its first batch, and reports by steps of its own."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(6), Counting(), keras.layers.Dropout(0.5)]
        self.head = keras.layers.Dense(1)
        self.error = keras.metrics.Mean(name="error")

    def call(self, x, training=False):
        for part in self.parts[:2]:
            x = part(x)
        return self.head(self.parts[2](x, training=training))

    def train_step(self, data):
        logs = super().train_step(data)
        self.error.update_state(logs["loss"])
        return {**logs, "error": self.error.result(), "constant": 1.0}

    def test_step(self, data):
        self.error.update_state(7.0)
        return super().test_step(data)


def sequential(*layers):
    return keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1)])


def stateful_layers():
    return [
        keras.layers.Dense(6, kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        Counting(),
        keras.layers.Dropout(0.5),
        keras.layers.GaussianNoise(0.1),
    ]


def stateful():
    return sequential(*stateful_layers())


def small():
    return sequential(keras.layers.Dropout(0.5))


CASES = {
    "normalized": (lambda: sequential(keras.layers.BatchNormalization()), {}),
    "stateful": (stateful, {"metrics": ["mae", keras.metrics.RootMeanSquaredError]}),
    "several steps in one execution": (stateful, {"steps_per_execution": 4, "metrics": ["mae"]}),
    "outside of Keras": (lambda: sequential(OutsideKeras()), {"metrics": [OutsideMetric]}),
    "unbuilt": (
        lambda: keras.Sequential([*stateful_layers(), keras.layers.Dense(1)]),
        {"metrics": ["mae"]},
    ),
    "subclassed": (Subclassed, {}),
    "eager": (stateful, {"run_eagerly": True}),
    "compiled by XLA": (small, {"jit_compile": True}),
}


def fresh(options):
    """Compile options whose metrics are made anew."""
    made = [metric() if isinstance(metric, type) else metric for metric in options["metrics"]]
    return options | {"metrics": made}


def run(case, *, evaluate):
    make, options = CASES[case]
    keras.utils.set_random_seed(7)
    model = make()
    model.compile("adam", "mse", **fresh({"metrics": [], "jit_compile": False} | options))
    # XLA compiles each batch size anew, which takes seconds.
    sizes = (11, 13) if model.jit_compile else (4, 5)
    evaluation = StepEvaluation((X_VAL, Y_VAL), every_steps=1, batch_size=sizes[1], at_start=True)
    histories = []
    for _ in range(2):  # The second run shuffles anew, and goes on from the first one's state.
        fit = model.fit(
            X, Y, batch_size=sizes[0], callbacks=[evaluation] if evaluate else [], verbose=0
        )
        histories.append({k: v for k, v in fit.history.items() if not k.startswith("val_")})
    state = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return histories, [variable.numpy() for variable in state], evaluation


@pytest.mark.parametrize("case", [case for case in CASES if case != "normalized"])
def test_a_run_is_bit_identical_with_and_without_evaluations(case):
    histories, state, _ = run(case, evaluate=False)
    with_histories, with_state, evaluation = run(case, evaluate=True)
    assert len(evaluation.history) > 2
    assert with_histories == histories
    assert len(with_state) == len(state)
    for with_value, value in zip(with_state, state, strict=True):
        np.testing.assert_array_equal(with_value, value)


def test_a_run_in_mixed_precision_is_bit_identical():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        histories, state, _ = run("normalized", evaluate=False)
        with_histories, with_state, _ = run("normalized", evaluate=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert with_histories == histories
    assert all(map(np.array_equal, with_state, state))


def test_state_is_put_back_after_an_exception():
    model = stateful()
    model.compile("sgd", "mse", metrics=["mae"])
    model.train_on_batch(X, Y)
    before = [v.numpy() for v in [*model.variables, *model.metrics_variables]]

    def break_off():
        with untouched(model):
            model.evaluate(X_VAL, Y_VAL, verbose=0)
            assert not np.array_equal(model.metrics_variables[0].numpy(), before[-4])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    after = [v.numpy() for v in [*model.variables, *model.metrics_variables]]
    assert all(map(np.array_equal, after, before))


def test_metrics_that_come_into_being_inside_are_reset():
    model = small()
    model.compile("sgd", "mse", metrics=["mae"])
    with untouched(model):
        model.evaluate(X_VAL, Y_VAL, verbose=0)
        assert any(variable.numpy() for variable in model.metrics_variables)
    assert len(model.metrics_variables) == 4
    assert not any(variable.numpy() for variable in model.metrics_variables)


def test_building_runs_nothing_and_leaves_what_cannot_be_built():
    model = Subclassed()
    build(model, tf.TensorSpec((None, 4)))
    assert model.built
    assert float(model.parts[1].calls.numpy()) == 0

    class EagerOnly(keras.Model):
        def call(self, x):
            return x if float(tf.reduce_sum(x)) > 0 else -x

    refuses = EagerOnly()
    build(refuses, tf.TensorSpec((None, 4)))
    refuses.compile(loss="mse", run_eagerly=True)
    assert refuses.evaluate(X_VAL, X_VAL, verbose=0) >= 0
