"""Checks padding, class counts, predictions and exports over several logical devices."""

import os
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks import StepEvaluation, read_predictions

DEVICES = int(sys.argv[1])
RNG = np.random.default_rng(6)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = RNG.integers(0, 3, 40)
# With a batch of 6 rows, rounded up for 4 replicas to 8, the last batch holds one row: all
# replicas but the first see padded rows only.
ROWS = 25 if DEVICES > 2 else 13
WEIGHTS = RNG.uniform(0, 2, size=ROWS).astype("float32")
SHAPES = []


class Traced(keras.layers.Layer):
    def call(self, inputs):
        SHAPES.append(inputs.shape[0])
        return inputs


def compiled(strategy, **kwargs):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, kernel_regularizer="l2", name="hidden")(Traced()(inputs))
        outputs = keras.layers.Dense(3, activation="softmax")(hidden)
        model = keras.Model(inputs, outputs)
        model.compile(
            "sgd",
            "sparse_categorical_crossentropy",
            metrics=["accuracy", keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou")],
            weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(name="weighted")],
            **kwargs,
        )
    return model


def expected(model, weights):
    p = np.float64(model.predict(X[:ROWS], verbose=0))
    y, guess = Y[:ROWS], p.argmax(1)
    rows = -np.log((p / p.sum(1, keepdims=True))[np.arange(ROWS), y])
    kernel = np.float64(model.get_layer("hidden").kernel.numpy())
    matrix = np.zeros((3, 3))
    np.add.at(matrix, (y, guess), 1)
    hits = np.diag(matrix)
    found = {
        "loss": np.mean(rows * weights) + 0.01 * np.sum(kernel**2),
        "accuracy": np.mean(guess == y),
        "iou": np.mean(hits / (matrix.sum(0) + matrix.sum(1) - hits)),
        "weighted": np.average(rows, weights=weights),
    }
    for index in range(3):
        found[f"correct/{index}"], found[f"count/{index}"] = hits[index], matrix[index].sum()
    return found, p


class AddsRows(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(inputs**2))
        return inputs


def check(strategy, data, weights, folder, *, export):
    ids, seen = [20 % ROWS, 3, 0], []
    model = compiled(strategy)
    evaluation = StepEvaluation(
        data,
        every_steps=2,
        batch_size=6,
        pad_partial_batch=True,
        class_counts=True,
        predictions=ids,
        export=export,
        log_dir=folder,
    )
    evaluation.subscribe(lambda record: seen.append((record.metrics, *expected(model, weights))))
    SHAPES.clear()
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[evaluation])
    assert -(-6 // DEVICES) in SHAPES, SHAPES
    predictions = read_predictions(folder)
    assert predictions.steps.tolist() == [2, 4, 5], predictions.steps
    for output, (metrics, values, p) in zip(predictions.outputs["output"], seen, strict=True):
        assert {f"val_{key}" for key in values} == metrics.keys()
        for key, value in values.items():
            np.testing.assert_allclose(metrics[f"val_{key}"], value, rtol=1e-6, err_msg=key)
        np.testing.assert_allclose(output, p[ids], rtol=1e-5)
    if export:
        served = tf.saved_model.load(f"{folder}/exports/step-00000005")
        np.testing.assert_allclose(served.serve(X[:ROWS]), seen[-1][2], rtol=1e-5)


def check_refusal(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), AddsRows(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    evaluation = StepEvaluation((X, Y), every_steps=1, batch_size=6, pad_partial_batch=True)
    with pytest.raises(ValueError, match="'loss' depends on rows whose weight is zero"):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[evaluation])


def main():
    devices = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        devices, [tf.config.LogicalDeviceConfiguration()] * DEVICES
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(DEVICES)])
    data = (X[:ROWS], Y[:ROWS])
    with tempfile.TemporaryDirectory() as folder:
        check(strategy, (*data, WEIGHTS), WEIGHTS, folder, export=False)
    if DEVICES == 2:
        with tempfile.TemporaryDirectory() as folder:
            check(strategy, data, np.ones(ROWS), folder, export=True)
    check_refusal(strategy)
    sys.stdout.write("exact\n")


if __name__ == "__main__":
    main()
