"""Putting a checkpoint's values into a model that is there already."""

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_selection import first_intact, rank_checkpoints
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.callbacks.keras_file import StoredShapes, stored_shapes

_logger = logging.getLogger(__name__)


def restore_best(
    model: Any, directory: str | os.PathLike[str], *, monitor: str | None = None, mode: str = "auto"
) -> CheckpointRecord:
    """Loads the weights of the best checkpoint into a model, and tells which one it was.

    The optimizer's state comes with them where the model is compiled and the file has it
    (one of another kind stays as it is, with a logged warning). Random generators
    stay as they are. Which checkpoint is the best, and what happens to damaged ones, is
    told by `best_checkpoint`.

    Under `tf.distribute`, to be called on every host, each of which reads the directory.
    Costs reading the file twice and, while loading, a copy of the model's values on the host.

    Args:
        model: A built model of the architecture that was trained.
        directory: A local path, or a URL that fsspec knows.
        monitor: Any metric that the checkpoints record; by default the one that ranked them.
        mode: "min", "max", or "auto" for the recorded direction.

    Returns:
        The record of the checkpoint that was loaded.

    Raises:
        CheckpointError: As `best_checkpoint`, also the errors derived from it.
        ValueError: If the model is not built or the checkpoint does not fit it, and as
            `best_checkpoint`. The model is unchanged then.

    Example:
        model.fit(train, epochs=10, callbacks=[BestNCheckpoint("ckpt", monitor="val_loss")])
        best = restore_best(model, "ckpt")
        print(best.step, best.metrics["val_loss"])
    """
    store = CheckpointStore(directory)

    def load(record: CheckpointRecord) -> CheckpointRecord:
        with store.local_file(record) as path:
            load_into(model, path)
        return record

    ranked = rank_checkpoints(
        store.records(), directory=store.directory, monitor=monitor, mode=mode
    )
    return first_intact(ranked, load)


def load_into(model: Any, path: Path, *, require_optimizer: bool = False) -> bool:
    """Loads a `.keras` or `.weights.h5` file into a built model, all of it or nothing.

    `model.load_weights` alone stops in the middle where an architecture does not fit,
    ignores layers that the model does not have, and skips the state of an optimizer that
    is not built yet.

    Args:
        model: A built model; where it is compiled, its optimizer is built if need be.
        path: The local file.
        require_optimizer: Whether it is an error if the optimizer's state cannot be loaded.

    Returns:
        Whether the optimizer's state was loaded too.

    Raises:
        ValueError: If the model is not built or the file does not fit it, or the optimizer
            where it is required. The model's and the optimizer's values are unchanged then.
    """
    if not model.built:
        raise ValueError(
            "A checkpoint can be loaded into a built model only. "
            f"Received: model={model.name!r}, which has no weights yet. Call it once on a batch "
            "of data, or call `model.build(input_shape)`."
        )
    optimizer = model.optimizer if model.compiled else None
    if optimizer is not None:
        build_optimizer(model)
    stored = stored_shapes(path)
    fits = optimizer is not None and len(stored.optimizer) == len(optimizer.variables)
    if require_optimizer and not fits:
        raise _optimizer_does_not_fit(path, stored, optimizer)
    _require_no_more_than_in(model, stored, path)
    variables = [*model.weights, *(optimizer.variables if optimizer is not None else ())]
    if optimizer is not None and stored.optimizer and not fits:
        _logger.warning(
            "The optimizer stays as it is: %s holds %d variables of another one's state, %s "
            "has %d.",
            path.name,
            len(stored.optimizer),
            type(optimizer).__name__,
            len(optimizer.variables),
        )
    with _put_back_after_errors(variables), warnings.catch_warnings():
        # Said above where it matters; Keras warns also where no state was saved.
        warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
        try:
            model.load_weights(str(path))
        except ValueError as error:
            raise _does_not_fit(path, model, str(error)) from error
    return fits


def build_optimizer(model: Any) -> None:
    """Builds the optimizer of a built model if it has not made its first step yet.

    Until then it has no state that could be stored or loaded.
    """
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        # Only on TensorFlow do models have a strategy.
        strategy = getattr(model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _put_back_after_errors(variables: list[Any]) -> Iterator[None]:
    # A copy on every backend: what `convert_to_numpy` gives may share the variable's memory.
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        raise


def _require_no_more_than_in(model: Any, stored: StoredShapes, path: Path) -> None:
    """Raises where the file has variables for which the model has no place.

    Layers may store more or less than their weights (merged adapters, tables), so a larger
    number alone proves nothing; then the places are compared that the model would fill.
    """
    if len(stored.model) <= len(model.weights):
        return
    with tempfile.TemporaryDirectory(prefix="tfx-tips-") as folder:
        own = Path(folder) / "own.weights.h5"
        model.save_weights(str(own))
        surplus = sorted(stored.model.keys() - stored_shapes(own).model.keys())
    if surplus:
        raise _does_not_fit(
            path, model, f"the file has variables that the model lacks: {', '.join(surplus)}."
        )


def _does_not_fit(path: Path, model: Any, reason: str) -> ValueError:
    return ValueError(
        f"The model must have the architecture that {path.name} was saved from. "
        f"Received: model={model.name!r}. Build it as it was in training; its values are "
        f"unchanged. What does not fit: {reason}"
    )


def _optimizer_does_not_fit(path: Path, stored: StoredShapes, optimizer: Any) -> ValueError:
    received = (
        "a model that is not compiled"
        if optimizer is None
        else f"{type(optimizer).__name__} with {len(optimizer.variables)} variables"
    )
    remedy = (
        "Compile the model as it was in training"
        if stored.optimizer
        else "The file was saved without it; load the weights alone with `restore_best`"
    )
    return ValueError(
        f"The optimizer must be the one whose state is in {path.name}, which holds "
        f"{len(stored.optimizer)} of its variables. Received: {received}. {remedy}."
    )
