"""Checks StepEvaluation under a MirroredStrategy over as many logical devices as asked for."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

from tfx_tips.callbacks.step_evaluation import StepEvaluation

DEVICES = int(sys.argv[1])
RNG = np.random.default_rng(6)
X, Y = RNG.normal(size=(40, 4)).astype("float32"), RNG.normal(size=(40, 1)).astype("float32")
X_VAL = RNG.normal(size=(33, 4)).astype("float32")
TARGETS = {name: RNG.normal(size=(33, 1)).astype("float32") for name in "ab"}
WEIGHT = RNG.uniform(0, 2, size=33).astype("float32")


def compiled(strategy, *, synchronized):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, kernel_regularizer="l2", name="hidden")(inputs)
        hidden = keras.layers.BatchNormalization(synchronized=synchronized)(hidden)
        hidden = keras.layers.Dropout(0.3)(hidden)
        outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in "ab"}
        model = keras.Model(inputs, outputs)
        model.compile(
            "adam",
            loss={"a": "mse", "b": "mae"},
            loss_weights={"a": 1.0, "b": 3.0},
            metrics={"a": ["mae"], "b": [keras.metrics.RootMeanSquaredError(name="rmse")]},
        )
    return model


def fit(model, *callbacks):
    history = model.fit(
        X, {"a": Y, "b": -Y}, batch_size=8, epochs=2, callbacks=list(callbacks), verbose=0
    )
    losses = {k: v for k, v in history.history.items() if not k.startswith(("val", "one"))}
    state = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    # Each replica's own values: those of batch normalization differ.
    local = [
        part.numpy()
        for variable in state
        for part in model.distribute_strategy.experimental_local_results(variable.value)
    ]
    return losses, local


def expected(model, rows, weight):
    outputs = {k: np.float64(v) for k, v in model.predict(X_VAL[rows], verbose=0).items()}
    error = {k: (outputs[k] - TARGETS[k][rows])[:, 0] for k in "ab"}
    losses = {"a": np.mean(weight * error["a"] ** 2), "b": np.mean(weight * abs(error["b"]))}
    kernel = np.float64(model.get_layer("hidden").kernel.numpy())
    return {
        "loss": losses["a"] + 3 * losses["b"] + 0.01 * np.sum(kernel**2),
        "a_loss": losses["a"],
        "b_loss": losses["b"],
        "a_mae": np.mean(abs(error["a"])),
        "b_rmse": np.sqrt(np.mean(error["b"] ** 2)),
    }


def main():
    devices = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        devices, [tf.config.LogicalDeviceConfiguration()] * DEVICES
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(DEVICES)])
    # The last batches hold 1 row, so that some replicas have none, and 9 rows.
    one = tf.data.Dataset.from_tensor_slices((X_VAL, TARGETS)).batch(8)
    sets = {"val": (X_VAL, TARGETS, WEIGHT), "one": one}
    evaluation = StepEvaluation(sets, every_steps=4, batch_size=8, at_start=True)
    # Replicas whose statistics differ evaluate different models, and no prediction is theirs.
    model = compiled(strategy, synchronized=True)
    values = {}

    def compare(record):
        weights = {"val": WEIGHT, "one": np.ones(33)}
        for name, weight in weights.items():
            for key, value in expected(model, slice(None), weight).items():
                # Weighted metrics are not among them: `metrics` ignore weights.
                metric = record.metrics[f"{name}_{key}"]
                np.testing.assert_allclose(metric, value, rtol=1e-6, err_msg=f"{name}_{key}")
        values[record.step] = record.metrics

    evaluation.subscribe(compare)
    fit(model, evaluation)
    assert list(values) == [0, 4, 8, 10] == [r.step for r in evaluation.history], list(values)
    losses, state = fit(compiled(strategy, synchronized=False))
    evaluation = StepEvaluation(sets, every_steps=3, batch_size=8)
    with_losses, with_state = fit(compiled(strategy, synchronized=False), evaluation)
    assert [record.step for record in evaluation.history] == [3, 6, 9, 10]
    assert with_losses == losses, (with_losses, losses)
    for ours, theirs in zip(with_state, state, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    sys.stdout.write("exact and identical\n")


if __name__ == "__main__":
    main()
