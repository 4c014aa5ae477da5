"""Going on with a run that was broken off, in the middle of an epoch if need be."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfx_tips._core.validation import require_positive_int
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_restore import load_into
from tfx_tips.callbacks.checkpoint_selection import first_intact
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.callbacks.model_snapshot import restore_generators
from tfx_tips.callbacks.run_guard import end_broken_runs
from tfx_tips.callbacks.run_plan import RunPlan, part_of
from tfx_tips.callbacks.step_callback import batches_per_step


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on; all zero for one that has not begun.

    Attributes:
        step: Finished optimizer steps.
        epoch: The epoch to go on with, counted from 0: `fit`'s `initial_epoch`.
        batch: Batches of that epoch that are finished.
        record: The checkpoint that was restored, or None.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    record: CheckpointRecord | None = None


def resume(model: Any, directory: str | os.PathLike[str]) -> ResumePoint:
    """Restores weights, optimizer and random generators from the latest checkpoint.

    Where the latest file is damaged, the one before it is taken, with a logged warning. A
    directory without checkpoints leaves the model as it is, so that the same script starts a
    run and resumes it. To be called on every host.

    Not restored, as the model does not hold them: random generators of Python, NumPy and
    `keras.random` without a seed, and what other callbacks remember. Where replicas hold
    different values (moving statistics of a BatchNormalization that is not synchronised), all
    of them get the first one's, which are those that Keras saves.

    Args:
        model: A model built and compiled as for the run that is resumed.
        directory: Of the run's `BestNCheckpoint`.

    Returns:
        Where to go on; `resume_fit` does it.

    Raises:
        ValueError: If the model does not fit the checkpoint, or the checkpoint holds no state
            of the model's optimizer; the model is unchanged then.
        DamagedCheckpointError: If there are checkpoints, and none is intact.
    """
    end_broken_runs()  # they may still have something to write here
    store = CheckpointStore(directory)

    def restore(record: CheckpointRecord) -> ResumePoint:
        with store.local_file(record) as path:
            load_into(model, path, require_optimizer=True)
        restore_generators(model, record.random_generators)
        return ResumePoint(record.step, record.epoch, record.batch, record)

    records = store.records()
    return first_intact(reversed(records), restore) if records else ResumePoint()


def resume_fit(
    model: Any,
    make_dataset: Callable[[int], Any],
    directory: str | os.PathLike[str],
    *,
    epochs: int,
    steps_per_epoch: int,
    callbacks: Sequence[Any] = (),
    **fit_arguments: Any,
) -> keras.callbacks.History:
    """Starts a run or goes on with it: resumes, finishes the broken epoch, trains the others.

    The run ends with the weights, optimizer and evaluations by steps of one that was never
    broken off, bit for bit where the operations are deterministic. Not promised: the training
    metrics of the epoch that was broken off, whose first batches are not seen again, and the
    inner states of other callbacks.

    Args:
        model: A model built and compiled as for the run that is resumed.
        make_dataset: Makes the batches from the given one on, counted over the whole run, as
            `tfx_tips.data.from_step` does; at least as many as are left.
        directory: Of the `BestNCheckpoint` among the callbacks.
        epochs: Epochs of the whole run.
        steps_per_epoch: Batches of an epoch; a multiple of the model's `steps_per_execution`.
        callbacks: As for `fit`.
        **fit_arguments: Further arguments of `fit`.

    Returns:
        The history of the epochs trained by this call; empty if the run was complete.

    Raises:
        ValueError: If a number is not valid, or as `resume`.
    """
    require_positive_int("epochs", epochs, "It counts the epochs of the whole run.")
    require_positive_int("steps_per_epoch", steps_per_epoch, "It counts batches.")
    per_execution = model.steps_per_execution
    if steps_per_epoch % per_execution:
        raise ValueError(
            "`steps_per_epoch` must be a multiple of the model's `steps_per_execution`, or Keras "
            f"makes further steps to fill the last execution. Received: steps_per_epoch="
            f"{steps_per_epoch}, steps_per_execution={per_execution}."
        )
    point = resume(model, directory)
    accumulated = batches_per_step(model.optimizer)
    done = min(point.epoch * steps_per_epoch + point.batch, epochs * steps_per_epoch)
    first_epoch, first_batch = divmod(done, steps_per_epoch)
    if first_batch % per_execution:
        raise ValueError(
            f"The run was broken off after batch {first_batch} of an epoch, which is no multiple "
            f"of the model's `steps_per_execution`. Received: steps_per_execution="
            f"{per_execution}. Compile the model with the number of the run that is resumed."
        )
    # The data comes in its order; Keras would warn that it cannot shuffle it.
    fit_arguments = {"shuffle": False, **fit_arguments}
    history = keras.callbacks.History()
    history.set_model(model)
    history.on_train_begin()

    def fit(epoch: int, last_epoch: int, *, batch: int, continues: bool) -> None:
        finished = epoch * steps_per_epoch + batch
        plan = RunPlan(
            epochs=epochs,
            start_step=finished // accumulated,
            accumulated_batches=finished % accumulated,
            total_steps=epochs * steps_per_epoch // accumulated,
            start_batch=batch,
            continues=continues,
            more_follows=last_epoch < epochs,
        )
        with part_of(plan):
            part = model.fit(
                make_dataset(finished),
                initial_epoch=epoch,
                epochs=last_epoch,
                steps_per_epoch=steps_per_epoch - batch,
                callbacks=list(callbacks),
                **fit_arguments,
            )
        history.epoch += part.epoch
        for name, values in part.history.items():
            # Not one value for each epoch: an evaluation by steps may fall into none of it.
            history.history.setdefault(name, []).extend(values)

    if first_batch:
        fit(first_epoch, first_epoch + 1, batch=first_batch, continues=False)
        first_epoch += 1
    if first_epoch < epochs and not (first_batch and model.stop_training):
        fit(first_epoch, epochs, batch=0, continues=first_batch > 0)
    return history
