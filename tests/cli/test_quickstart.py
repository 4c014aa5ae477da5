import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfx_tips.cli import quickstart


def parsed(*words):
    parser = argparse.ArgumentParser()
    quickstart.add_arguments(parser)
    return parser.parse_args(words)


def test_arguments_have_defaults_and_take_numbers():
    assert vars(parsed()) == {"directory": Path("tfx-tips-quickstart"), "steps": 600, "seed": 0}
    assert vars(parsed("--directory", "out", "--steps", "12", "--seed", "3")) == {
        "directory": Path("out"),
        "steps": 12,
        "seed": 3,
    }


@pytest.mark.multi_process
def test_command_ends_with_a_report_that_says_what_to_do_next(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tfx_tips", "quickstart", "--steps", "12", "--directory", "out"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = done.stdout[done.stdout.index("Evaluated every") :]
    assert "█" in report
    assert re.search(r"Chosen: step \d+, at \d+% of the budget", report)
    reloaded, recorded = re.findall(r"(\d+\.\d\d)%", report)
    assert reloaded == recorded
    assert "tensorboard --logdir out" in report
    assert list((tmp_path / "out" / "run-1").glob("events.out.tfevents.*"))


@pytest.mark.multi_process
def test_a_wrong_number_of_steps_is_said_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tfx_tips", "quickstart", "--steps", "0"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tfx-tips: `steps` must be an integer of at least 1.")
    assert not list(tmp_path.iterdir())
