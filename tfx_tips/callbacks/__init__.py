"""Callbacks for `model.fit(callbacks=[...])`, and what reads their files."""

from typing import TYPE_CHECKING

from tfx_tips._core.lazy import lazy_names
from tfx_tips._core.schedule import AtSteps, DenseThenSparse, EverySteps

if TYPE_CHECKING:
    from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
    from tfx_tips.callbacks.checkpoint_restore import restore_best
    from tfx_tips.callbacks.checkpoint_selection import best_checkpoint, list_checkpoints
    from tfx_tips.callbacks.evaluation_record import EvaluationRecord
    from tfx_tips.callbacks.predictions import read_predictions
    from tfx_tips.callbacks.step_evaluation import StepEvaluation

__all__ = [
    "AtSteps",
    "CheckpointRecord",
    "DenseThenSparse",
    "EvaluationRecord",
    "EverySteps",
    "StepEvaluation",
    "best_checkpoint",
    "list_checkpoints",
    "read_predictions",
    "restore_best",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CheckpointRecord": "checkpoint_record",
        "EvaluationRecord": "evaluation_record",
        "StepEvaluation": "step_evaluation",
        "best_checkpoint": "checkpoint_selection",
        "list_checkpoints": "checkpoint_selection",
        "read_predictions": "predictions",
        "restore_best": "checkpoint_restore",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
