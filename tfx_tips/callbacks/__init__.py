"""Callbacks for `model.fit(callbacks=[...])`, and what reads their files."""

from typing import TYPE_CHECKING

from tfx_tips._core.lazy import lazy_names
from tfx_tips._core.schedule import AtSteps, DenseThenSparse, EverySteps

if TYPE_CHECKING:
    from tfx_tips.callbacks.evaluation_record import EvaluationRecord
    from tfx_tips.callbacks.predictions import read_predictions
    from tfx_tips.callbacks.step_evaluation import StepEvaluation

__all__ = [
    "AtSteps",
    "DenseThenSparse",
    "EvaluationRecord",
    "EverySteps",
    "StepEvaluation",
    "read_predictions",
]

__getattr__ = lazy_names(
    __name__,
    {
        "EvaluationRecord": "evaluation_record",
        "StepEvaluation": "step_evaluation",
        "read_predictions": "predictions",
    },
)
