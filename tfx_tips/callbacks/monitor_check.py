"""Making sure before the first step that a monitored metric will exist and has a direction."""

from collections.abc import Mapping
from typing import Any, cast

import keras

from tfx_tips._core.ranking import Mode, require_mode
from tfx_tips.callbacks.checkpoint_record import scalar_metrics
from tfx_tips.callbacks.declared_metrics import declared_direction, declared_names, is_declared
from tfx_tips.callbacks.monitored_metric import resolve_mode
from tfx_tips.callbacks.run_guard import FitRun


def resolve_monitor(
    model: Any, run: FitRun, *, monitor: str, mode: str, evaluation: Any | None
) -> tuple[Mode, bool]:
    """Returns the direction of `monitor`, and whether it is certain that it will be logged.

    With an evaluation by steps its first batch has told names and shapes; without, the compile
    configuration does, except where a train step or a callback of the user's own may log more.

    Args:
        model: The model being trained.
        run: Its `fit`.
        monitor: The metric's name in logs.
        mode: "auto", "min" or "max".
        evaluation: The `StepEvaluation` whose results count, or None for the epochs' logs.

    Raises:
        ValueError: If the metric will never exist, is not a single number, or `mode="auto"`
            does not decide.
    """
    require_mode(mode)
    if evaluation is not None and not evaluation.is_open:
        raise ValueError(
            "The `evaluation` must itself be among the callbacks of `fit`. Received: a "
            "StepEvaluation that does not take part in this `fit`. List it first: "
            "`callbacks=[evaluation, ...]`."
        )
    source = evaluation or _evaluation_of(run, monitor)
    if source is not None:
        _require_scalar(monitor, source)
        return resolve_mode(model, monitor, mode), True
    name = monitor.removeprefix("val_")
    is_validation = name != monitor
    open_ended = _logs_more(model, "test_step" if is_validation else "train_step", run)
    if is_validation and run.found and not run.has_validation_data() and not open_ended:
        raise ValueError(
            f"`monitor` must be a metric that will be logged. Received: monitor={monitor!r} in a "
            "`fit` without validation data. Pass `validation_data` to `fit`, or better a "
            "StepEvaluation as `evaluation`."
        )
    try:
        direction = declared_direction(model, name)
        certain = True
    except KeyError as error:
        if not open_ended:
            known = ", ".join(declared_names(model))
            raise ValueError(
                f"`monitor` must be a metric that will be logged. Received: monitor={monitor!r}, "
                f"where the model is compiled with: {known}. Correct the name, or add the metric "
                "in `compile`."
            ) from error
        direction, certain = None, False
    if mode != "auto":
        return cast(Mode, mode), certain
    if direction is None:
        raise ValueError(
            f"`mode='auto'` cannot tell whether a larger or a smaller {monitor!r} is better. "
            f"Received: monitor={monitor!r}, mode='auto'. Pass `mode='max'` or `mode='min'`."
        )
    return direction, certain


def require_order(run: FitRun, evaluation: Any | None, follower: Any) -> None:
    """Raises if a callback stands before the evaluation that it follows.

    At the end of training it would have closed before the last evaluation is made.

    Raises:
        ValueError: If it does.
    """
    order = [id(callback) for callback in run.callbacks()]
    if id(evaluation) in order and order.index(id(follower)) < order.index(id(evaluation)):
        name = type(follower).__name__
        raise ValueError(
            f"The `evaluation` must stand before the {name} that follows it. Received: "
            f"callbacks in which it stands later. List the {type(evaluation).__name__} first: "
            "`callbacks=[evaluation, ...]`."
        )


def require_value(logs: Mapping[str, Any], monitor: str) -> None:
    """Raises unless `logs` hold a single number under the name `monitor`.

    Raises:
        ValueError: If they do not.
    """
    if monitor not in scalar_metrics(logs):
        problem = "is not a single number" if monitor in logs else "is not logged"
        raise ValueError(
            "`monitor` must be a single number that is logged. Received: "
            f"monitor={monitor!r}, which {problem}; logged are: {', '.join(sorted(logs))}. "
            "Nothing was saved or removed. Correct `monitor`, or pass a StepEvaluation as "
            "`evaluation`."
        )


def _evaluation_of(run: FitRun, monitor: str) -> Any | None:
    for callback in run.callbacks():
        if monitor in getattr(callback, "metric_names", ()):
            return callback
    return None


def _require_scalar(monitor: str, evaluation: Any) -> None:
    if monitor not in evaluation.metric_names:
        raise ValueError(
            f"`monitor` must be a metric of the evaluation. Received: monitor={monitor!r}. "
            f"The evaluation reports: {', '.join(evaluation.metric_names)}."
        )
    if monitor not in evaluation.scalar_names:
        raise ValueError(
            f"`monitor` must be a single number. Received: monitor={monitor!r}, which has a value "
            "for each class or output. Average it, or monitor one of: "
            f"{', '.join(evaluation.scalar_names)}."
        )


def _logs_more(model: Any, step: str, run: FitRun) -> bool:
    """Returns whether code of the user's own may log what the configuration does not name."""
    if not is_declared(model) or getattr(type(model), step) is not getattr(keras.Model, step):
        return True
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        return True
    return any(
        not type(callback).__module__.startswith(("keras.", "tfx_tips."))
        for callback in run.callbacks()
    )
