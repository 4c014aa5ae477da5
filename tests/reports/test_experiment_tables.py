import socket

import pytest

from tfx_tips.callbacks.experiment_records import open_trial
from tfx_tips.reports.experiment_tables import studies_table, trials_table


def add(directory, study, value=None, **cells):
    cells = {"status": "completed", "monitor": "val_loss", "mode": "min", **cells}
    notes = {"notes": cells.pop("notes", "")}
    open_trial(directory, {"study": study, "best_value": value, **cells}, notes)


def lines_of(table):
    return [line.split() for line in table.splitlines() if not line.startswith("-")]


def test_studies_stand_in_the_order_of_their_begin(tmp_path):
    add(tmp_path, "late alphabet", 0.5, best_step=10)
    add(tmp_path, "early", 0.25, monitor="val_mae", best_step=20)
    add(tmp_path, "late alphabet", 0.75, best_step=30)
    assert studies_table(tmp_path) == (
        "study          status     trials  monitor   best  at step  by trial\n"
        "-------------  ---------  ------  --------  ----  -------  --------\n"
        "late alphabet  completed       2  val_loss   0.5       10         1\n"
        "early          completed       1  val_mae   0.25       20         1"
    )


def test_trials_of_a_study_stand_together_the_best_first_and_those_without_a_value_last(tmp_path):
    for study, value in (("a", None), ("a", 0.5), ("b", 0.1), ("a", float("nan")), ("a", 0.2)):
        add(tmp_path, study, value)
    assert trials_table(tmp_path) == (
        "study  trial  status     monitor   best\n"
        "-----  -----  ---------  --------  ----\n"
        "a          4  completed  val_loss   0.2\n"
        "a          2  completed  val_loss   0.5\n"
        "a          3  completed  val_loss   nan\n"
        "a          1  completed  val_loss\n"
        "b          1  completed  val_loss   0.1"
    )


def test_each_parameter_is_a_column_even_one_named_like_another(tmp_path):
    add(tmp_path, "s", 0.5, **{"parameter/lr": 0.1, "parameter/best": "x"})
    add(tmp_path, "s", 0.6, **{"parameter/lr": -2})
    assert lines_of(trials_table(tmp_path)) == [
        ["study", "trial", "status", "monitor", "best", "lr", "best"],
        ["s", "1", "completed", "val_loss", "0.5", "0.1", "x"],
        ["s", "2", "completed", "val_loss", "0.6", "-2"],
    ]


def test_killed_trials_are_shown_as_killed(tmp_path):
    gone = {"host": socket.gethostname(), "process": 2**30, "process_started": 1.0}
    add(tmp_path, "s", status="running", **gone)
    for table in (studies_table, trials_table):
        assert lines_of(table(tmp_path))[1][1 if table is studies_table else 2] == "killed"


def test_one_study_shows_how_to_repeat_its_best_trial(tmp_path):
    add(tmp_path, "other", 0.1, command="python other.py")
    add(
        tmp_path,
        "s",
        0.5,
        command="python train.py 'two  spaces\x1b[2J'",
        working_directory="/home/me",
        git_commit="0123456789abcdef",
        git_diff="diffs/ab.diff",
        notes="first\nsecond",
    )
    table = studies_table(tmp_path, study="s")
    assert "other" not in table
    assert table.splitlines()[-5:] == [
        r"notes: first\nsecond",
        r"command: python train.py 'two  spaces\x1b[2J'",
        "working directory: /home/me",
        "commit: 0123456789abcdef",
        "changes since: diffs/ab.diff",
    ]


def test_long_text_is_cut_and_what_one_copies_is_not(tmp_path):
    path = "/checkpoints/" + "x" * 60 + "/10.keras"
    add(tmp_path, "s" * 60, 0.5, best_checkpoint=path, notes="n" * 60)
    header, _, row = studies_table(tmp_path).splitlines()
    assert row.split()[0] == "s" * 60
    assert row.endswith(f"{'n' * 39}…  {path}")
    assert header.split()[-2:] == ["notes", "checkpoint"]


def test_a_checkpoint_below_the_working_directory_is_shown_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add(tmp_path, "a", best_checkpoint=str(tmp_path / "c" / "1.keras"))
    add(tmp_path, "b", best_checkpoint="gs://bucket/1.keras")
    add(tmp_path, "c", best_checkpoint="/elsewhere/1.keras")
    shown = [line[-1] for line in lines_of(studies_table(tmp_path))[1:]]
    assert shown == ["c/1.keras", "gs://bucket/1.keras", "/elsewhere/1.keras"]


def test_a_commit_is_short_and_says_that_the_tree_was_changed(tmp_path):
    add(tmp_path, "a", git_commit="0123456789abcdef", git_dirty=True)
    add(tmp_path, "b", git_commit="0123456789abcdef", git_dirty=False)
    table = trials_table(tmp_path).splitlines()
    assert table[2].endswith("  0123456789 + changes")
    assert table[3].endswith("  0123456789")


def test_text_that_is_no_number_as_written_stays_text(tmp_path):
    add(tmp_path, "s", 0.5, **{"parameter/id": "007", "parameter/rate": "1e-3"})
    assert lines_of(trials_table(tmp_path))[1][-2:] == ["007", "1e-3"]


def test_an_unknown_study_and_a_missing_table_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="ExperimentTracker was given"):
        trials_table(tmp_path)
    add(tmp_path, "s", 0.5)
    with pytest.raises(ValueError, match=r"'s'\. Received: study='t'"):
        trials_table(tmp_path, study="t")
