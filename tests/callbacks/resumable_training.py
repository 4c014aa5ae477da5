"""Run as a program: trains in a directory, or goes on with what was trained there.

    python resumable_training.py DIRECTORY [--delay-s SECONDS] [--replicas N]

Prints a line a step, so that whoever watches knows when to kill it, and in the end writes
all values and evaluations to DIRECTORY/result.npz.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tfx_tips.callbacks import BestNCheckpoint, StepEvaluation, resume_fit
from tfx_tips.data import from_step

STEPS_PER_EPOCH = 10
EPOCHS = 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(64, 8)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def make_batch(step):
    rows = np.random.default_rng([1, step]).integers(len(X), size=8)
    return X[rows], Y[rows]


class EachStep(keras.callbacks.Callback):
    def __init__(self, delay_s):
        super().__init__()
        self.delay_s = delay_s

    def on_train_batch_end(self, batch, logs=None):
        sys.stdout.write("step\n")
        sys.stdout.flush()
        time.sleep(self.delay_s)


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args(arguments)
    strategy = tf.distribute.get_strategy()
    if options.replicas > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * options.replicas,
        )
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{number}" for number in range(options.replicas)]
        )
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Input((8,)),
                layers.Dense(16, "relu"),
                # Unsynchronised, replicas would differ, and files hold those of the first alone.
                layers.BatchNormalization(synchronized=options.replicas > 1),
                layers.Dropout(0.5),
                layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    evaluation = StepEvaluation((X, Y), every_steps=4)
    checkpoints = BestNCheckpoint(
        options.directory / "ckpt", evaluation=evaluation, every_steps=1, keep=2
    )
    resume_fit(
        model,
        lambda step: from_step(make_batch, step),
        options.directory / "ckpt",
        epochs=EPOCHS,
        steps_per_epoch=STEPS_PER_EPOCH,
        callbacks=[evaluation, checkpoints, EachStep(options.delay_s)],
        verbose=0,
    )
    values = [*model.variables, *model.optimizer.variables]
    np.savez(
        options.directory / "result.npz",
        steps=[record.step for record in evaluation.history],
        metrics=[list(record.metrics.values()) for record in evaluation.history],
        **{f"{i:03d}": keras.ops.convert_to_numpy(value) for i, value in enumerate(values)},
    )


if __name__ == "__main__":
    main(sys.argv[1:])
