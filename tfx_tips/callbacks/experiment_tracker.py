"""A row for each study and each trial, in tables that any spreadsheet opens."""

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfx_tips._core.ranking import Mode, require_mode
from tfx_tips.callbacks.declared_metrics import declared_direction
from tfx_tips.callbacks.experiment_records import (
    PARAMETER_PREFIX,
    continue_trial,
    open_trial,
)
from tfx_tips.callbacks.experiment_summary import number
from tfx_tips.callbacks.experiment_table import cell_text, require_cell
from tfx_tips.callbacks.monitored_metric import resolve_mode
from tfx_tips.callbacks.run_guard import FitRun, RunGuard
from tfx_tips.callbacks.run_origin import origin_cells
from tfx_tips.callbacks.run_plan import current_plan
from tfx_tips.callbacks.trial_row import TrialRow, utc_now
from tfx_tips.distribute.hosts import is_chief

# Cells that come from the row that was opened or gone on with.
_OF_THE_ROW = ("trial", "started_utc", "steps", "best_value", "best_step", "best_checkpoint")


class ExperimentTracker(keras.callbacks.Callback):
    """Leaves a record of each training run: what was tried, how well it did, how to repeat it.

    Two CSV files stand in `directory`: `studies.csv` with a row for each study, and `trials.csv`
    with a row for each `fit` (a resumed run keeps its row). A trial's row is written when
    training begins, when the best value changes, and when training ends, with the status
    "running", then "completed", or "failed" where `fit` raised; `tfx-tips experiments` and
    `list_trials` show "killed" where a process ended without saying so. Several processes may
    write to one directory at once. Rows, columns and cells that others add are kept.

    A row holds the command line as typed, and nothing of the environment: give passwords to
    a program through the environment. The git commit is that of the main script's repository;
    where its tree is dirty, the changes are saved as `diffs/<hash>.diff` (untracked files by
    name only). A notebook has no command, and a folder without git no commit: empty cells.

    Under `tf.distribute` the chief host alone writes. Cost: nothing on a step; about a tenth of
    a second when training begins, mostly git's and the disk's, and less at its end; between
    them a thread replaces the two small files where an evaluation finds a better value.
    Without `evaluation` one read of the optimizer's counter at each epoch's end. A row that
    cannot be written is logged as an error, and training goes on.

    Args:
        directory: Local directory of the tables; created if missing. Not the checkpoints'.
        study: The study's name; trials of one name belong together.
        configuration: Path or link of the study's configuration.
        notes: Whatever a reader should know about the study. Notes written into the table by
            hand stay as long as trials come without any.
        parameters: This trial's hyperparameters by name, each one value; `trials.csv` gets a
            column `parameter/<name>` for each.
        monitor: The metric that says how well a trial did, as named in `logs`; by default the
            one that `checkpoint` ranks by, else "val_loss".
        mode: "min" or "max", or "auto" to decide by the metric.
        evaluation: A `StepEvaluation` to get values from, instead of the epochs' logs.
        checkpoint: A `BestNCheckpoint` that stands before this callback; the row then names its
            best checkpoint: value, step and path.

    Raises:
        ValueError: If an argument is not valid, or, before the first step, if "auto" does not
            decide, `evaluation` does not report `monitor`, or one of the two callbacks does not
            stand before this one.
        OSError: If the row cannot be opened, before the first step.

    Example:
        tracker = ExperimentTracker("experiments", study="digits", parameters={"lr": 0.1},
                                    evaluation=evaluation, checkpoint=checkpoint)
        model.fit(train, callbacks=[evaluation, checkpoint, tracker])
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        study: str,
        configuration: str = "",
        notes: str = "",
        parameters: Mapping[str, Any] | None = None,
        monitor: str | None = None,
        mode: str = "auto",
        evaluation: Any = None,
        checkpoint: Any = None,
    ) -> None:
        super().__init__()
        _require_local(directory)
        if not isinstance(study, str) or not study.strip():
            raise ValueError(
                f"`study` must be a name. Received: study={study!r}. Pass for example "
                "`study='learning rates'`."
            )
        require_mode(mode)
        for name, text in (("study", study), ("configuration", configuration), ("notes", notes)):
            require_cell(name, text)
        self._directory = Path(directory)
        self._study = cell_text(study)
        self._study_cells = {"configuration": configuration, "notes": notes}
        self._parameters = _parameter_cells(parameters or {})
        _require_attribute("evaluation", evaluation, "subscribe", "StepEvaluation")
        _require_attribute("checkpoint", checkpoint, "best", "BestNCheckpoint")
        if monitor is not None and (not isinstance(monitor, str) or not monitor):
            raise ValueError(
                "`monitor` must be the name of a metric in logs. "
                f"Received: monitor={monitor!r}. Pass for example `monitor='val_loss'`."
            )
        if monitor is None and checkpoint is not None:
            monitor = checkpoint.monitor
            mode = checkpoint.mode if mode == "auto" else mode
        self.monitor = "val_loss" if monitor is None else monitor
        self.mode = mode
        self.evaluation = evaluation
        self.checkpoint = checkpoint
        self._trial: TrialRow | None = None
        self._guard: RunGuard | None = None
        self._is_open = False
        self._status_at_end = "failed"
        if evaluation is not None:
            evaluation.subscribe(self._evaluated)

    def on_train_begin(self, logs: Any = None) -> None:
        """Opens the trial's row, or goes on with the one of the run that this `fit` continues."""
        self._close()  # An earlier `fit` that raised may just be noticed.
        self._require_sources()
        mode = self._resolved_mode()
        if not is_chief(getattr(self.model, "distribute_strategy", None)):
            return
        plan = current_plan()
        if self._trial is not None and plan is not None and plan.continues:
            self._trial.begin_again()
        else:
            self._trial = self._open_trial(mode, resumed=plan is not None and plan.start_step > 0)
        self._status_at_end = "failed"
        self._is_open = True
        self._guard = RunGuard(self.model, functools.partial(self._when_run_ends, self._trial))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Takes the epoch's values, unless there is an evaluation to take them from."""
        if self._is_open and self._trial is not None and self.evaluation is None:
            self._trial.observe(_finished_steps(self.model), logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        """Completes the row, unless another `fit` of the same run follows."""
        plan = current_plan()
        goes_on = plan is not None and plan.more_follows and not self.model.stop_training
        self._status_at_end = "running" if goes_on else "completed"
        self._close()

    def _close(self) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _evaluated(self, record: Any) -> None:
        if self._is_open and self._trial is not None:
            self._trial.observe(record.step, record.metrics)

    def _when_run_ends(self, trial: TrialRow, broken: bool) -> None:
        self._is_open = False
        trial.end("failed" if broken else self._status_at_end)

    def _open_trial(self, mode: str, *, resumed: bool) -> TrialRow:
        now = utc_now()
        cells = {
            "study": self._study,
            "status": "running",
            "monitor": self.monitor,
            "mode": mode,
            "started_utc": now,
            "updated_utc": now,
            "checkpoint_directory": _absolute(getattr(self.checkpoint, "directory", None)),
            **origin_cells(self._directory),
            **self._parameters,
        }
        row = None
        if resumed and self.checkpoint is not None:
            row = continue_trial(self._directory, cells, self._study_cells)
        if row is None:
            row = open_trial(self._directory, cells, self._study_cells)
        return TrialRow(
            self._directory,
            cells | {name: row.get(name) for name in _OF_THE_ROW},
            best=number(row.get("best_value")),
            best_checkpoint=lambda: getattr(self.checkpoint, "best", None),
        )

    def _require_sources(self) -> None:
        """Raises unless what values come from takes part in this `fit`, before this callback."""
        run = FitRun(self.model)
        callbacks = list(run.callbacks())
        run.forget()
        before = callbacks[: callbacks.index(self)] if self in callbacks else None
        for name in ("evaluation", "checkpoint"):
            source = getattr(self, name)
            if source is not None and before is not None and source not in before:
                raise ValueError(
                    f"The `{name}` of an ExperimentTracker must stand before it in `fit`'s list. "
                    f"Received: callbacks={[type(c).__name__ for c in callbacks]}. "
                    "List the StepEvaluation first and the ExperimentTracker last."
                )
        names = getattr(self.evaluation, "scalar_names", ())
        if names and self.monitor not in names:
            raise ValueError(
                "`monitor` must be one of the numbers that the evaluation reports: "
                f"{', '.join(names)}. Received: monitor={self.monitor!r}."
            )

    def _resolved_mode(self) -> Mode:
        if self.mode == "auto" and self.evaluation is None:
            # The model's own metrics need not exist yet.
            with contextlib.suppress(KeyError):
                direction = declared_direction(self.model, self.monitor.removeprefix("val_"))
                if direction is not None:
                    return direction
        return resolve_mode(self.model, self.monitor, self.mode)


def _finished_steps(model: Any) -> int | None:
    optimizer = model.optimizer
    return None if optimizer is None else int(keras.ops.convert_to_numpy(optimizer.iterations))


def _parameter_cells(parameters: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in parameters.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ValueError(
                "The names in `parameters` must be printable text, as they become columns. "
                f"Received: parameters={dict(parameters)!r}. Rename {name!r}."
            )
        require_cell(f"parameters[{name!r}]", value)
    return {f"{PARAMETER_PREFIX}{name}": value for name, value in parameters.items()}


def _absolute(directory: Any) -> str:
    text = cell_text(directory)
    return text if not text or "://" in text else os.path.abspath(text)


def _require_attribute(name: str, value: Any, attribute: str, expected: str) -> None:
    if value is not None and attribute not in dir(value):
        raise ValueError(
            f"`{name}` must be a {expected}. Received: {name}={value!r}. Pass the callback itself, "
            "the one that stands in `callbacks`."
        )


def _require_local(directory: str | Path) -> None:
    if "://" in str(directory):
        raise ValueError(
            "`directory` must be a local directory: a lock guards it. "
            f"Received: directory={str(directory)!r}. Track locally and copy the tables after "
            "training."
        )
