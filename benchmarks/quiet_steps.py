"""What the callbacks cost on a step where nothing is due.

Run: python benchmarks/quiet_steps.py
Inside a `fit`, the batch hooks of `recommended`'s callbacks are called many times with the
clock standing between two due steps; the median of the rounds counts.
"""

import statistics
import tempfile
import time

import keras
import numpy as np
from machine import describe_machine, markdown_table, write_section

from tfx_tips.callbacks import recommended

ROUNDS, CALLS = 30, 2_000


class HookTimer(keras.callbacks.Callback):
    """Times the batch hooks of other callbacks."""

    def __init__(self, callbacks):
        super().__init__()
        self.callbacks = callbacks
        self.microseconds = []

    def on_epoch_begin(self, epoch, logs=None):
        logs = {"loss": 1.0}
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for batch in range(1, CALLS + 1):
                for callback in self.callbacks:
                    callback.on_train_batch_begin(batch)
                for callback in self.callbacks:
                    callback.on_train_batch_end(batch, logs)
            self.microseconds.append((time.perf_counter() - begin) / CALLS * 1e6)
        for callback in self.callbacks:
            callback.on_epoch_begin(epoch)


def main():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    y = np.ones((8, 1), "float32")
    with tempfile.TemporaryDirectory() as folder:
        callbacks = recommended(folder, (x, y), every_steps=1_000_000)
        timer = HookTimer(callbacks)
        model.fit(x, y, verbose=0, callbacks=[*callbacks, timer])
    cost = statistics.median(timer.microseconds)
    table = markdown_table(
        ["callbacks", "rounds of calls", "hooks of one step, µs", "share of a 10 ms step"],
        [
            [
                ", ".join(type(callback).__name__ for callback in callbacks),
                f"{ROUNDS} of {CALLS:,}",
                f"{cost:.1f}",
                f"{cost / 10_000:.2%}",
            ]
        ],
    )
    body = f"""`benchmarks/quiet_steps.py`. Bar: all callbacks together at most 0.5 % of a step
of 10 ms.

{table}

{describe_machine()}."""
    print(body)
    write_section("Quiet steps", body)


if __name__ == "__main__":
    main()
