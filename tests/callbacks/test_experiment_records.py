import csv
import dataclasses
import subprocess
import sys

import pytest

from tfx_tips._core.files import STRAY_PREFIX
from tfx_tips._core.processes import ProcessIdentity
from tfx_tips.callbacks.experiment_records import (
    continue_trial,
    list_studies,
    list_trials,
    open_trial,
    save_beside,
    update_trial,
)


def trial_cells(study="s", **cells):
    return {"study": study, "status": "running", "monitor": "val_loss", "mode": "min", **cells}


def process_cells(identity):
    return {
        "host": identity.host,
        "process": identity.pid,
        "process_started": identity.started,
    }


def complete(directory, trial, value, **cells):
    update_trial(
        directory,
        trial_cells(trial=trial, status="completed", best_value=value, **cells),
    )


def spreadsheet(path):
    """What a program sees that knows only CSV: rows by column."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def ended_process():
    """The identity of a process that is gone."""
    code = (
        "from tfx_tips._core.processes import ProcessIdentity\n"
        "me = ProcessIdentity.current()\n"
        "print(me.host, me.pid, repr(me.started))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    host, pid, started = output.split()
    return ProcessIdentity(host, int(pid), float(started))


def test_numbers_the_trials_of_each_study(tmp_path):
    numbers = [open_trial(tmp_path, trial_cells(study), {})["trial"] for study in "aabab"]
    assert numbers == ["1", "2", "1", "3", "2"]


def test_a_number_is_not_given_again_after_rows_were_deleted(tmp_path):
    for _ in range(3):
        open_trial(tmp_path, trial_cells(), {})
    path = tmp_path / "trials.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[3]]))
    assert open_trial(tmp_path, trial_cells(), {})["trial"] == "4"


def test_both_tables_open_as_plain_csv(tmp_path):
    open_trial(tmp_path, trial_cells(command="python a.py"), {"notes": "first, try"})
    complete(tmp_path, 1, 0.25, best_step=10, best_checkpoint="/c/10.keras", steps=20)
    (trial,) = spreadsheet(tmp_path / "trials.csv")
    (study,) = spreadsheet(tmp_path / "studies.csv")
    assert {name: cell for name, cell in trial.items() if cell} == {
        "study": "s",
        "trial": "1",
        "status": "completed",
        "monitor": "val_loss",
        "mode": "min",
        "best_value": "0.25",
        "best_step": "10",
        "best_checkpoint": "/c/10.keras",
        "steps": "20",
        "command": "python a.py",
    }
    assert {name: cell for name, cell in study.items() if cell} == {
        "study": "s",
        "status": "completed",
        "trials": "1",
        "monitor": "val_loss",
        "mode": "min",
        "best_value": "0.25",
        "best_step": "10",
        "best_checkpoint": "/c/10.keras",
        "best_trial": "1",
        "command": "python a.py",
        "notes": "first, try",
    }


def test_a_study_has_the_best_trial_of_all(tmp_path):
    for trial, value in enumerate([0.5, 0.2, 0.9], start=1):
        open_trial(tmp_path, trial_cells(command=f"run {trial}"), {})
        complete(tmp_path, trial, value, best_step=10 * trial)
    for (study,) in (list_studies(tmp_path), spreadsheet(tmp_path / "studies.csv")):
        assert study["trials"] == "3"
        assert study["best_value"] == "0.2"
        assert study["best_step"] == "20"
        assert study["best_trial"] == "2"
        assert study["command"] == "run 2"


def test_an_empty_note_keeps_what_stands_there_and_another_replaces_it(tmp_path):
    open_trial(tmp_path, trial_cells(), {"notes": "first", "configuration": "a.yaml"})
    open_trial(tmp_path, trial_cells(), {"notes": "", "configuration": None})
    assert list_studies(tmp_path)[0]["notes"] == "first"
    open_trial(tmp_path, trial_cells(), {"notes": "second"})
    (study,) = list_studies(tmp_path)
    assert (study["notes"], study["configuration"]) == ("second", "a.yaml")


def test_notes_and_columns_added_by_hand_survive(tmp_path):
    open_trial(tmp_path, trial_cells(), {})
    path = tmp_path / "studies.csv"
    header, row = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{header},rating\n{row},=5*2\n", encoding="utf-8")
    complete(tmp_path, 1, 0.5)
    (study,) = spreadsheet(path)
    assert (study["rating"], study["best_value"]) == ("=5*2", "0.5")


def test_a_new_parameter_is_a_new_column_and_old_rows_lack_it(tmp_path):
    open_trial(tmp_path, trial_cells(**{"parameter/lr": 0.1}), {})
    open_trial(tmp_path, trial_cells(**{"parameter/lr": 0.2, "parameter/units": 8}), {})
    rows = spreadsheet(tmp_path / "trials.csv")
    assert [(row["parameter/lr"], row["parameter/units"]) for row in rows] == [
        ("0.1", ""),
        ("0.2", "8"),
    ]
    assert "parameter/units" not in list_trials(tmp_path)[0]


def test_a_lost_row_comes_back_whole(tmp_path):
    open_trial(tmp_path, trial_cells(), {})
    (tmp_path / "trials.csv").unlink()
    complete(tmp_path, 1, 0.5)
    (trial,) = list_trials(tmp_path)
    assert (trial["study"], trial["trial"], trial["status"]) == ("s", "1", "completed")


def test_running_is_seen_as_killed_where_the_process_is_gone(tmp_path, ended_process):
    open_trial(tmp_path, trial_cells(**process_cells(ended_process)), {})
    assert spreadsheet(tmp_path / "trials.csv")[0]["status"] == "running"
    assert list_trials(tmp_path)[0]["status"] == "killed"
    assert list_studies(tmp_path)[0]["status"] == "killed"


def test_running_is_seen_as_running_where_the_process_lives(tmp_path):
    open_trial(tmp_path, trial_cells(**process_cells(ProcessIdentity.current())), {})
    assert list_trials(tmp_path)[0]["status"] == "running"
    assert list_studies(tmp_path)[0]["status"] == "running"


def test_running_on_another_host_stays_running(tmp_path, ended_process):
    elsewhere = dataclasses.replace(ended_process, host="elsewhere.invalid")
    open_trial(tmp_path, trial_cells(**process_cells(elsewhere)), {})
    assert list_trials(tmp_path)[0]["status"] == "running"


def test_an_ended_trial_is_never_seen_as_killed(tmp_path, ended_process):
    open_trial(tmp_path, trial_cells(**process_cells(ended_process)), {})
    complete(tmp_path, 1, 0.5)
    assert list_trials(tmp_path)[0]["status"] == "completed"


def test_a_study_runs_as_long_as_one_of_its_trials_does(tmp_path, ended_process):
    open_trial(tmp_path, trial_cells(**process_cells(ProcessIdentity.current())), {})
    open_trial(tmp_path, trial_cells(**process_cells(ended_process)), {})
    assert list_studies(tmp_path)[0]["status"] == "running"
    complete(tmp_path, 1, 0.5)
    assert list_studies(tmp_path)[0]["status"] == "killed"


def test_the_list_of_studies_follows_the_trials_where_its_table_lags_behind(tmp_path):
    open_trial(tmp_path, trial_cells("a"), {"notes": "kept"})
    before = (tmp_path / "studies.csv").read_bytes()
    open_trial(tmp_path, trial_cells("a"), {})
    open_trial(tmp_path, trial_cells("b"), {})
    (tmp_path / "studies.csv").write_bytes(before)
    studies = list_studies(tmp_path)
    assert [(study["study"], study["trials"]) for study in studies] == [("a", "2"), ("b", "1")]
    assert studies[0]["notes"] == "kept"


def test_lists_one_study_and_names_those_there_are(tmp_path):
    for study in ("a", "b", "a"):
        open_trial(tmp_path, trial_cells(study), {})
    assert len(list_trials(tmp_path, study="a")) == 2
    assert [row["study"] for row in list_studies(tmp_path, study="b")] == ["b"]
    with pytest.raises(ValueError, match=r"'a', 'b'\. Received: study='c'"):
        list_studies(tmp_path, study="c")


def test_a_directory_without_tables_is_an_error_that_says_what_to_pass(tmp_path):
    for read in (list_studies, list_trials):
        with pytest.raises(FileNotFoundError, match=r"studies.csv or trials.csv. Received: dir"):
            read(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_continues_the_row_of_the_same_checkpoints(tmp_path):
    for folder in ("/c/1", "/c/2"):
        open_trial(tmp_path, trial_cells(checkpoint_directory=folder, started_utc="t0"), {})
    complete(tmp_path, 1, 0.5, best_step=7, checkpoint_directory="/c/1")
    cells = trial_cells(checkpoint_directory="/c/1", started_utc="t9", command="again")
    row = continue_trial(tmp_path, cells, {})
    expected = {
        "trial": "1",
        "status": "running",
        "started_utc": "t0",
        "best_value": "0.5",
        "best_step": "7",
        "command": "again",
    }
    assert expected.items() <= row.items()
    assert [trial["status"] for trial in list_trials(tmp_path)] == ["running", "running"]


@pytest.mark.parametrize(
    "other",
    [
        {"study": "t"},
        {"checkpoint_directory": "/c/2"},
        {"monitor": "val_auc"},
        {"mode": "max"},
    ],
)
def test_continues_no_row_of_another_run(tmp_path, other):
    open_trial(tmp_path, trial_cells(checkpoint_directory="/c/1"), {})
    cells = trial_cells(**{"checkpoint_directory": "/c/1", **other})
    assert continue_trial(tmp_path, cells, {}) is None
    assert len(list_trials(tmp_path)) == 1


def test_saves_a_file_beside_the_tables_once(tmp_path):
    for _ in range(2):
        save_beside(tmp_path / "t", "diffs/ab.diff", b"- a\n")
    assert [path.name for path in (tmp_path / "t" / "diffs").iterdir()] == ["ab.diff"]
    assert (tmp_path / "t" / "diffs" / "ab.diff").read_bytes() == b"- a\n"


def test_strays_of_other_writers_in_the_folder_are_left_alone(tmp_path):
    for name in ("trials.csv", "studies.csv", "model.keras"):
        (tmp_path / f"{STRAY_PREFIX}0-{name}").touch()
    open_trial(tmp_path, trial_cells(), {})
    assert sorted(path.name for path in tmp_path.glob(f"{STRAY_PREFIX}*")) == [
        f"{STRAY_PREFIX}0-model.keras"
    ]


APPEND_MANY = """
import sys
from pathlib import Path
from tfx_tips.callbacks.experiment_records import open_trial, update_trial

