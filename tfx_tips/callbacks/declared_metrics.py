"""What a compiled model will log, as far as its compile configuration tells."""

from collections.abc import Iterator
from typing import Any

import keras

from tfx_tips._core.ranking import Mode, direction_of_keras_class

# Their default is one value for each class.
_VECTORS = {"F1Score": "average", "FBetaScore": "average", "R2Score": "class_aggregation"}


def declared_direction(model: Any, name: str) -> Mode | None:
    """Returns the direction of a metric that the model was compiled with, or None if unknown.

    Args:
        model: A compiled model, which need not have seen data.
        name: A name as in `logs` of training, without an evaluation's prefix.

    Raises:
        KeyError: If the configuration names no loss or metric that would log `name`.
        ValueError: If what it names is not a single number.
    """
    config = _compile_config(model)
    if name == "loss" or (name.endswith("_loss") and keras.tree.is_nested(config.get("loss"))):
        return "min"
    found = []
    for key in ("metrics", "weighted_metrics"):
        for metric_name, class_name, settings in _metrics(config.get(key)):
            if name == metric_name or name.endswith(f"_{metric_name}"):
                found.append((len(metric_name), class_name, settings))
    if not found:
        raise KeyError(name)
    _, class_name, settings = max(found, key=lambda candidate: candidate[0])
    if class_name in _VECTORS and settings.get(_VECTORS[class_name]) is None:
        raise ValueError(
            f"`monitor` must be a single number. Received: monitor={name!r}, a {class_name} "
            f"with one value for each class. Give it `{_VECTORS[class_name]}`, such as 'macro' "
            "or 'uniform_average'."
        )
    return direction_of_keras_class(class_name)


def declared_names(model: Any) -> list[str]:
    """Returns the names of the metrics that the model was compiled with, the loss first."""
    config = _compile_config(model)
    names = [n for key in ("metrics", "weighted_metrics") for n, _, _ in _metrics(config.get(key))]
    return ["loss", *names]


def is_declared(model: Any) -> bool:
    """Returns whether the configuration tells anything: Keras cannot serialize all it trains."""
    return bool(_compile_config(model))


def _compile_config(model: Any) -> dict[str, Any]:
    try:
        return model.get_compile_config() or {}
    except TypeError:  # such as a loss that is a `functools.partial`
        return {}


def _metrics(config: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields name, class and settings of each metric in a part of the configuration."""
    if isinstance(config, str):
        yield config, _class_of(config), {}
    elif isinstance(config, (list, tuple)):
        for part in config:
            yield from _metrics(part)
    elif isinstance(config, dict) and "class_name" in config:
        settings = config["config"]
        if isinstance(settings, dict):
            is_keras = str(config.get("module")).startswith("keras")
            yield settings.get("name", ""), config["class_name"] if is_keras else "", settings
        else:
            yield str(settings), "", {}
    elif isinstance(config, dict):
        for part in config.values():
            yield from _metrics(part)


def _class_of(identifier: str) -> str:
    # Keras chooses the class of these by the shapes of labels and outputs.
    if identifier.lower() in ("acc", "accuracy"):
        return "Accuracy"
    return type(keras.metrics.get(identifier)).__name__
