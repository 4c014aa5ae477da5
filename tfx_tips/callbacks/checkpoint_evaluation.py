"""Evaluating a stored checkpoint on a full set, and recording the values with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from tfx_tips.callbacks.checkpoint_record import CheckpointRecord, scalar_metrics
from tfx_tips.callbacks.checkpoint_restore import load_into
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.callbacks.monitored_metric import known_directions


def evaluate_checkpoint(
    store: CheckpointStore,
    record: CheckpointRecord,
    make_validation: Callable[[], Any],
    *,
    name: str = "full",
    batch_size: int | None = None,
) -> dict[str, float]:
    """Evaluates a checkpoint and records the values in its manifest.

    The values are recorded as `<name>_loss` and so on, so that
    `best_checkpoint(directory, monitor="full_loss")` chooses by them afterwards.

    Args:
        store: The directory that the checkpoint stands in.
        record: The checkpoint.
        make_validation: Returns validation data as `fit` takes it (a tuple of arrays, a
            `tf.data.Dataset`, a `keras.utils.PyDataset`), or a pair of a compiled model, into
            which the checkpoint is then loaded, and such data.
        name: What stands before the metrics' names.
        batch_size: Rows a batch where the data are arrays; Keras' default otherwise.

    Returns:
        The values, under the names with which they are recorded.

    Raises:
        CheckpointError: If the checkpoint's file is damaged or gone.
        ValueError: If a model is needed and not given, does not fit, or is not compiled.
    """
    model, data = _model_and_data(make_validation())
    with store.local_file(record) as path:
        model = _load(record, path, model)
    values = evaluate_model(model, data, batch_size=batch_size)
    metrics = {f"{name}_{metric}": value for metric, value in values.items()}
    store.annotate(record, metrics, directions=known_directions(model, metrics))
    return metrics


def evaluate_model(model: Any, data: Any, *, batch_size: int | None) -> dict[str, float]:
    """Returns the loss and those metrics of a compiled model that are single numbers.

    Raises:
        ValueError: If a batch size is given for data that come in batches.
    """
    if isinstance(data, (tuple, list)):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        values = model.evaluate(
            x, y, sample_weight=weights, batch_size=batch_size, verbose=0, return_dict=True
        )
    elif batch_size is not None:
        raise ValueError(
            "`batch_size` can be chosen for arrays only. "
            f"Received: batch_size={batch_size!r} with a {type(data).__name__}, which comes in "
            "batches already. Leave it out."
        )
    else:
        values = model.evaluate(data, verbose=0, return_dict=True)
    return scalar_metrics(values)


def _model_and_data(made: Any) -> tuple[Any, Any]:
    if isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], keras.Model):
        return made[0], made[1]
    return None, made


def _load(record: CheckpointRecord, path: Path, model: Any) -> Any:
    if model is not None:
        load_into(model, path)
    elif record.weights_only:
        raise ValueError(
            f"The checkpoint {record.path} holds weights only, so a model is needed to evaluate "
            "it. Let the function return `(model, data)` with a compiled model."
        )
    else:
        model = keras.models.load_model(path)
    if not model.compiled:
        raise ValueError(
            "The model must be compiled to be evaluated. "
            f"Received: model={model.name!r}, which is not. Let the function return "
            "`(model, data)` with a compiled model."
        )
    return model
