"""A base class that decides when; its subclasses decide what."""

from typing import Any

import keras

from tfx_tips._core.schedule import StepClock
from tfx_tips.callbacks.run_plan import current_plan


class StepCallback(keras.callbacks.Callback):
    """Tells a subclass which optimizer steps have finished, at the begin of the next batch.

    Acting there rather than at a batch's end adds no synchronisation: Keras has no logs to
    convert at a begin. An epoch's last steps are reported at its end. An optimizer step is a
    batch, or `gradient_accumulation_steps` batches where the optimizer accumulates.

    A subclass implements `steps_finished`, and calls `super()` in the hooks it overrides.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock = StepClock()
        self._batches_per_step = 1
        self._epoch = 0
        self._batches_before_epoch_part = 0

    @property
    def finished_steps(self) -> int:
        """Optimizer steps finished, as far as the host has counted."""
        return self._clock.finished // self._batches_per_step

    def steps_finished(self, before: int, after: int) -> None:
        """Called after the steps `before` + 1 to `after` have finished.

        Args:
            before: Finished optimizer steps at the last call.
            after: Finished optimizer steps now.
        """
        raise NotImplementedError

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock at the optimizer's iterations, or where a resumed run says."""
        accumulated = getattr(self.model.optimizer, "gradient_accumulation_steps", None)
        self._batches_per_step = accumulated or 1
        plan = current_plan()
        self._clock.begin_run(
            self._finished_batches(),
            finished=None if plan is None else plan.start_step * self._batches_per_step,
        )
        self._batches_before_epoch_part = 0 if plan is None else plan.start_batch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes where the epoch starts."""
        self._epoch = epoch
        self._clock.begin_epoch(self._finished_batches())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Reports the steps finished before this batch."""
        before = self._clock.finished
        after = self._clock.begin_batch(batch)
        if after != before:
            self._report(before, after)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reports the epoch's last steps."""
        before = self._clock.finished
        after = self._clock.end_epoch(
            self._finished_batches(),
            steps_per_execution=self.model.steps_per_execution,
            planned=(self.params or {}).get("steps"),
        )
        if after != before:
            self._report(before, after)
        self._batches_before_epoch_part = 0

    @property
    def planned_epochs(self) -> int | None:
        """Epochs that the whole run was asked for, or None where unknown."""
        plan = current_plan()
        return (self.params or {}).get("epochs") if plan is None else plan.epochs

    @property
    def batches_finished_in_epoch(self) -> int:
        """Finished batches of the current epoch, counted from its true begin."""
        return self._batches_before_epoch_part + self._clock.finished_in_epoch

    def _report(self, before: int, after: int) -> None:
        before, after = before // self._batches_per_step, after // self._batches_per_step
        if after != before:
            self.steps_finished(before, after)

    def _finished_batches(self) -> int:
        """Reads from the device how many batches the optimizer has seen."""
        optimizer = self.model.optimizer
        if optimizer is None:
            return 0
        # `iterations` is divided by the accumulation steps; the variable counts batches.
        for variable in optimizer.variables:
            if variable.name == "iteration":
                return int(keras.ops.convert_to_numpy(variable))
        return int(keras.ops.convert_to_numpy(optimizer.iterations)) * self._batches_per_step
