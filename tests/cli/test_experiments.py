import subprocess
import sys

import pytest

from tfx_tips.callbacks.experiment_records import open_trial
from tfx_tips.cli.main import main


@pytest.fixture
def tables(tmp_path):
    """A directory with two studies, one of them with two trials."""
    for study, value in (("rates", 0.5), ("rates", 0.25), ("depths", 0.75)):
        cells = {"study": study, "status": "completed", "monitor": "val_loss", "mode": "min"}
        open_trial(tmp_path, {**cells, "best_value": value, "command": f"train {value}"}, {})
    return tmp_path


def test_prints_one_line_a_study(tables, capsys):
    assert main(["experiments", str(tables)]) == 0
    assert capsys.readouterr().out == (
        "study   status     trials  monitor   best  by trial\n"
        "------  ---------  ------  --------  ----  --------\n"
        "rates   completed       2  val_loss  0.25         2\n"
        "depths  completed       1  val_loss  0.75         1\n"
    )


def test_prints_one_line_a_trial(tables, capsys):
    assert main(["experiments", str(tables), "--trials"]) == 0
    assert capsys.readouterr().out == (
        "study   trial  status     monitor   best\n"
        "------  -----  ---------  --------  ----\n"
        "rates       2  completed  val_loss  0.25\n"
        "rates       1  completed  val_loss   0.5\n"
        "depths      1  completed  val_loss  0.75\n"
    )


def test_prints_one_study_and_the_command_that_repeats_it(tables, capsys):
    assert main(["experiments", str(tables), "--study", "rates"]) == 0
    output = capsys.readouterr().out
    assert "depths" not in output
    assert output.splitlines()[-1] == "command: train 0.25"


def test_prints_the_trials_of_one_study(tables, capsys):
    assert main(["experiments", str(tables), "--trials", "--study", "depths"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["depths"]


def test_a_directory_without_tables_is_a_clear_error(tmp_path, capsys):
    assert main(["experiments", str(tmp_path / "none")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "must hold studies.csv or trials.csv" in captured.err
    assert str(tmp_path / "none") in captured.err
    assert "Traceback" not in captured.err


def test_an_unknown_study_is_an_error_that_names_those_there_are(tables, capsys):
    assert main(["experiments", str(tables), "--study", "rate"]) == 2
    assert "'depths', 'rates'" in capsys.readouterr().err


def test_needs_neither_numpy_nor_keras_nor_tensorflow(tables):
    code = (
        "import sys\n"
        "from tfx_tips.cli.main import main\n"
        "main(['experiments', sys.argv[1], '--trials'])\n"
        "print(sorted({'numpy', 'keras', 'tensorflow'} & set(sys.modules)))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(tables)], check=True, capture_output=True, text=True
    ).stdout
    assert output.splitlines()[-1] == "[]"
