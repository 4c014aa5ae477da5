"""The usual callbacks, in the order in which they work together."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tfx_tips._core.schedule import Schedule
from tfx_tips.callbacks.best_n_checkpoint import BestNCheckpoint
from tfx_tips.callbacks.experiment_tracker import ExperimentTracker
from tfx_tips.callbacks.step_evaluation import StepEvaluation


def recommended(
    log_dir: str | os.PathLike[str],
    validation_data: Any,
    *,
    every_steps: int | Sequence[int] | Schedule,
    monitor: str = "val_loss",
    mode: str = "auto",
    keep: int = 3,
    study: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> list[keras.callbacks.Callback]:
    """Makes the callbacks that most trainings want: evaluate by steps, keep the best, note it.

    Further callbacks, such as `EarlyStopping`, belong behind them in `fit`'s list.

    Args:
        log_dir: A local folder for this run: TensorBoard's scalars in it, files in
            `checkpoints`, and tables in `experiments`, which later runs extend.
        validation_data: As for `StepEvaluation`.
        every_steps: When to evaluate, in optimizer steps.
        monitor: The metric that chooses the best.
        mode: "min", "max" or "auto".
        keep: How many of the best checkpoints stay, besides the latest.
        study: The study that the run belongs to; by default named after `log_dir`.
        parameters: The run's hyperparameters, recorded in its row.

    Returns:
        `[StepEvaluation, BestNCheckpoint, ExperimentTracker]`.

    Raises:
        ValueError: If an argument is not valid.

    Example:
        model.fit(train, epochs=10, callbacks=recommended("run", (x_val, y_val), every_steps=500))
    """
    folder = Path(log_dir)
    evaluation = StepEvaluation(validation_data, every_steps=every_steps, log_dir=folder)
    checkpoints = BestNCheckpoint(
        folder / "checkpoints", monitor=monitor, mode=mode, keep=keep, evaluation=evaluation
    )
    tracker = ExperimentTracker(
        folder / "experiments",
        study=study or folder.resolve().name,
        parameters=parameters,
        monitor=monitor,
        mode=mode,
        evaluation=evaluation,
        checkpoint=checkpoints,
    )
    return [evaluation, checkpoints, tracker]
