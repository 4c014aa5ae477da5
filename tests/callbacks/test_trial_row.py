import csv
import dataclasses
import datetime
import logging
import math
import threading

import numpy as np
import pytest

from tfx_tips._core.errors import NoFiniteMetricError
from tfx_tips.callbacks.experiment_records import open_trial
from tfx_tips.callbacks.experiment_table import locked
from tfx_tips.callbacks.trial_row import TrialRow, utc_now


@dataclasses.dataclass
class Kept:
    """What is asked of a best checkpoint."""

    step: int
    metrics: dict
    path: str


@pytest.fixture
def begin(tmp_path):
    """Opens a trial, and ends its thread after the test."""
    trials = []

    def begin(mode="min", **options):
        cells = {"study": "s", "status": "running", "monitor": "val_loss", "mode": mode}
        number = open_trial(tmp_path, cells, {})["trial"]
        trials.append(TrialRow(tmp_path, {**cells, "trial": number}, **options))
        return trials[-1]

    yield begin
    for trial in trials:
        trial.flush()


@pytest.fixture
def row(tmp_path):
    """Reads the last row as a spreadsheet would."""

    def row():
        with (tmp_path / "trials.csv").open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))[-1]

    return row


@pytest.mark.parametrize(
    ("mode", "values", "step", "best"),
    [
        ("min", [0.5, 0.2, 0.9], 2, 0.2),
        ("max", [0.5, 0.2, 0.9], 3, 0.9),
        ("min", [0.5, 0.5], 1, 0.5),
        ("min", [math.nan, 0.7, math.nan], 2, 0.7),
        ("min", [-math.inf, 0.7], 2, 0.7),
        ("max", [0.7, math.inf], 1, 0.7),
    ],
)
def test_the_row_has_the_best_value_and_its_step_at_any_time(begin, row, mode, values, step, best):
    trial = begin(mode)
    for number, value in enumerate(values, start=1):
        trial.observe(number, {"val_loss": value, "loss": 0.0})
    trial.flush()
    assert (row()["best_value"], row()["best_step"], row()["status"]) == (
        repr(best),
        str(step),
        "running",
    )
    trial.end("completed")
    assert (row()["best_value"], row()["steps"], row()["status"]) == (
        repr(best),
        str(len(values)),
        "completed",
    )


def test_only_nan_is_shown_as_nan(begin, row):
    trial = begin()
    trial.observe(1, {"val_loss": math.nan})
    trial.observe(2, {"val_loss": math.nan})
    trial.flush()
    assert (row()["best_value"], row()["best_step"]) == ("nan", "1")


def test_takes_numpy_numbers_and_leaves_arrays_out(begin, row):
    trial = begin()
    trial.observe(1, {"val_loss": np.float32(0.5)})
    trial.observe(2, {"val_loss": np.zeros(3)})
    trial.flush()
    assert (row()["best_value"], row()["best_step"]) == ("0.5", "1")


def test_writes_nothing_where_nothing_is_better(begin, tmp_path):
    def state():
        trial.flush()
        found = (tmp_path / "trials.csv").stat()
        return found.st_mtime_ns, found.st_ino

    trial = begin()
    trial.observe(1, {"val_loss": 0.5})
    before = state()
    trial.observe(2, {"val_loss": 0.6})
    trial.observe(3, {"loss": 0.1})
    assert state() == before


def test_a_metric_that_never_came_leaves_empty_cells_and_says_what_came(begin, row, caplog):
    trial = begin()
    trial.observe(4, {"loss": 0.5, "val_mae": 0.1})
    with caplog.at_level(logging.WARNING):
        trial.end("completed")
    assert (row()["best_value"], row()["best_step"], row()["steps"]) == ("", "", "4")
    assert "'val_loss' was in no logs" in caplog.text
    assert "loss, val_mae" in caplog.text


