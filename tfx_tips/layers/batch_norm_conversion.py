"""A model's batch normalization, exchanged for ghosts of it."""

from collections.abc import Iterator
from typing import Any

import keras

from tfx_tips.layers.ghost_batch_normalization import GhostBatchNormalization

# Arguments of Keras' layer, in some versions, that this one answers otherwise.
_DROPPED = ("synchronized", "renorm", "renorm_clipping", "renorm_momentum")


def convert_batch_norm(
    model: keras.Model, virtual_batch_size: int = 64, **arguments: Any
) -> keras.Model:
    """Returns a copy of a model with `GhostBatchNormalization` for each BatchNormalization.

    Weights are copied, and inference is equal bit for bit. Nested models and wrappers such as
    TimeDistributed are converted inside; layers keep their names and whether they are trainable.
    The copy is not compiled. Call it inside `strategy.scope()` to train the copy there; it costs
    the memory of a second model.

    Args:
        model: A built Sequential or functional model; it stays as it is.
        virtual_batch_size: Examples behind one set of statistics.
        **arguments: Further arguments of `GhostBatchNormalization`, such as
            `replicas_per_group`; what Keras' layer has too keeps its value there if not named.

    Raises:
        ValueError: If the model is not built, is of a class of its own, or holds a
            BatchNormalization that cannot be exchanged: one with `renorm=True`, one of a
            subclass, or one that a layer makes for itself.

    Example:
        model = convert_batch_norm(keras.applications.ResNet50(), 64, replicas_per_group="all")
        model.compile("sgd", "sparse_categorical_crossentropy")
    """
    if not model.built or not _is_cloneable(model):
        raise ValueError(
            "`model` must be a built Sequential or functional model. "
            f"Received: model={model!r} (built={model.built}). Build it first; a model of a class "
            "of its own needs `GhostBatchNormalization` where it makes its layers."
        )

    def convert(layer: Any) -> Any:
        if _is_cloneable(layer):
            return convert_batch_norm(layer, virtual_batch_size, **arguments)
        config = _converted(layer.get_config(), virtual_batch_size, arguments)
        if type(layer) is keras.layers.BatchNormalization:
            return _ghost(config, virtual_batch_size, arguments)
        return layer.__class__.from_config(config)

    converted = keras.models.clone_model(model, clone_function=convert)
    left = sorted({layer.path or layer.name for layer in _batch_norms(converted)})
    if left:
        raise ValueError(
            "Every BatchNormalization must stand in the model itself, a nested model or a layer's "
            f"configuration, and be no subclass. Received: a model with {', '.join(left)}. "
            "Use `GhostBatchNormalization` where these are made."
        )
    converted.set_weights(model.get_weights())
    return converted


def _is_cloneable(layer: Any) -> bool:
    # What keras.models.clone_model can take apart.
    functional = isinstance(layer, keras.Model) and isinstance(layer, keras.Function)
    return functional or isinstance(layer, keras.Sequential)


def _converted(config: Any, virtual_batch_size: int, arguments: dict[str, Any]) -> Any:
    """Exchanges batch normalization inside a configuration, as wrappers hold it."""
    if isinstance(config, dict):
        config = {k: _converted(v, virtual_batch_size, arguments) for k, v in config.items()}
        is_keras = str(config.get("module", "")).startswith("keras")
        if config.get("class_name") == "BatchNormalization" and is_keras:
            layer = _ghost(config["config"], virtual_batch_size, arguments)
            return keras.saving.serialize_keras_object(layer)
        return config
    if isinstance(config, (list, tuple)):
        return type(config)(_converted(v, virtual_batch_size, arguments) for v in config)
    return config


def _ghost(
    config: dict[str, Any], virtual_batch_size: int, arguments: dict[str, Any]
) -> GhostBatchNormalization:
    if config.get("renorm"):
        raise ValueError(
            "Batch renormalization cannot be converted. "
            f"Received: a BatchNormalization with renorm=True, name={config.get('name')!r}. "
            "Make it with `renorm=False` first."
        )
    kept = {name: value for name, value in config.items() if name not in _DROPPED}
    return GhostBatchNormalization.from_config(
        kept | {"virtual_batch_size": virtual_batch_size} | arguments
    )


def _batch_norms(layer: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yields what is left of Keras' layer, wherever a layer keeps its parts."""
    seen = set() if seen is None else seen
    for part in _parts(layer):
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, keras.layers.BatchNormalization) and not isinstance(
            part, GhostBatchNormalization
        ):
            yield part
        yield from _batch_norms(part, seen)


def _parts(layer: Any) -> list[Any]:
    values = [*vars(layer).values(), *getattr(layer, "layers", ())]
    flat = keras.tree.flatten([v for v in values if isinstance(v, (list, tuple, dict))])
    return [v for v in [*values, *flat] if isinstance(v, keras.Layer)]
