"""Callbacks for `model.fit(callbacks=[...])`, and what reads their files."""

from typing import TYPE_CHECKING

from tfx_tips._core.lazy import lazy_names
from tfx_tips._core.schedule import AtSteps, DenseThenSparse, EverySteps

if TYPE_CHECKING:
    from tfx_tips.callbacks.best_n_checkpoint import BestNCheckpoint
    from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
    from tfx_tips.callbacks.checkpoint_restore import restore_best
    from tfx_tips.callbacks.checkpoint_selection import best_checkpoint, list_checkpoints
    from tfx_tips.callbacks.evaluation_record import EvaluationRecord
    from tfx_tips.callbacks.experiment_records import list_studies, list_trials
    from tfx_tips.callbacks.experiment_tracker import ExperimentTracker
    from tfx_tips.callbacks.predictions import read_predictions
    from tfx_tips.callbacks.recommended_callbacks import recommended
    from tfx_tips.callbacks.run_resume import ResumePoint, resume, resume_fit
    from tfx_tips.callbacks.step_evaluation import StepEvaluation

__all__ = [
    "AtSteps",
    "BestNCheckpoint",
    "CheckpointRecord",
    "DenseThenSparse",
    "EvaluationRecord",
    "EverySteps",
    "ExperimentTracker",
    "ResumePoint",
    "StepEvaluation",
    "best_checkpoint",
    "list_checkpoints",
    "list_studies",
    "list_trials",
    "read_predictions",
    "recommended",
    "restore_best",
    "resume",
    "resume_fit",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BestNCheckpoint": "best_n_checkpoint",
        "CheckpointRecord": "checkpoint_record",
        "EvaluationRecord": "evaluation_record",
        "ExperimentTracker": "experiment_tracker",
        "ResumePoint": "run_resume",
        "StepEvaluation": "step_evaluation",
        "best_checkpoint": "checkpoint_selection",
        "list_checkpoints": "checkpoint_selection",
        "list_studies": "experiment_records",
        "list_trials": "experiment_records",
        "read_predictions": "predictions",
        "recommended": "recommended_callbacks",
        "restore_best": "checkpoint_restore",
        "resume": "run_resume",
        "resume_fit": "run_resume",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
