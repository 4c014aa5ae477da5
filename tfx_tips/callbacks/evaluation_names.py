"""Names of evaluation sets and of their metrics: who else uses or expects them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfx_tips.callbacks.run_guard import FitRun


def named_sets(data: Any, name: str) -> dict[str, Any]:
    """Returns the sets by name: a dictionary as it is, anything else under `name`.

    Raises:
        ValueError: If the name is empty, or a dictionary holds no whole sets.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"`name` must be a string that is not empty. Received: name={name!r}. "
            "It is the prefix of the metrics' names, as in 'val_loss'."
        )
    if not isinstance(data, Mapping):
        return {name: data}
    bare = [key for key, value in data.items() if hasattr(value, "__array__")]
    if bare or not data or not all(isinstance(key, str) for key in data):
        raise ValueError(
            "A dictionary of validation data holds whole sets by name, for example "
            "{'clean': (x, y), 'noisy': dataset}. Received: a dictionary with the keys "
            f"{list(data)}, of which {bare} are single arrays. Pass a model's dictionary "
            "of inputs as `(inputs, targets)`."
        )
    return dict(data)


def names_taken(names: Sequence[str]) -> ValueError:
    """Returns the error to raise where training's own logs hold the same names."""
    return ValueError(
        "Metrics of an evaluation must have other names than those in training's own logs. "
        f"Received: {list(names)} in both. Pass another `name` to StepEvaluation."
    )


def require_free_names(set_names: Sequence[str], run: FitRun) -> None:
    """Raises if `fit` reports validation results of its own under the same names.

    Raises:
        ValueError: If it does.
    """
    if "val" in set_names and run.has_validation_data():
        raise ValueError(
            "`fit` was given validation data, whose results are named `val_...`, too. "
            "Received: StepEvaluation(name='val') together with `validation_data` in `fit`. "
            "Leave out one of the two, or pass another `name`."
        )


def require_first_place(evaluation: Any, run: FitRun) -> None:
    """Raises if a callback listed before `evaluation` monitors one of its metrics.

    Callbacks that subscribe to it by their attribute `evaluation` may stand anywhere.

    Raises:
        ValueError: If one does.
    """
    for callback in run.callbacks():
        if callback is evaluation:
            return
        subscribes = getattr(callback, "evaluation", None) is evaluation
        if getattr(callback, "monitor", None) in evaluation.metric_names and not subscribes:
            raise ValueError(
                f"{type(callback).__name__} monitors {callback.monitor!r} and stands before "
                "the StepEvaluation that reports it, so it would never see a value. "
                "List the StepEvaluation first in `callbacks`."
            )
