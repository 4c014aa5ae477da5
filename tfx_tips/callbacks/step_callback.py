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
        self.batches_per_step = 1
        self._epoch = 0
        self._batches_before = 0
        self._is_first_epoch = True

    @property
    def finished_steps(self) -> int:
        """Optimizer steps finished, as far as the host has counted."""
        return self._clock.finished // self.batches_per_step

    def steps_finished(self, before: int, after: int) -> None:
        """Called after the steps `before` + 1 to `after` have finished.

        Args:
            before: Finished optimizer steps at the last call.
            after: Finished optimizer steps now.
        """
        raise NotImplementedError

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock at the optimizer's iterations, or where a resumed run says."""
        self.batches_per_step = batches_per_step(self.model.optimizer)
        plan = current_plan()
        self._clock.begin_run(
            self._finished_batches(),
            finished=None
            if plan is None
            else plan.start_step * self.batches_per_step + plan.accumulated_batches,
        )
        self._is_first_epoch = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes where the epoch starts."""
        plan = current_plan()
        self._epoch = epoch
        self._batches_before = plan.start_batch if plan and self._is_first_epoch else 0
        self._is_first_epoch = False
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
        # A loss scale optimizer leaves out steps whose gradients overflow, and so does not
        # tell how many batches there were.
        is_told = _counting(self.model.optimizer) is self.model.optimizer
        after = self._clock.end_epoch(
            self._finished_batches() if is_told else 0,
            steps_per_execution=self.model.steps_per_execution,
            planned=(self.params or {}).get("steps"),
        )
        if after != before:
            self._report(before, after)

    @property
    def planned_epochs(self) -> int | None:
        """Epochs that the whole run was asked for, or None where unknown."""
        plan = current_plan()
        return (self.params or {}).get("epochs") if plan is None else plan.epochs

    def planned_total_steps(self, epoch: int) -> int | None:
        """Returns the optimizer steps that the whole run is to have, or None where unknown.

        Args:
            epoch: The epoch that is about to begin.
        """
        plan = current_plan()
        if plan is not None:
            return plan.total_steps
        batches, epochs = (self.params or {}).get("steps"), self.planned_epochs
        if not batches or not epochs:
            return None
        return self.finished_steps + (epochs - epoch) * batches // self.batches_per_step

    @property
    def position(self) -> tuple[int, int]:
        """Where training would go on: the epoch, from 0, and how many of its batches are done.

        A finished epoch is told as the begin of the next one.
        """
        batch = self._batches_before + self._clock.finished_in_epoch
        planned = (self.params or {}).get("steps")
        is_whole = planned is None or self._clock.finished_in_epoch >= planned
        if not self._clock.in_epoch and is_whole:
            return self._epoch + 1, 0
        return self._epoch, batch

    def _report(self, before: int, after: int) -> None:
        before, after = before // self.batches_per_step, after // self.batches_per_step
        if after != before:
            self.steps_finished(before, after)

    def _finished_batches(self) -> int:
        """Reads from the device how many batches the optimizer has seen."""
        optimizer = _counting(self.model.optimizer)
        if optimizer is None:
            return 0
        # `iterations` is divided by the accumulation steps; the variable counts batches.
        for variable in optimizer.variables:
            if variable.name == "iteration":
                return int(variable.numpy())
        return int(optimizer.iterations.numpy()) * self.batches_per_step


def batches_per_step(optimizer: Any) -> int:
    """Returns how many batches an optimizer accumulates gradients over; 1 where it does not."""
    return getattr(_counting(optimizer), "gradient_accumulation_steps", None) or 1


def _counting(optimizer: Any) -> Any:
    """Returns the optimizer that counts: the inner one of a loss scale optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)
