"""Layers. Importing this package imports Keras and registers them for loading saved models."""

from tfx_tips._core.tensorflow_extra import explain_missing_tensorflow

with explain_missing_tensorflow():
    from tfx_tips.layers.batch_norm_conversion import convert_batch_norm
    from tfx_tips.layers.ghost_batch_normalization import GhostBatchNormalization

__all__ = ["GhostBatchNormalization", "convert_batch_norm"]


def __dir__() -> list[str]:
    return sorted(__all__)
