"""Evaluation at step intervals, exact and without a trace in the training run."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from tfx_tips._core.schedule import Schedule, as_schedule
from tfx_tips._core.validation import require_positive_int
from tfx_tips.callbacks.class_counts import ClassCounts
from tfx_tips.callbacks.evaluation_loop import EvaluationLoop
from tfx_tips.callbacks.evaluation_names import (
    named_sets,
    names_taken,
    require_first_place,
    require_free_names,
)
from tfx_tips.callbacks.evaluation_record import EvaluationRecord, write_csv
from tfx_tips.callbacks.model_export import export_model
from tfx_tips.callbacks.model_state import build, untouched
from tfx_tips.callbacks.predictions import PredictionLog
from tfx_tips.callbacks.run_guard import RunGuard
from tfx_tips.callbacks.run_plan import current_plan
from tfx_tips.callbacks.scalars import ScalarWriter
from tfx_tips.callbacks.step_callback import StepCallback
from tfx_tips.data.evaluation_set import EvaluationSet, evaluation_set
from tfx_tips.distribute.hosts import is_chief


class StepEvaluation(StepCallback):
    """Evaluates every so many optimizer steps, counted over the whole run.

    Must stand first in `fit`'s list of callbacks: an epoch's logs get the values of the last
    evaluation that fell into it (none if none did), and only callbacks that come later, such
    as `EarlyStopping`, see them there.

    The run is bit-identical to one without this callback: metrics, random generators and all
    other non-trainable state are put back after each evaluation, also after an exception.
    Losses and metrics are those of the unpadded set, for any batch size. A loss or metric that
    is no mean over rows (`reduction="sum"`, say) equals `model.evaluate` at that batch size.

    Under `tf.distribute` every replica and host takes part; the chief alone writes files.

    Cost: an evaluation of one batch before the first step (it checks data and names, and
    compiles what is needed anyway); per evaluation one pass over the set and some 30
    microseconds for each non-trainable variable; nothing on steps where none is due, as the
    count of steps is kept on the host.

    Args:
        validation_data: As for `fit`: arrays `(x, y)` or `(x, y, sample_weight)`, a
            `tf.data.Dataset`, or a `keras.utils.PyDataset`. A dictionary holds several sets
            by name. Cache a data set that is costly to read: `dataset.cache()`.
        every_steps: An integer, an increasing list of steps, or a schedule such as
            `DenseThenSparse`. Where several steps run in one execution, the first point at or
            after each due step counts.
        batch_size: Rows of an evaluation batch over all replicas; by default at least the
            training batch. Needed for an unbatched data set.
        steps: Batches of one evaluation; needed where the set is infinite.
        name: Prefix of the metrics' names in logs, `val_loss`; a dictionary's keys replace it.
        at_start: Whether to evaluate before the first step.
        at_end: Whether to evaluate after the last step if nothing was due there.
        pad_partial_batch: Whether to fill up the last batch, for one static shape (TPU, XLA).
            Padded rows weigh nothing in any loss or metric; what makes that impossible is a
            ValueError.
        predictions: How many of the first examples, or which ones by index, to write the
            model's outputs for at every evaluation; `read_predictions` reads them.
        predictions_bytes: Most bytes in one evaluation's file of predictions, before compression.
        class_counts: True, or a number of examples: for each class with fewer examples (100
            with True), logs how many there are and how many were predicted correctly, as
            `val_count/<class>` and `val_correct/<class>`. Costs a second forward pass.
        class_names: Names of the classes, in the order of the outputs.
        export: Whether each evaluation also writes the model as a SavedModel.
        log_dir: Where TensorBoard scalars `evaluation/val_loss` (by optimizer step),
            predictions and exports go. Nothing is written without it.

    Raises:
        ValueError: If an argument is not valid, or, before the first step, if the data is
            infinite without `steps`, `fit` was given validation data under the same name, or
            padding could not be exact.

    Example:
        evaluation = StepEvaluation((x_val, y_val), every_steps=500)
        model.fit(train, epochs=10, callbacks=[evaluation, EarlyStopping("val_loss")])
        evaluation.history[-1].metrics["val_loss"]
    """

    def __init__(
        self,
        validation_data: Any,
        *,
        every_steps: int | Sequence[int] | Schedule,
        batch_size: int | None = None,
        steps: int | None = None,
        name: str = "val",
        at_start: bool = False,
        at_end: bool = True,
        pad_partial_batch: bool = False,
        predictions: int | Sequence[int] | None = None,
        predictions_bytes: int = 10 * 2**20,
        class_counts: bool | int = False,
        class_names: Sequence[str] | None = None,
        export: bool = False,
        log_dir: str | Path | None = None,
    ) -> None:
        super().__init__()
        self._schedule = as_schedule(every_steps)
        self._data = named_sets(validation_data, name)
        for argument, value in (("batch_size", batch_size), ("steps", steps)):
            if value is not None:
                require_positive_int(argument, value, "Leave it out for the default.")
        if log_dir is None and (predictions is not None or export):
            raise ValueError(
                "`predictions` and `export` write files, so they need a folder. Received: "
                "log_dir=None. Pass `log_dir`."
            )
        self._batch_size = batch_size
        self._steps = steps
        self._pad = pad_partial_batch
        self._at_start = at_start
        self._at_end = at_end
        self._class_counts = (
            ClassCounts(class_counts, class_names) if class_counts is not False else None
        )
        self._prediction_log = (
            PredictionLog(Path(log_dir), predictions, limit_bytes=predictions_bytes)
            if log_dir is not None and predictions is not None
            else None
        )
        self._export_directory = Path(log_dir) / "exports" if log_dir and export else None
        self._writer = ScalarWriter(log_dir) if log_dir is not None else None
        self._subscribers: list[Callable[[EvaluationRecord], None]] = []
        self._loops: dict[str, EvaluationLoop] = {}
        self._sets: dict[str, EvaluationSet] = {}
        self._guard: RunGuard | None = None
        self._writes = True
        self._in_this_epoch: EvaluationRecord | None = None
        self._start_is_due = False
        self.metric_names: tuple[str, ...] = ()
        self.scalar_names: tuple[str, ...] = ()
        self.history: list[EvaluationRecord] = []

    def subscribe(self, function: Callable[[EvaluationRecord], None]) -> None:
        """Has `function` called with the record of each evaluation, on every host.

        The model still holds the weights that were evaluated.
        """
        self._subscribers.append(function)

    def to_csv(self, path: str | Path) -> None:
        """Writes `history` as CSV; see `tfx_tips.callbacks.write_csv`."""
        write_csv(path, self.history)

    def class_report(self) -> str:
        """Says of each rare class what one example is worth, by the last evaluation.

        Raises:
            ValueError: If `class_counts` was not asked for.
        """
        if self._class_counts is None:
            raise ValueError(
                "There is no count of classes. Received: class_counts=False. "
                "Pass `class_counts=True` to StepEvaluation."
            )
        return self._class_counts.report()

    @property
    def is_open(self) -> bool:
        """Whether a `fit` with this callback among its callbacks is running."""
        return self._guard is not None

    def is_due(self, before: int, after: int) -> bool:
        """Returns whether an evaluation is due at one of the steps `before` + 1 to `after`."""
        return self._schedule.crossed(before, after)

    def on_train_begin(self, logs: Any = None) -> None:
        """Prepares the sets and evaluates one batch of each, before the first step."""
        super().on_train_begin(logs)
        plan = current_plan()
        if plan is None or not plan.continues:
            self.history = []
        self._close()
        self._guard = RunGuard(self.model, self._when_run_ends)
        require_free_names(tuple(self._data), self._guard.run)
        self._prepare(self._guard)
        self._start_is_due = self._at_start and plan is None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Evaluates before the first step if asked to."""
        super().on_epoch_begin(epoch, logs)
        if self._start_is_due:
            # Not in on_train_begin: by now all other callbacks have begun and may subscribe.
            self._start_is_due = False
            self._evaluate(self.finished_steps)
        self._in_this_epoch = None

    def steps_finished(self, before: int, after: int) -> None:
        """Evaluates if due."""
        if self._schedule.crossed(before, after):
            self._evaluate(after)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evaluates if due, or if this is the run's planned end; adds to the epoch's logs."""
        super().on_epoch_end(epoch, logs)
        if self._at_end and (epoch + 1 == self.planned_epochs or self._stops):
            self._evaluate_end()
        if self._in_this_epoch is not None and logs is not None:
            taken = sorted(set(logs) & set(self._in_this_epoch.metrics))
            if taken:
                raise names_taken(taken)
            logs.update(self._in_this_epoch.metrics)

    def on_train_end(self, logs: Any = None) -> None:
        """Evaluates where training stopped before its planned end."""
        plan = current_plan()
        if self._at_end and (plan is None or not plan.more_follows or self._stops):
            self._evaluate_end()
        self._close()

    @property
    def _stops(self) -> bool:
        return bool(self.model.stop_training)

    def _evaluate_end(self) -> None:
        if not self.history or self.history[-1].step != self.finished_steps:
            self._evaluate(self.finished_steps)

    def _evaluate(self, step: int) -> None:
        begin = time.perf_counter()
        metrics: dict[str, Any] = {}
        with untouched(self.model):
            for name, loop in self._loops.items():
                metrics |= {f"{name}_{key}": value for key, value in loop.run().items()}
                if self._class_counts is not None:
                    metrics |= self._class_counts.count(name)
            if self._prediction_log is not None:
                self._prediction_log.write(self.model, step)
            if self._export_directory is not None and self._writes:
                export_model(self.model, self._export_directory / f"step-{step:08d}")
        record = EvaluationRecord(step, time.perf_counter() - begin, metrics)
        self.history.append(record)
        self._in_this_epoch = record
        if self._writer is not None and self._writes:
            scalars = {f"evaluation/{key}": value for key, value in record.scalars.items()}
            self._writer.write(scalars, step=step)
        for function in self._subscribers:
            function(record)

    def _prepare(self, guard: RunGuard) -> None:
        inputs = getattr(self.model, "inputs", None)
        shapes = [tuple(tensor.shape) for tensor in inputs] if inputs else None
        strategy = self.model.distribute_strategy
        self._writes = is_chief(strategy)
        self._loops, self._sets = {}, {}
        for name, data in self._data.items():
            self._sets[name] = evaluation_set(
                data,
                name=name,
                training_batch_size=guard.run.training_batch_size(),
                input_shapes=shapes,
                num_replicas=strategy.num_replicas_in_sync,
                batch_size=self._batch_size,
                steps=self._steps,
                pad=self._pad,
            )
        build(self.model, _x_spec(next(iter(self._sets.values()))))
        values: dict[str, Any] = {}
        with untouched(self.model):
            for name, batches in self._sets.items():
                self._loops[name] = EvaluationLoop(self.model, batches)
                first = self._loops[name].probe()
                values |= {f"{name}_{key}": value for key, value in first.items()}
            if self._class_counts is not None:
                self._class_counts.prepare(self.model, self._sets)
            if self._prediction_log is not None:
                self._prediction_log.prepare(self.model, self._sets, writes=self._writes)
        taken = sorted(set(first) & set(values))
        if taken:
            raise names_taken(taken)
        self.metric_names = tuple(values)
        self.scalar_names = tuple(k for k, value in values.items() if isinstance(value, float))
        require_first_place(self, guard.run)

    def _when_run_ends(self, broken: bool) -> None:
        self._guard = None
        if self._writer is not None:
            self._writer.close()

    def _close(self) -> None:
        guard = self._guard
        if guard is not None:
            guard.close()


def _x_spec(batches: EvaluationSet) -> Any:
    spec = batches.dataset.element_spec
    return keras.utils.unpack_x_y_sample_weight(spec[0] if batches.padded else spec)[0]
