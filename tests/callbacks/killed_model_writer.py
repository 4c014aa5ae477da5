"""Run as a program: stores a real Keras model and is killed at the k-th file operation, for each k.

    python killed_model_writer.py BEFORE AFTER

For k from 1 a child process works on a copy of the folder BEFORE, which stays in AFTER under
the number k, until one gets to its end. Only operations inside the
copied folder count: Keras has many elsewhere, between which nothing changes there.
"""

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import keras

from tfx_tips.callbacks.checkpoint_store import CheckpointStore


def kill_at(operation: int, directory: Path) -> None:
    made = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal made
        inside = bool(arguments) and str(arguments[0]).startswith(str(directory))
        if inside and (event == "open" or event.startswith("os.")):
            made += 1
            if made == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def work(directory: Path, operation: int) -> None:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    kill_at(operation, directory)
    store = CheckpointStore(directory)
    store.clean()
    first, _ = store.records()
    store.add(
        model.save,
        suffix=".keras",
        step=30,
        epoch=0,
        batch=30,
        metrics={"val_loss": 0.25},
        monitor="val_loss",
        mode="min",
    )
    store.remove(first)


def main(before: Path, after: Path) -> None:
    for operation in itertools.count(1):
        directory = after / str(operation)
        shutil.copytree(before, directory)
        # Keras is imported once for all, and first used after the fork: TensorFlow's threads
        # would not live on in a child.
        child = os.fork()
        if child == 0:
            work(directory, operation)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise SystemExit(f"the child of operation {operation} ended with status {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
