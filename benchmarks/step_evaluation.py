"""What an evaluation by steps costs against a bare compiled loop over the same cached set.

Run: python benchmarks/step_evaluation.py
Evaluation and bare loop run in turn in one `fit`, on the same model and the same cached data
set; medians count. The bare loop calls a compiled `test_step` on each batch and reads the
metrics once at the end; it puts no state back and reports to nobody.
"""

import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from machine import describe_machine, markdown_table, write_section

from tfx_tips.callbacks import StepEvaluation

PAIRS = 40


def small_net():
    model = keras.Sequential(
        [keras.layers.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    return model, (32,), 20_000, 256


def convolutional_net():
    model = keras.Sequential(
        [
            keras.layers.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    return model, (32, 32, 3), 2_000, 128


def bare_loop(model, dataset):
    @tf.function(reduce_retracing=True)
    def step(batch):
        model.test_step(batch)

    def run():
        model.reset_metrics()
        for batch in dataset:
            step(batch)
        return {name: float(value) for name, value in model.get_metrics_result().items()}

    return run


def measure(make, *, pad):
    keras.utils.set_random_seed(0)
    model, shape, rows, batch_size = make()
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, *shape)).astype("float32")
    y = rng.integers(10, size=rows)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).cache()
    evaluation = StepEvaluation(dataset, every_steps=1, pad_partial_batch=pad)
    bare, seconds = bare_loop(model, dataset), []

    def time_bare_loop(record):
        begin = time.perf_counter()
        bare()
        seconds.append(time.perf_counter() - begin)

    evaluation.subscribe(time_bare_loop)
    model.fit(
        x[:64], y[:64], batch_size=8, epochs=(PAIRS + 4) // 8 + 1, verbose=0, callbacks=[evaluation]
    )
    pairs = list(zip([r.seconds for r in evaluation.history], seconds, strict=True))[4:]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return len(pairs), ours, theirs, ratio


def main():
    rows = []
    for name, make in (
        ("dense, 79 batches of 256", small_net),
        ("convolutional, 16 batches of 128", convolutional_net),
    ):
        for pad in (False, True):
            count, ours, theirs, ratio = measure(make, pad=pad)
            how = f"{name}{', padded' if pad else ''}"
            rows.append([how, count, f"{ours * 1e3:.1f}", f"{theirs * 1e3:.1f}", f"{ratio:.2f}"])
    table = markdown_table(
        [
            "model and set",
            "pairs",
            "StepEvaluation, ms",
            "bare loop, ms",
            "ratio (median of pairs)",
        ],
        rows,
    )
    body = f"""`benchmarks/step_evaluation.py`. Bar: at most 1.1 times a bare compiled loop over the
same cached set.

{table}

{describe_machine()}."""
    print(body)
    write_section("Evaluation by steps", body)


if __name__ == "__main__":
    main()
