"""A trial's row while the trial runs."""

import datetime
import logging
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tfx_tips._core.background import BackgroundWorker
from tfx_tips._core.errors import TfxTipsError
from tfx_tips._core.ranking import Mode, quality
from tfx_tips.callbacks.experiment_records import update_trial
from tfx_tips.callbacks.experiment_table import cell_text

_logger = logging.getLogger(__name__)


class TrialRow:
    """Keeps the best value and writes the row where there is a better one, and at the end.

    A better value is written by a thread, since the disk may be slow and others may hold the
    tables. Training goes on where a write fails: that is logged, and the next one writes the
    whole row.

    Args:
        directory: Where the tables stand.
        cells: The row as it was opened; `monitor` and `mode` say what is best.
        best: The best value so far, where the trial goes on with an earlier one's row.
        best_checkpoint: Returns the best checkpoint that is kept (`step`, `metrics`, `path`), or
            None. Where it has the monitored metric, it is what the row describes, and not the
            best value seen, so that the row's value is one that a file can show again.
    """

    def __init__(
        self,
        directory: Path,
        cells: Mapping[str, object],
        *,
        best: float | None = None,
        best_checkpoint: Callable[[], Any] = lambda: None,
    ) -> None:
        self._directory = directory
        self._cells = dict(cells)
        self._monitor = cast(str, cells["monitor"])
        self._mode = cast(Mode, cells["mode"])
        self._best = best
        self._best_checkpoint = best_checkpoint
        self._seen: set[str] = set()
        self._writer = BackgroundWorker(self._store, name="tfx_tips.trial_row")

    def observe(self, step: int | None, metrics: Mapping[str, Any]) -> None:
        """Takes note of what was measured after a step; has only a better value written.

        Args:
            step: Finished optimizer steps, None where the optimizer does not count.
            metrics: Values by their names in `logs`.
        """
        self._cells["steps"] = step
        self._seen.update(metrics)
        value = metrics.get(self._monitor)
        changes: dict[str, object] = {}
        if isinstance(value, numbers.Real) and self._is_better(float(value)):
            self._best = float(value)
            changes = {"best_value": self._best, "best_step": step, "best_checkpoint": None}
        changes |= self._kept()
        if any(cell_text(self._cells.get(name)) != cell_text(changes[name]) for name in changes):
            self._cells |= {**changes, "updated_utc": utc_now()}
            self._writer.submit(dict(self._cells), replaces=lambda waiting: True)

    def flush(self) -> None:
        """Waits until what was observed is on the disk."""
        self._writer.flush()

    def begin_again(self) -> None:
        """Writes that the trial runs, after a part of it has ended."""
        self._write({"status": "running"})

    def end(self, status: str) -> None:
        """Writes how the trial ended, and the best checkpoint that is kept now."""
        if self._seen and self._monitor not in self._seen:
            _logger.warning(
                "%r was in no logs, so the trial's best value stays empty. There were: %s.",
                self._monitor,
                ", ".join(sorted(self._seen)),
            )
        self._write({"status": status, **self._kept()})

    def _is_better(self, value: float) -> bool:
        return self._best is None or quality(value, self._mode) < quality(self._best, self._mode)

    def _kept(self) -> dict[str, object]:
        try:
            kept = self._best_checkpoint()
        except (OSError, ValueError, TfxTipsError) as error:
            _logger.error("The best checkpoint could not be asked for: %s", error)
            return {}
        if kept is None or self._monitor not in kept.metrics:
            return {}
        value = kept.metrics[self._monitor]
        return {"best_value": value, "best_step": kept.step, "best_checkpoint": str(kept.path)}

    def _write(self, cells: Mapping[str, object]) -> None:
        # Not through the thread: none can be started while the interpreter exits.
        self.flush()
        self._cells |= {**cells, "updated_utc": utc_now()}
        self._store(self._cells)

    def _store(self, cells: Mapping[str, object]) -> None:
        try:
            update_trial(self._directory, cells)
        except (OSError, ValueError) as error:
            # A training must not end because its row could not be written.
            _logger.error("The trial's row could not be written: %s\nIts cells: %s", error, cells)


def utc_now() -> str:
    """Returns the time in a form that spreadsheets take for one, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