directory, writer, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
for number in range(count):
    cells = {"study": "s", "status": "running", "monitor": "m", "mode": "min",
             f"parameter/{writer}": number}
    row = open_trial(directory, cells, {"notes": writer})
    update_trial(directory, {**cells, "trial": row["trial"], "status": "completed",
                             "best_value": number, "command": f"{writer} {number}"})
"""


@pytest.mark.multi_process
def test_processes_that_append_at_once_lose_nothing(tmp_path):
    count, writers = 100, ("a", "b")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", APPEND_MANY, str(tmp_path), writer, str(count)],
            stdin=subprocess.PIPE,
            text=True,
        )
        for writer in writers
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    rows = spreadsheet(tmp_path / "trials.csv")
    assert sorted(int(row["trial"]) for row in rows) == list(range(1, 2 * count + 1))
    for writer in writers:
        own = [row for row in rows if row["command"].startswith(writer)]
        assert [row[f"parameter/{writer}"] for row in own] == [str(n) for n in range(count)]
        assert {row["status"] for row in own} == {"completed"}
    (study,) = spreadsheet(tmp_path / "studies.csv")
    assert (study["trials"], study["best_value"]) == (str(2 * count), "0")


# Kills itself at its k-th file operation in the directory, for every k, each time in a copy.
KILL_AT_EVERY_OPERATION = """
import os, shutil, signal, sys
from pathlib import Path
from tfx_tips.callbacks.experiment_records import open_trial, save_beside, update_trial

