"""A small training that shows the package at work, on data that needs no network."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_tips._core.validation import require_positive_int
from tfx_tips.callbacks.best_n_checkpoint import BestNCheckpoint
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_selection import best_checkpoint, list_checkpoints
from tfx_tips.callbacks.evaluation_record import EvaluationRecord
from tfx_tips.callbacks.experiment_tracker import ExperimentTracker
from tfx_tips.callbacks.step_evaluation import StepEvaluation
from tfx_tips.data.pipeline import from_step
from tfx_tips.distribute.seeds import seeds

_BATCH_SIZE = 64
_EVALUATIONS = 12


@dataclass(frozen=True)
class QuickstartResult:
    """What the quick start found.

    Attributes:
        run_directory: Checkpoints and TensorBoard's scalars of this run.
        experiments_directory: The study's tables, which further runs extend.
        evaluations: All evaluations, the earliest first.
        checkpoints: The checkpoints kept.
        chosen: The one with the best validation accuracy.
        reloaded_accuracy: Its accuracy on the validation set after loading the file.
        seconds: Wall time of training and evaluations.
    """

    run_directory: Path
    experiments_directory: Path
    evaluations: list[EvaluationRecord]
    checkpoints: list[CheckpointRecord]
    chosen: CheckpointRecord
    reloaded_accuracy: float
    seconds: float


def run_quickstart(directory: Path, *, steps: int, seed: int, verbose: int = 1) -> QuickstartResult:
    """Trains a small convolutional net on scikit-learn's handwritten digits.

    The same seed gives the same numbers on the same machine.

    Args:
        directory: Gets a new folder `run-N` for each call, and the study's tables.
        steps: Optimizer steps; at least 1.
        seed: From which initial weights, split and batches follow; at least 0.
        verbose: As for `fit`; 1 shows a progress bar.

    Raises:
        ImportError: If scikit-learn is missing.
        ValueError: If a number is not valid.
    """
    require_positive_int("steps", steps, "Pass for example `steps=600`.")
    split = seeds(seed)
    (x, y), validation = digits(split.data)
    keras.utils.set_random_seed(split.initialization)
    tf.config.experimental.enable_op_determinism()
    model = small_convolutional_net()
    run_directory = _new_run_directory(directory)
    evaluation = StepEvaluation(
        validation, every_steps=max(1, steps // _EVALUATIONS), log_dir=run_directory
    )
    checkpoints = BestNCheckpoint(
        run_directory / "checkpoints", monitor="val_accuracy", evaluation=evaluation, seed=seed
    )
    tracker = ExperimentTracker(
        directory / "experiments",
        study="handwritten digits",
        parameters={"steps": steps, "seed": seed, "batch_size": _BATCH_SIZE},
        evaluation=evaluation,
        checkpoint=checkpoints,
    )
    begin = time.perf_counter()
    model.fit(
        from_step(_batches(x, y, split.data)),
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[evaluation, checkpoints, tracker],
        verbose=verbose,
    )
    seconds = time.perf_counter() - begin
    chosen = best_checkpoint(run_directory / "checkpoints")
    reloaded = keras.models.load_model(chosen.path)
    metrics = reloaded.evaluate(*validation, verbose=0, return_dict=True)
    return QuickstartResult(
        run_directory=run_directory,
        experiments_directory=directory / "experiments",
        evaluations=evaluation.history,
        checkpoints=list_checkpoints(run_directory / "checkpoints"),
        chosen=chosen,
        reloaded_accuracy=metrics["accuracy"],
        seconds=seconds,
    )


def digits(seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns scikit-learn's 1,797 handwritten digits, split by `seed`.

    Returns:
        `(x, y)` of 1,400 training and 397 validation examples: float32 images from 0 to 1,
        shape `(rows, 8, 8, 1)`, and int64 labels from 0 to 9, shape `(rows,)`.

    Raises:
        ImportError: If scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ImportError(
            "The quick start needs scikit-learn's data. Install it with "
            "pip install 'tfx-tips[quickstart]'."
        ) from error
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(seed).permutation(len(images))
    train, validation = order[:1400], order[1400:]
    return (images[train], labels[train]), (images[validation], labels[validation])


def small_convolutional_net() -> keras.Model:
    """Returns a compiled classifier of 8 by 8 images with 10 classes."""
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _batches(x: Any, y: Any, seed: int) -> Callable[[int], Any]:
    def make_batch(step: int) -> Any:
        rows = np.random.default_rng([seed, step]).integers(len(x), size=_BATCH_SIZE)
        return x[rows], y[rows]

    return make_batch


def _new_run_directory(directory: Path) -> Path:
    for number in itertools.count(1):
        candidate = directory / f"run-{number}"
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("unreachable")
