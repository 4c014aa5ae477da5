"""Reports that a person reads, as plain text."""

from tfx_tips.reports.checkpoint_tables import checkpoint_table
from tfx_tips.reports.evaluation_curves import evaluation_curve
from tfx_tips.reports.experiment_tables import studies_table, trials_table

__all__ = ["checkpoint_table", "evaluation_curve", "studies_table", "trials_table"]


def __dir__() -> list[str]:
    return sorted(__all__)
