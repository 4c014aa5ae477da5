"""Schedules against enumerated steps; the step clock against a list of batches."""

import itertools

import numpy as np
import pytest

from tfx_tips._core.schedule import (
    AtSteps,
    DenseThenSparse,
    EverySteps,
    Schedule,
    StepClock,
    as_schedule,
)

HORIZON = 40
SCHEDULES = [
    (EverySteps(1), lambda step: True),
    (EverySteps(7), lambda step: step in (7, 14, 21, 28, 35)),
    (EverySteps(50), lambda step: False),
    (AtSteps([1]), lambda step: step == 1),
    (AtSteps([3, 4, 19, 40]), lambda step: step in (3, 4, 19, 40)),
    (DenseThenSparse(2, 6, 10), lambda step: step in (2, 4, 6, 10, 20, 30, 40)),
    (DenseThenSparse(4, 6, 3), lambda step: step in (4, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39)),
    (DenseThenSparse(5, 3, 20), lambda step: step in (20, 40)),
]


@pytest.mark.parametrize(("schedule", "is_due"), SCHEDULES)
def test_crossed_says_whether_a_due_step_lies_in_the_interval(schedule, is_due):
    for before, after in itertools.combinations_with_replacement(range(HORIZON + 1), 2):
        expected = any(is_due(step) for step in range(before + 1, after + 1))
        assert schedule.crossed(before, after) == expected, (before, after)


@pytest.mark.parametrize(("schedule", "is_due"), SCHEDULES)
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 9])
def test_every_due_step_is_met_once_at_or_after_it_for_any_stride(schedule, is_due, stride):
    stops = [*range(0, HORIZON, stride), HORIZON]
    due = {step for step in range(1, HORIZON + 1) if is_due(step)}
    first_stop_after = {min(stop for stop in stops if stop >= step) for step in due}

    acted = {b for a, b in itertools.pairwise(stops) if schedule.crossed(a, b)}

    assert acted == first_stop_after


@pytest.mark.parametrize("steps", [0, -3, 2.0, True, "5", None])
def test_every_steps_rejects_what_is_no_positive_integer(steps):
    with pytest.raises(ValueError, match=rf"at least 1\. Received: steps={steps!r}"):
        EverySteps(steps)


@pytest.mark.parametrize("steps", [[], [0, 1], [3, 3], [5, 2], [1, 2.5], [True, 2]])
def test_at_steps_rejects_lists_that_are_empty_or_not_increasing(steps):
    with pytest.raises(ValueError, match="Received: steps="):
        AtSteps(steps)


@pytest.mark.parametrize("field", ["early", "until", "late"])
def test_dense_then_sparse_names_the_wrong_argument(field):
    arguments = {"early": 1, "until": 1, "late": 1, field: 0}

    with pytest.raises(ValueError, match=f"`{field}` must be .* Received: {field}=0"):
        DenseThenSparse(**arguments)


def test_at_steps_takes_a_generator_and_keeps_its_numbers():
    assert AtSteps(step for step in (2, 8)).steps == (2, 8)


def test_schedules_of_numpy_integers_hold_plain_ones():
    assert as_schedule(np.int64(5)) == EverySteps(5)
    assert type(as_schedule(np.int64(5)).steps) is int
    assert as_schedule(np.arange(10, 40, 10)) == AtSteps((10, 20, 30))
    assert {type(step) for step in AtSteps(np.arange(10, 40, 10)).steps} == {int}


def test_as_schedule_takes_an_integer_a_list_or_a_schedule():
    class Never:
        def crossed(self, before, after):
            return False

    own = Never()

    assert as_schedule(5) == EverySteps(5)
    assert as_schedule([5, 9]) == AtSteps((5, 9))
    assert as_schedule(own) is own
    assert isinstance(own, Schedule)


@pytest.mark.parametrize("value", [0, True, 2.5, "100", b"1", None, object(), EverySteps])
def test_as_schedule_names_the_argument_and_what_was_received(value):
    with pytest.raises(ValueError, match=r"`save_every` must be .* Received: save_every="):
        as_schedule(value, name="save_every")


