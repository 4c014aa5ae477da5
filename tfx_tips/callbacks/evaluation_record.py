"""What one evaluation found."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfx_tips._core.files import write_text


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation of a model during training.

    Attributes:
        step: Optimizer steps finished when the model was evaluated.
        seconds: Wall time that the evaluation took.
        metrics: Values under the names they have in `logs`: floats, or NumPy arrays where a
            metric is not a scalar.
    """

    step: int
    seconds: float
    metrics: dict[str, Any]

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics that are single numbers."""
        return {name: v for name, v in self.metrics.items() if isinstance(v, float)}


def write_csv(path: str | Path, records: Sequence[EvaluationRecord]) -> None:
    """Writes records as CSV, one row each: `step`, `seconds`, then a column for each metric.

    Numbers are written with all their digits. An element of a metric that is an array gets a
    column `name[index]`. A value that a record lacks is an empty cell.
    """
    rows = [
        {"step": record.step, "seconds": record.seconds, **_cells(record.metrics)}
        for record in records
    ]
    columns = list(dict.fromkeys(["step", "seconds", *(name for row in rows for name in row)]))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(Path(path), text.getvalue())


def _cells(metrics: dict[str, Any]) -> dict[str, float]:
    cells: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, float):
            cells[name] = value
        else:
            for index, element in np.ndenumerate(value):
                cells[f"{name}[{','.join(map(str, index))}]"] = float(element)
    return cells
