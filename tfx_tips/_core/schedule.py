"""When something is due: schedules over finished training steps, and the step clock."""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

from tfx_tips._core.validation import require_positive_int


@runtime_checkable
class Schedule(Protocol):
    """Decides whether a point that is due lies among the steps just finished."""

    def crossed(self, before: int, after: int) -> bool:
        """Returns whether a due step lies in the half-open interval (before, after].

        Args:
            before: Finished steps when the schedule was last asked.
            after: Finished steps now; several steps may have passed in one execution.
        """
        ...


@dataclass(frozen=True)
class EverySteps:
    """Due after every `steps` finished steps, counted over the whole run.

    Args:
        steps: Distance between two due points; at least 1.

    Raises:
        ValueError: If `steps` is not an integer of at least 1.
    """

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", plain_integer(self.steps))
        require_positive_int("steps", self.steps, "Pass 1 to act after every step.")

    def crossed(self, before: int, after: int) -> bool:
        """See `Schedule.crossed`."""
        return after // self.steps > before // self.steps


@dataclass(frozen=True)
class AtSteps:
    """Due after each of the listed steps and at no other.

    Args:
        steps: Numbers of finished steps, each at least 1, strictly increasing.

    Raises:
        ValueError: If the list is empty, not increasing, or holds a number below 1.
    """

    steps: Sequence[int]

    def __post_init__(self) -> None:
        steps = tuple(plain_integer(step) for step in self.steps)
        for step in steps:
            require_positive_int("steps", step, "List numbers of finished steps, from 1.")
        if not steps or any(b <= a for a, b in itertools.pairwise(steps)):
            raise ValueError(
                "A list of steps must hold at least one number and be strictly increasing. "
                f"Received: steps={list(steps)!r}. Sort it and remove repeated entries."
            )
        object.__setattr__(self, "steps", steps)

    def crossed(self, before: int, after: int) -> bool:
        """See `Schedule.crossed`."""
        index = bisect.bisect_right(self.steps, before)
        return index < len(self.steps) and self.steps[index] <= after


@dataclass(frozen=True)
class DenseThenSparse:
    """Due every `early` steps up to and including step `until`, every `late` steps beyond it.

    Args:
        early: Distance between due points at first; at least 1.
        until: Last step to which `early` applies; at least 1.
        late: Distance afterwards, counted from step 0 so that points stay at its multiples.

    Raises:
        ValueError: If an argument is not an integer of at least 1.
    """

    early: int
    until: int
    late: int

    def __post_init__(self) -> None:
        for name in ("early", "until", "late"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
            require_positive_int(name, getattr(self, name), "All three count steps.")

    def crossed(self, before: int, after: int) -> bool:
        """See `Schedule.crossed`."""
        if before < self.until and EverySteps(self.early).crossed(before, min(after, self.until)):
            return True
        return after > self.until and EverySteps(self.late).crossed(max(before, self.until), after)


def as_schedule(value: object, *, name: str = "every_steps") -> Schedule:
    """Turns an integer, a list of steps or a schedule object into a schedule.

    Args:
        value: What the user passed.
        name: The argument's name, for the error.

    Raises:
        ValueError: If `value` is none of the three, or not a valid one.
    """
    if isinstance(value, Schedule) and not isinstance(value, type):
        return value
    value = plain_integer(value)
    if isinstance(value, (str, bytes)) or not isinstance(value, (int, Iterable)):
        raise ValueError(
            f"`{name}` must be an integer of at least 1, an increasing list of steps, or an "
            f"object with a method `crossed(before, after)`. Received: {name}={value!r}. "
            f"Pass for example `{name}=500`."
        )
    if isinstance(value, int):
        require_positive_int(name, value, f"Pass for example `{name}=500`.")
        return EverySteps(value)
    return AtSteps(tuple(value))


def plain_integer(value: Any) -> Any:
    """Returns an integer of NumPy's as one of Python's, and anything else as it is."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


class StepClock:
    """Counts finished training steps of a run on the host.

    One step is one batch through the train function: one optimizer iteration, except
    where the optimizer makes none or several per batch (gradient accumulation, frozen
    models, custom train steps); then batches are what is counted.

    The device is asked only at an epoch's begin and end (`read_iterations`). Between
    them the count follows the begin index of each batch, which is the number of batches
    of this epoch that are finished, for any `steps_per_execution`.
    """

    def __init__(self) -> None:
        self.finished = 0
        self._epoch_start = 0
        self._iterations_at_epoch_start = 0
        self._begin_of_last_execution = 0
        self.in_epoch = False

    @property
    def finished_in_epoch(self) -> int:
        """Finished steps of the current epoch, or of the last one between two epochs."""
        return self.finished - self._epoch_start

    def begin_run(self, iterations: int, *, finished: int | None = None) -> None:
        """Starts at the optimizer's iterations, or at `finished` where a resumed run says more."""
        self.finished = iterations if finished is None else finished
        self._epoch_start = self.finished
        self.in_epoch = False

    def begin_epoch(self, iterations: int) -> None:
        """Notes where the epoch starts."""
        self._epoch_start = self.finished
        self._iterations_at_epoch_start = iterations
        self._begin_of_last_execution = -1
        self.in_epoch = True

    def begin_batch(self, batch: int) -> int:
        """Returns the finished steps when the batch with this begin index is about to run."""
        self._begin_of_last_execution = batch
        self.finished = self._epoch_start + batch
        return self.finished

    def end_epoch(self, iterations: int, *, steps_per_execution: int, planned: int | None) -> int:
        """Returns the finished steps at an epoch's end.

        The last execution may have been shorter than `steps_per_execution`. The optimizer
        tells by how much where it counts batches one by one; else the planned number does.

        Args:
            iterations: The optimizer's iterations now.
            steps_per_execution: As compiled.
            planned: Batches that the epoch was planned to have, or None where unknown.
        """
        if not self.in_epoch or self._begin_of_last_execution < 0:
            return self.finished
        begin = self._begin_of_last_execution
        latest = begin + steps_per_execution
        counted = iterations - self._iterations_at_epoch_start
        if begin < counted <= latest:
            made = counted
        elif planned is not None and begin < planned <= latest:
            made = planned
        else:
            made = latest
        self.finished = self._epoch_start + made
        self.in_epoch = False
        return self.finished
