"""Keeping the N best checkpoints and the latest."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfx_tips._core.ranking import Mode, require_mode
from tfx_tips._core.schedule import Schedule, as_schedule
from tfx_tips._core.validation import require_positive_int
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord, scalar_metrics
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.callbacks.checkpoint_writer import CheckpointWriter
from tfx_tips.callbacks.evaluation_record import EvaluationRecord
from tfx_tips.callbacks.monitor_check import require_order, require_value, resolve_monitor
from tfx_tips.callbacks.monitored_metric import known_directions
from tfx_tips.callbacks.run_guard import RunGuard
from tfx_tips.callbacks.step_callback import StepCallback
from tfx_tips.callbacks.step_evaluation import StepEvaluation
from tfx_tips.callbacks.termination import EXIT_STATUS, TerminationRequest
from tfx_tips.distribute.hosts import is_chief, num_hosts

_logger = logging.getLogger(__name__)


class BestNCheckpoint(StepCallback):
    """Keeps the `keep` best checkpoints by one metric, and the latest ones to resume from.

    With `evaluation`, each evaluation by steps is a candidate, with exactly the weights that
    were evaluated. Without it, each epoch is, by its logs, or with `every_steps` the running
    training metrics. A checkpoint is never ranked by a value of other weights; where a value
    is missing, nothing is saved and nothing removed. What the directory holds from earlier
    runs takes part. Of equal values the earlier stays; NaN and infinities are not among the
    best while a finite value exists.

    Each file loads with plain Keras and is described by a manifest beside it; see
    `list_checkpoints`, `best_checkpoint`, `restore_best` and `resume`. With a fixed number of
    steps and the best kept, early stopping has nothing left to protect: choose afterwards.

    A file is written beside, flushed and renamed, its manifest last, and only then is another
    one removed, so that a kill at any instant leaves a whole set. SIGTERM is answered after
    the step: the state is saved, the old handler put back, and `SystemExit(143)` raised.

    Under `tf.distribute` every host reads the variables and the chief writes.

    Cost: holding the values (milliseconds; on accelerators a copy to the host) where a save is
    due; the file is written by a thread, of whose saves at most one waits. TensorFlow then
    copies each variable once when the next step writes to it. Memory: about two copies of
    weights and optimizer state. A model that Keras cannot make a second time from its
    configuration is saved while training waits, which one log line says; one that Keras cannot
    save as a whole is stored as `.weights.h5`, optimizer included.

    Args:
        directory: Local path or URL known to fsspec (`gs://...`); made at the first save.
        monitor: The metric's name in logs.
        mode: "min", "max" or "auto", which knows losses and Keras' own metrics.
        keep: Checkpoints kept as the best; at least 1.
        keep_latest: Newest checkpoints kept besides, whatever their value.
        evaluation: The `StepEvaluation` whose results rank; it stands before this callback.
        every_steps: An integer, list of steps or schedule. With `evaluation` it times only the
            latest ones (by default each evaluation is one).
        total_steps: Budget of the run, for the share at which the best step fell; by default
            what `fit` is asked for.
        background: Whether a thread writes the files.
        save_weights_only: Whether to store `.weights.h5` without the optimizer, which cannot
            be resumed from.
        seed: The run's seed, recorded with each checkpoint.
        verbose: 1 prints each ranked value, and in the end where the best one fell.

    Raises:
        ValueError: If an argument is not valid, or, before the first step, if `monitor` will
            not exist, is not a single number, or its direction is not known.

    Example:
        evaluation = StepEvaluation((x_val, y_val), every_steps=500)
        checkpoints = BestNCheckpoint("run/checkpoints", evaluation=evaluation)
        model.fit(train, epochs=10, callbacks=[evaluation, checkpoints])
        restore_best(model, "run/checkpoints")
    """

    # On backends whose callbacks may run beside the step: what is done at a batch's end is safe.
    async_safe = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        monitor: str = "val_loss",
        mode: str = "auto",
        keep: int = 3,
        keep_latest: int = 1,
        evaluation: StepEvaluation | None = None,
        every_steps: int | Sequence[int] | Schedule | None = None,
        total_steps: int | None = None,
        background: bool = True,
        save_weights_only: bool = False,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(monitor, str) or not monitor:
            raise ValueError(
                "`monitor` must be the name of a metric in logs. "
                f"Received: monitor={monitor!r}. Pass for example `monitor='val_loss'`."
            )
        require_mode(mode)
        require_positive_int("keep", keep, "Pass `keep=1` to store only the best.")
        require_positive_int(
            "keep_latest", keep_latest, "Pass 0 to keep none besides the best.", minimum=0
        )
        if total_steps is not None:
            require_positive_int("total_steps", total_steps, "It counts optimizer steps.")
        if evaluation is not None and not isinstance(evaluation, StepEvaluation):
            raise ValueError(
                "`evaluation` must be a StepEvaluation. "
                f"Received: evaluation={evaluation!r}. Make one and list it first in `callbacks`."
            )
        self._schedule = None if every_steps is None else as_schedule(every_steps)
        if evaluation is None and self._schedule is not None and monitor.startswith("val_"):
            raise ValueError(
                f"{monitor!r} is known at the ends of epochs only, so it cannot rank checkpoints "
                f"every so many steps. Received: monitor={monitor!r}, "
                f"every_steps={every_steps!r}, evaluation=None. Pass a StepEvaluation as "
                "`evaluation`, or leave out `every_steps`."
            )
        self.monitor = monitor
        self.evaluation = evaluation
        self._mode = mode
        self._keep = keep
        self._keep_latest = keep_latest
        self._asked_total_steps = total_steps
        self._background = background
        self._weights_only = save_weights_only
        self._seed = seed
        self._verbose = verbose
        self._store = CheckpointStore(directory)
        self._writer: CheckpointWriter | None = None
        self._guard: RunGuard | None = None
        self._termination = TerminationRequest(is_open=self._is_running)
        self._last_saved_step: int | None = None
        self._last_logs: Mapping[str, Any] = {}
        self._ready = False
        self._certain = True
        self._resolved_mode: Mode = "min"
        self._total_steps: int | None = None
        if evaluation is not None:
            evaluation.subscribe(self._evaluated)

    @property
    def directory(self) -> str:
        """Where the checkpoints stand: the path or URL as given."""
        return self._store.directory

    @property
    def mode(self) -> str:
        """The mode as given: "min", "max" or "auto"."""
        return self._mode

    @property
    def best(self) -> CheckpointRecord | None:
        """The best checkpoint on the disk so far, in this run's directory and by its monitor."""
        return None if self._writer is None else self._writer.best

    def on_train_begin(self, logs: Any = None) -> None:
        """Looks at what the directory holds and takes over SIGTERM."""
        super().on_train_begin(logs)
        self._close()
        self._ready = False
        self._writer = None
        self._last_saved_step = None
        self._total_steps = self._asked_total_steps
        self._guard = RunGuard(self.model, self._when_run_ends)
        self._termination.install()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Makes sure, before the first step, that the monitor will exist."""
        super().on_epoch_begin(epoch, logs)
        self._get_ready(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Saves if due; raises what went wrong in the background."""
        super().on_train_batch_begin(batch, logs)
        if self._writer is not None:
            self._writer.check()
        if self._termination.received:
            self._stop_for_termination()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Holds what was logged: a train step of the user's own may log what no metric has."""
        self._last_logs = logs or {}

    def steps_finished(self, before: int, after: int) -> None:
        """Saves if `every_steps` says so."""
        if self._schedule is None or not self._schedule.crossed(before, after):
            return
        if self.evaluation is not None:
            if self._last_saved_step != after:
                self._offer(self, value=None, metrics={}, as_latest=True)
            return
        require_value(self._last_logs, self.monitor)
        metrics = scalar_metrics(self._last_logs)
        self._offer(self, value=metrics[self.monitor], metrics=metrics, as_latest=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves the epoch where epochs are what is ranked."""
        super().on_epoch_end(epoch, logs)
        if self.evaluation is None and self._schedule is None:
            logs = logs or {}
            if self.monitor not in logs and self._certain:
                return  # not measured in this epoch
            require_value(logs, self.monitor)
            metrics = scalar_metrics(logs)
            self._offer(self, value=metrics[self.monitor], metrics=metrics, as_latest=True)
        if self._writer is not None:
            self._writer.check()
        if self._termination.received:
            self._stop_for_termination()

    def on_train_end(self, logs: Any = None) -> None:
        """Waits until everything is on the disk."""
        try:
            if self._writer is not None:
                self._writer.flush()
                self._report_best()
        finally:
            self._close()
        if self._termination.received:
            raise SystemExit(EXIT_STATUS)

    def _evaluated(self, record: EvaluationRecord) -> None:
        if self._guard is None:
            return  # the evaluation takes part in a `fit` that this callback does not
        assert self.evaluation is not None
        self._get_ready(self.evaluation.position[0])
        metrics = record.scalars
        self._offer(
            self.evaluation,
            value=metrics[self.monitor],
            metrics=metrics,
            as_latest=self._schedule is None,
        )

    def _offer(
        self,
        clock: StepCallback,
        *,
        value: float | None,
        metrics: Mapping[str, float],
        as_latest: bool,
        must_stay: bool = False,
    ) -> None:
        """Offers the model's present state, at the step that `clock` has counted."""
        assert self._writer is not None
        epoch, batch = clock.position
        step = clock.finished_steps
        is_saved = self._writer.offer(
            value=value,
            as_latest=as_latest,
            must_stay=must_stay,
            fields={
                "step": step,
                "epoch": epoch,
                "batch": batch,
                "metrics": metrics,
                "directions": {
                    **known_directions(self.model, metrics),
                    self.monitor: self._resolved_mode,
                },
                "seed": self._seed,
                "total_steps": self._total_steps,
            },
        )
        if is_saved:
            self._last_saved_step = step
        if value is not None:
            self._report_new(step, value)

    def _get_ready(self, epoch: int) -> None:
        if self._ready:
            return
        assert self._guard is not None
        require_order(self._guard.run, self.evaluation, self)
        mode, self._certain = resolve_monitor(
            self.model,
            self._guard.run,
            monitor=self.monitor,
            mode=self._mode,
            evaluation=self.evaluation,
        )
        self._resolved_mode = mode
        if self._asked_total_steps is None:
            self._total_steps = self.planned_total_steps(epoch)
        strategy = getattr(self.model, "distribute_strategy", None)
        self._writer = CheckpointWriter(
            self._store,
            self.model,
            monitor=self.monitor,
            mode=mode,
            keep=self._keep,
            keep_latest=self._keep_latest,
            background=self._background,
            weights_only=self._weights_only,
            writes=is_chief(strategy),
            several_hosts=num_hosts(strategy) > 1,
        )
        self._ready = True

    def _stop_for_termination(self) -> None:
        """Saves what has been trained, and leaves `fit` as SIGTERM asks."""
        try:
            if self._writer is not None:
                if self._last_saved_step != self.finished_steps:
                    self._offer(self, value=None, metrics={}, as_latest=True, must_stay=True)
                self._writer.flush()
        finally:
            self._close()
        raise SystemExit(EXIT_STATUS)

    def _report_new(self, step: int, value: float) -> None:
        if self._verbose:
            sys.stdout.write(f"\nStep {step:,}: {self.monitor} {value:.6g}\n")

    def _report_best(self) -> None:
        best = self.best
        if not self._verbose or best is None:
            return
        share = best.share_of_budget
        of_budget = (
            "" if share is None else f" of {best.total_steps:,}, at {share:.0%} of the budget"
        )
        sys.stdout.write(
            f"Best {self.monitor} {best.metrics[self.monitor]:.6g} at step "
            f"{best.step:,}{of_budget}: {best.path}\n"
        )

    def _when_run_ends(self, broken: bool) -> None:
        self._guard = None
        if self._writer is None:
            return
        try:
            self._writer.flush()
        except Exception:
            _logger.exception("A checkpoint could not be written after `fit` had failed.")

    def _is_running(self) -> bool:
        guard = self._guard
        return guard is not None and guard.run.is_running()

    def _close(self) -> None:
        guard = self._guard
        if guard is not None:
            guard.close()
        self._termination.restore()
