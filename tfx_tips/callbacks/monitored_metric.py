"""What a callback's `monitor` and `mode` mean for a compiled model."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import keras

from tfx_tips._core.ranking import Mode, direction_of_keras_class, require_mode


def resolve_mode(model: Any, monitor: str, mode: str) -> Mode:
    """Returns whether smaller or larger values of `monitor` are better.

    With `mode="auto"` a loss is better when smaller, and a metric counts by the class of
    the built-in Keras metric that computes it. Everything else has to be told.

    Args:
        model: A compiled model; its metrics' names are known once it has seen a batch.
        monitor: A name as in `logs`, with or without an evaluation's prefix.
        mode: "auto", "min" or "max".

    Raises:
        ValueError: If `mode` is unknown, or "auto" does not decide.
    """
    require_mode(mode)
    if mode != "auto":
        return cast(Mode, mode)
    metrics = _metrics_behind(model, monitor)
    # Metrics of several outputs may have the same name; where they disagree, none decides.
    directions = {_direction(metric) for metric in metrics}
    if not metrics and (monitor == "loss" or monitor.endswith(("_loss", "/loss"))):
        directions = {"min"}
    direction = directions.pop() if len(directions) == 1 else None
    if direction is None:
        raise ValueError(
            f"`mode='auto'` cannot tell whether a larger or a smaller {monitor!r} is better. "
            f"Received: monitor={monitor!r}, mode='auto'. Pass `mode='max'` or `mode='min'`."
        )
    return direction


def known_directions(model: Any, names: Iterable[str]) -> dict[str, Mode]:
    """Returns the direction of each metric for which `mode="auto"` decides."""
    directions: dict[str, Mode] = {}
    for name in names:
        with contextlib.suppress(ValueError):
            directions[name] = resolve_mode(model, name, "auto")
    return directions


def compiled_metrics(model: Any) -> Iterator[Any]:
    """Yields the single metrics that the user compiled or the model owns, losses left out."""
    # The first is the tracker of the total loss; per-output losses are plain means, too.
    for metric in model.metrics[1:]:
        children = getattr(metric, "metrics", None)
        if children is not None:
            yield from children
        elif type(metric) is not keras.metrics.Mean:
            yield metric


def _metrics_behind(model: Any, name: str) -> list[Any]:
    """Returns the metrics that may report under `name`; none for losses and unknown names.

    A name in `logs` may have an evaluation's and an output's name in front of the metric's,
    so the longest metric name that ends it counts.
    """
    found = [
        metric
        for metric in compiled_metrics(model)
        if name == metric.name or name.endswith(f"_{metric.name}")
    ]
    longest = max((len(metric.name) for metric in found), default=0)
    return [metric for metric in found if len(metric.name) == longest]


def _direction(metric: Any) -> Mode | None:
    if not type(metric).__module__.startswith("keras."):
        return None
    return direction_of_keras_class(type(metric).__name__)
