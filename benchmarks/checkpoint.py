"""How long saving holds the training thread, against what Keras, Orbax and TensorFlow offer.

Run: python benchmarks/checkpoint.py [--rounds N] [--units N] [--write]

Trains a model of about 25 million parameters with Adam and saves it in each way, in turn, several
times in one process. Prints a Markdown table; `--write` puts it into RESULTS.md as well.

- hold: time that a callback's hooks take in the training thread for one save; the first save of
  each way is left out, as it builds what later ones use.
- 20 steps after: time of the 20 steps that follow a save, less that of 20 quiet steps.
- memory: the highest resident memory from the save until it is on the disk, less the resident
  memory before it.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import psutil
import tensorflow as tf
from machine import describe_machine, markdown_table, write_section

from tfx_tips.callbacks import BestNCheckpoint

STEPS_AFTER = 20


def make_model(units):
    model = keras.Sequential(
        [keras.layers.Input((units,)), *(keras.layers.Dense(units) for _ in range(6))]
    )
    model.compile("adam", "mse")
    return model


class PeakMemory:
    """Samples this process' resident memory, every 2 ms, while it is open."""

    def __enter__(self):
        self._process = psutil.Process()
        self._before = self.peak = self._process.memory_info().rss
        self._open = True
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self):
        while self._open:
            self.peak = max(self.peak, self._process.memory_info().rss)
            time.sleep(0.002)

    def __exit__(self, *error):
        self._open = False
        self._thread.join()

    @property
    def extra(self):
        return self.peak - self._before


class Way:
    """One way to save: `save` is what its hooks do, `wait` waits until it is on the disk."""

    def __init__(self, name, directory, save, wait=lambda: None):
        self.name, self.directory, self.save, self.wait = name, directory, save, wait
        self.hold, self.after, self.memory = [], [], []


def ways(model, directory):
    """The callbacks are called as `fit` calls them, each hook of a step that saves."""

    def begun(callback):
        callback.set_model(model)
        callback.set_params({"epochs": 1, "steps": None})
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        return callback

    batches = {"best_n": 0}
    ours = begun(
        BestNCheckpoint(directory / "best_n", monitor="loss", every_steps=1, keep=1, keep_latest=1)
    )

    def save_ours():
        ours.on_train_batch_end(batches["best_n"], {"loss": 1.0 / (1 + batches["best_n"])})
        batches["best_n"] += 1
        ours.on_train_batch_begin(batches["best_n"])

    theirs = begun(
        keras.callbacks.ModelCheckpoint(directory / "keras" / "model.keras", save_freq=1)
    )
    found = [
        Way("`BestNCheckpoint`", directory / "best_n", save_ours, lambda: ours._writer.flush()),
        Way(
            "`keras.callbacks.ModelCheckpoint` (.keras)",
            directory / "keras",
            lambda: theirs.on_train_batch_end(0, {"loss": 1.0}),
        ),
    ]
    try:
        orbax = begun(
            keras.callbacks.OrbaxCheckpoint(directory / "orbax", save_freq=1, max_to_keep=2)
        )
    except (AttributeError, ImportError):
        pass
    else:
        found.append(
            Way(
                "`keras.callbacks.OrbaxCheckpoint`",
                directory / "orbax",
                lambda: orbax.on_train_batch_end(0, {"loss": 1.0}),
                orbax.wait_until_finished,
            )
        )
    # Of the plain variables: a second asynchronous save of Keras' own raises an error.
    variables = [variable.value for variable in (*model.variables, *model.optimizer.variables)]
    checkpoint = tf.train.Checkpoint(variables=variables)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    path = str(directory / "tensorflow" / "checkpoint")
    found.append(
        Way(
            "`tf.train.Checkpoint`, asynchronous",
            directory / "tensorflow",
            lambda: checkpoint.write(path, options=options),
            checkpoint.sync,
        )
    )
    return found


def measure(model, found, rounds, step):
    quiet = []
    for number in range(rounds + 1):
        quiet.append(timed(lambda: [step() for _ in range(STEPS_AFTER)]))
        for way in found:
            with PeakMemory() as memory:
                hold = timed(way.save)
                after = timed(lambda: [step() for _ in range(STEPS_AFTER)])
                way.wait()
            require_written(way, 12 * model.count_params())
            if number:
                way.hold.append(hold)
                way.after.append(after)
                way.memory.append(memory.extra)
    return quiet


def require_written(way, expected):
    size = sum(path.stat().st_size for path in way.directory.rglob("*") if path.is_file())
    if size < expected / 2:
        raise RuntimeError(f"{way.name} wrote {size:,} bytes of {expected:,}.")


def timed(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def report(model, found, quiet, rounds):
    reference = statistics.median(found[1].hold)
    usual = statistics.median(quiet)
    rows = [
        (
            way.name,
            f"{1e3 * statistics.median(way.hold):.0f}",
            f"{statistics.median(way.hold) / reference:.1%}",
            f"{1e3 * (statistics.median(way.after) - usual):+.0f}",
            f"{statistics.median(way.memory) / 2**20:.0f}",
        )
        for way in found
    ]
    headers = (
        "saved with",
        "holds the training thread, ms",
        "share of ModelCheckpoint's",
        "20 steps after it, extra ms",
        "extra memory, MiB",
    )
    return (
        "`benchmarks/checkpoint.py`. Bar: BestNCheckpoint holds the training thread for at most a "
        "tenth of ModelCheckpoint's time.\n\n"
        f"{model.count_params() / 1e6:.1f} million parameters, Adam; medians of {rounds} saves, in "
        f"turn in one process; 20 quiet steps take {1e3 * usual:.0f} ms, from "
        f"{1e3 * min(quiet):.0f} to {1e3 * max(quiet):.0f}: smaller differences than these say "
        f"nothing. A save writes {12 * model.count_params() / 2**20:.0f} MiB.\n\n"
        f"{markdown_table(headers, rows)}\n\n{describe_machine()}, {orbax_version()}, load average "
        f"{os.getloadavg()[0]:.1f}.\n"
    )


def orbax_version():
    try:
        return f"orbax-checkpoint {version('orbax-checkpoint')}"
    except ModuleNotFoundError:
        return "without orbax-checkpoint"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="saves of each way that count")
    parser.add_argument("--units", type=int, default=2048, help="width; 2048 is 25 M parameters")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    options = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)

    model = make_model(options.units)
    x = np.random.default_rng(0).normal(size=(16, options.units)).astype("float32")
    model.fit(x, x, batch_size=16, verbose=0)
    batch = tf.constant(x)
    train = tf.function(lambda: model.train_step((batch, batch)))

    def step():
        train()["loss"].numpy()

    step()
    directory = Path(tempfile.mkdtemp(prefix="tfx-tips-benchmark-"))
    try:
        found = ways(model, directory)
        quiet = measure(model, found, options.rounds, step)
        text = report(model, found, quiet, options.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(text)
    if options.write:
        write_section("Saving a checkpoint", text)


if __name__ == "__main__":
    main()