start, copies = Path(sys.argv[1]), Path(sys.argv[2])
for k in range(1, 1000):
    directory = copies / f"{k:03d}"
    shutil.copytree(start, directory)
    child = os.fork()
    if child == 0:
        operations = 0

        def count(event, arguments):
            global operations
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.scandir"):
                if str(arguments[0]).startswith(str(directory)):
                    operations += 1
                    if operations == k:
                        os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        save_beside(directory, "diffs/ab.diff", b"whole")
        cells = {"study": "s", "status": "running", "monitor": "m", "mode": "min",
                 "git_diff": "diffs/ab.diff", "notes": "x" * 10000}
        row = open_trial(directory, cells, {})
        update_trial(directory, {**cells, "trial": row["trial"], "status": "completed",
                                 "best_value": 0.5})
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(k)
"""


@pytest.mark.multi_process
def test_a_kill_at_any_file_operation_leaves_whole_tables(tmp_path):
    start = tmp_path / "start"
    for number in range(3):
        open_trial(start, trial_cells(monitor="m"), {"notes": "kept"})
        complete(start, number + 1, number + 1, monitor="m")
    before = spreadsheet(start / "trials.csv")
    output = subprocess.run(
        [sys.executable, "-c", KILL_AT_EVERY_OPERATION, str(start), str(tmp_path / "copies")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    copies = sorted((tmp_path / "copies").iterdir())
    assert len(copies) == int(output) > 15
    states = set()
    for directory in copies:
        rows = spreadsheet(directory / "trials.csv")
        assert [row | {"notes": ""} for row in rows[:3]] == [row | {"notes": ""} for row in before]
        states.add((len(rows), rows[-1]["status"]))
        for row in rows[3:]:
            assert (row["trial"], row["notes"]) == ("4", "x" * 10000)
            assert (directory / row["git_diff"]).read_bytes() == b"whole"
        (study,) = spreadsheet(directory / "studies.csv")
        assert study["notes"] == "kept"
        assert list_studies(directory)[0]["trials"] == str(len(rows))
        # The next trial finds nothing in its way and cleans up.
        save_beside(directory, "diffs/ab.diff", b"whole")
        row = open_trial(directory, trial_cells(monitor="m"), {})
        assert row["trial"] == str(len(rows) + 1)
        assert spreadsheet(directory / "studies.csv")[0]["trials"] == str(len(rows) + 1)
        assert not list(directory.rglob(f"{STRAY_PREFIX}*"))
    assert states == {(3, "completed"), (4, "running"), (4, "completed")}