class Run:
    """What Keras does to a clock: epochs of batches, several batches an execution.

    Args:
        updates: Optimizer updates that a batch makes.
        start: Optimizer iterations before the run.
    """

    def __init__(self, *, steps_per_execution, updates=1, start=0):
        self.steps_per_execution = steps_per_execution
        self.updates = updates
        self.iterations = start
        self.clock = StepClock()
        self.clock.begin_run(start)

    def epoch(self, batches, *, planned):
        """Runs an epoch; returns what the clock said at each begin and at the end."""
        said = []
        self.clock.begin_epoch(self.iterations)
        for begin in range(0, batches, self.steps_per_execution):
            said.append(self.clock.begin_batch(begin))
            self.iterations += self.updates * min(self.steps_per_execution, batches - begin)
        end = self.clock.end_epoch(
            self.iterations, steps_per_execution=self.steps_per_execution, planned=planned
        )
        return [*said, end]


@pytest.mark.parametrize("start", [0, 100])
@pytest.mark.parametrize("planned", ["known", "unknown"])
@pytest.mark.parametrize("steps_per_execution", [1, 3, 4])
@pytest.mark.parametrize("batches", [1, 4, 10, 12])
def test_clock_counts_batches_over_epochs(batches, steps_per_execution, planned, start):
    run = Run(steps_per_execution=steps_per_execution, start=start)
    plan = batches if planned == "known" else None

    for epoch in range(3):
        done = start + epoch * batches
        begins = [done + begin for begin in range(0, batches, steps_per_execution)]
        assert run.epoch(batches, planned=plan) == [*begins, done + batches]


def test_clock_counts_batches_of_a_frozen_model_by_the_plan():
    run = Run(steps_per_execution=4, updates=0)

    assert run.epoch(10, planned=10) == [0, 4, 8, 10]
    assert run.epoch(10, planned=10) == [10, 14, 18, 20]


def test_clock_counts_batches_where_each_makes_two_updates():
    run = Run(steps_per_execution=4, updates=2)

    assert run.epoch(10, planned=10) == [0, 4, 8, 10]
    assert run.epoch(10, planned=10) == [10, 14, 18, 20]


def test_clock_assumes_a_full_execution_where_neither_optimizer_nor_plan_tells():
    run = Run(steps_per_execution=4, updates=0)

    assert run.epoch(10, planned=None) == [0, 4, 8, 12]


def test_clock_believes_the_optimizer_where_the_data_ran_out_before_the_plan():
    run = Run(steps_per_execution=4)

    assert run.epoch(9, planned=10) == [0, 4, 8, 9]


def test_clock_counts_a_full_execution_beyond_a_plan_that_is_no_multiple_of_it():
    """An endless data set with `steps_per_epoch=10`: Keras runs three executions of four."""
    run = Run(steps_per_execution=4)

    assert run.epoch(12, planned=10) == [0, 4, 8, 12]


@pytest.mark.parametrize("updates", [0, 1])
def test_clock_counts_an_epoch_that_was_stopped_in_the_middle(updates):
    run = Run(steps_per_execution=4, updates=updates)

    assert run.epoch(8, planned=20) == [0, 4, 8]


def test_clock_counts_a_batch_whose_update_the_optimizer_left_out():
    """As loss scaling does where a gradient overflows."""
    clock = StepClock()
    clock.begin_run(0)
    clock.begin_epoch(0)
    for batch in range(5):
        clock.begin_batch(batch)

    assert clock.end_epoch(4, steps_per_execution=1, planned=5) == 5


def test_epoch_without_a_batch_leaves_the_clock_where_it_was():
    run = Run(steps_per_execution=1)
    run.epoch(5, planned=5)

    assert run.epoch(0, planned=5) == [5]


def test_epoch_that_ends_twice_counts_once():
    run = Run(steps_per_execution=1)
    run.epoch(5, planned=5)

    assert run.clock.end_epoch(5, steps_per_execution=1, planned=5) == 5


def test_resumed_run_goes_on_from_the_steps_it_is_told():
    clock = StepClock()
    clock.begin_run(0, finished=17)
    clock.begin_epoch(0)

    assert clock.finished_in_epoch == 0
    assert [clock.begin_batch(batch) for batch in range(3)] == [17, 18, 19]
    assert clock.end_epoch(3, steps_per_execution=1, planned=3) == 20
    assert clock.finished_in_epoch == 3


def test_second_run_of_one_clock_starts_afresh():
    run = Run(steps_per_execution=1)
    run.epoch(5, planned=5)
    run.clock.begin_run(2)

    assert run.clock.finished == 2
    assert run.clock.finished_in_epoch == 0
