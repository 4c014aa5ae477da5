import itertools
import math
import random

import pytest

from tfx_tips.callbacks.experiment_summary import (
    number,
    summary,
    trials_best_first,
    whole_number,
)


def trial(place, value, mode="min", monitor="val_loss", **cells):
    found = {"trial": str(place), "status": "completed", "monitor": monitor, "mode": mode, **cells}
    return found if value is None else {**found, "best_value": repr(value)}


def best_by_brute_force(values, mode):
    """The first place that no other value beats."""

    def beats(a, b):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(b) and not math.isnan(a)
        if math.isinf(a) != math.isinf(b):
            return math.isinf(b)
        return a < b if mode == "min" else a > b

    return next(
        place
        for place, value in enumerate(values)
        if not any(beats(other, value) for other in values)
    )


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_trial_is_the_one_that_no_other_beats(mode):
    generator = random.Random(0)
    pool = [0.5, 0.5, -1.0, 2.0, math.nan, math.inf, -math.inf]
    for _ in range(300):
        values = generator.choices(pool, k=generator.randint(1, 5))
        trials = [trial(place, value, mode) for place, value in enumerate(values)]
        assert trials_best_first(trials)[0]["trial"] == str(best_by_brute_force(values, mode))


def test_trials_without_a_value_or_of_another_metric_are_left_out():
    trials = [
        trial(1, 0.1, monitor="val_mae"),
        trial(2, None),
        trial(3, 0.5),
        trial(4, 0.4),
        trial(5, 0.9, mode="max"),
        trial(6, None),
    ]
    assert [row["trial"] for row in trials_best_first(trials)] == ["4", "3"]
    assert trials_best_first([]) == []
    assert trials_best_first([trial(1, 0.5, mode="?")]) == []


def test_a_study_without_values_takes_over_the_latest_trial():
    found = summary([trial(1, None, command="one"), trial(2, None, command="two")])
    assert (found["command"], found["best_value"], found["best_trial"]) == ("two", "", "")
    assert found["trials"] == "2"


@pytest.mark.parametrize(
    "states", list(itertools.product(["running", "failed", "completed"], repeat=2))
)
def test_a_study_runs_while_a_trial_does_and_then_has_the_latest_status(states):
    trials = [trial(place, 0.5, status=status) for place, status in enumerate(states)]
    expected = "running" if "running" in states else states[-1]
    assert summary(trials)["status"] == expected


def test_a_study_spans_the_time_of_its_trials():
    trials = [
        trial(1, 0.1, started_utc="2030-01-02 00:00:00", updated_utc="2030-01-09 00:00:00"),
        trial(2, 0.2, started_utc="2030-01-03 00:00:00", updated_utc="2030-01-04 00:00:00"),
    ]
    found = summary(trials)
    assert (found["started_utc"], found["updated_utc"]) == (
        "2030-01-02 00:00:00",
        "2030-01-09 00:00:00",
    )


def test_reads_numbers_and_only_numbers():
    assert [number(text) for text in ("0.5", "-3", "x", "", None)] == [0.5, -3.0, None, None, None]
    assert [whole_number(text) for text in ("7", "0.5", "", None)] == [7, None, None, None]