def test_describes_the_checkpoint_that_is_kept(begin, row):
    kept = []
    trial = begin(best_checkpoint=lambda: kept[-1] if kept else None)
    trial.observe(1, {"val_loss": 0.5})
    trial.flush()
    assert (row()["best_value"], row()["best_checkpoint"]) == ("0.5", "")
    kept.append(Kept(1, {"val_loss": 0.5}, "/c/1.keras"))
    trial.observe(2, {"val_loss": 0.4})  # its file is not written yet
    trial.flush()
    assert (row()["best_value"], row()["best_step"], row()["best_checkpoint"]) == (
        "0.5",
        "1",
        "/c/1.keras",
    )
    kept.append(Kept(2, {"val_loss": 0.4}, "/c/2.keras"))
    trial.end("completed")
    assert (row()["best_value"], row()["best_step"], row()["best_checkpoint"]) == (
        "0.4",
        "2",
        "/c/2.keras",
    )


def test_a_checkpoint_of_nan_does_not_write_at_every_evaluation(begin, tmp_path):
    kept = Kept(1, {"val_loss": math.nan}, "/c/1.keras")
    trial = begin(best_checkpoint=lambda: kept)
    trial.observe(1, {"val_loss": math.nan})
    trial.flush()
    before = (tmp_path / "trials.csv").stat().st_ino
    trial.observe(2, {"val_loss": math.nan})
    trial.flush()
    assert (tmp_path / "trials.csv").stat().st_ino == before


def test_a_checkpoint_without_the_metric_leaves_the_best_value_seen(begin, row):
    trial = begin(best_checkpoint=lambda: Kept(1, {"val_auc": 0.9}, "/c/1.keras"))
    trial.observe(1, {"val_loss": 0.5})
    trial.end("completed")
    assert (row()["best_value"], row()["best_checkpoint"]) == ("0.5", "")


def test_an_error_of_the_checkpoints_is_logged_and_training_goes_on(begin, row, caplog):
    def best_checkpoint():
        raise NoFiniteMetricError("all are NaN")

    trial = begin(best_checkpoint=best_checkpoint)
    trial.observe(1, {"val_loss": 0.5})
    trial.end("failed")
    assert (row()["best_value"], row()["status"]) == ("0.5", "failed")
    assert "all are NaN" in caplog.text


def test_a_row_that_cannot_be_written_is_logged_and_written_whole_later(
    begin, row, tmp_path, caplog
):
    trial = begin()
    table = (tmp_path / "trials.csv").read_bytes()
    (tmp_path / "trials.csv").write_bytes(b"not;a;table\r\n1;2;3\r\n")
    trial.observe(1, {"val_loss": 0.5})
    trial.flush()
    assert "could not be written" in caplog.text
    assert "not;a;table" in caplog.text
    (tmp_path / "trials.csv").write_bytes(table)
    trial.end("completed")
    assert (row()["best_value"], row()["best_step"], row()["status"]) == ("0.5", "1", "completed")


def test_goes_on_with_an_earlier_best(begin, row):
    trial = begin(best=0.3)
    trial.observe(1, {"val_loss": 0.5})
    trial.flush()
    assert row()["best_value"] == ""
    trial.observe(2, {"val_loss": 0.2})
    trial.flush()
    assert row()["best_value"] == "0.2"


def test_training_does_not_wait_for_whoever_holds_the_tables(begin, row, tmp_path):
    trial = begin()
    with locked(tmp_path):
        trial.observe(1, {"val_loss": 0.5})
        trial.observe(2, {"val_loss": 0.4})
        trial.observe(3, {"val_loss": 0.3})
        assert row()["best_value"] == ""
    trial.flush()
    assert (row()["best_value"], row()["best_step"]) == ("0.3", "3")


def test_no_thread_is_left_after_the_end(begin):
    trial = begin()
    trial.observe(1, {"val_loss": 0.5})
    trial.end("completed")
    assert not [t for t in threading.enumerate() if t.name == "tfx_tips.trial_row"]


def test_a_part_that_ends_and_begins_again_is_one_row(begin, row):
    trial = begin()
    trial.end("running")
    trial.begin_again()
    trial.end("completed")
    assert (row()["trial"], row()["status"]) == ("1", "completed")


def test_times_are_read_by_spreadsheets_and_python():
    time = datetime.datetime.strptime(utc_now(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=datetime.UTC)
    assert abs(datetime.datetime.now(datetime.UTC) - time) < datetime.timedelta(seconds=5)
