import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfx_tips.callbacks.run_origin import command_to_reproduce, origin_cells, working_directory

SHOW = (
    "from tfx_tips.callbacks.run_origin import command_to_reproduce as command; "
    "print(command(), end='')"
)


def output_of(*arguments, **options):
    return subprocess.run(arguments, check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my script.py"
    path.write_text(SHOW)
    return path


def test_a_script_is_repeated_by_typing_the_command(script, tmp_path):
    arguments = [sys.executable, "-X", "utf8", script.name, "--lr=0.1", "a b", "it's", "$HOME", ""]
    command = output_of(*arguments, cwd=tmp_path)
    assert shlex.split(command) == arguments
    assert output_of("sh", "-c", command, cwd=tmp_path) == command


def test_a_module_is_repeated_by_typing_the_command(script, tmp_path):
    script.rename(tmp_path / "module.py")
    arguments = [sys.executable, "-m", "module", "--flag"]
    assert shlex.split(output_of(*arguments, cwd=tmp_path)) == arguments


def test_code_on_the_command_line_is_repeated():
    assert shlex.split(output_of(sys.executable, "-c", SHOW, "x")) == [
        sys.executable,
        "-c",
        SHOW,
        "x",
    ]


def test_a_spawned_process_is_repeated_as_its_parent(tmp_path):
    path = tmp_path / "spawning.py"
    path.write_text(
        "import multiprocessing\n"
        "def child():\n"
        f"    {SHOW}\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    arguments = [sys.executable, str(path), "--lr", "1"]
    assert shlex.split(output_of(*arguments)) == arguments


def test_a_program_from_a_pipe_has_no_command():
    assert output_of(sys.executable, input=SHOW) == ""
    assert output_of(sys.executable, "-", input=SHOW) == ""


def test_a_notebook_has_no_command(tmp_path):
    pytest.importorskip("IPython", reason="comes with the notebooks extra")
    path = tmp_path / "kernel.py"
    path.write_text(
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"shell.run_cell({SHOW!r}, store_history=False)\n"
    )
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    assert output_of(sys.executable, str(path), env=environment) == ""


def test_a_command_that_does_not_fit_into_a_cell_is_left_out(script):
    assert output_of(sys.executable, str(script), "x" * 40_000) == ""


def test_nothing_of_the_environment_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "hidden-value")
    assert "hidden-value" not in repr(origin_cells(tmp_path))


def test_names_this_process_and_where_it_runs(tmp_path):
    cells = origin_cells(tmp_path)
    assert (cells["host"], cells["process"]) == (socket.gethostname(), os.getpid())
    assert cells["working_directory"] == str(Path.cwd())
    assert cells["command"] == command_to_reproduce() != ""


def test_a_deleted_working_directory_is_no_error(tmp_path):
    code = (
        "import os, sys, tempfile\n"
        "from pathlib import Path\n"
        "from tfx_tips.callbacks.run_origin import origin_cells\n"
        "folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)\n"
        "print(repr(origin_cells(Path(sys.argv[1]))['working_directory']))\n"
    )
    assert output_of(sys.executable, "-c", code, str(tmp_path)).strip() == "''"


def test_a_dirty_tree_is_saved_once_for_all_trials_of_the_same_state(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from tfx_tips.callbacks.run_origin import origin_cells\n"
        "cells = origin_cells(Path(sys.argv[1]))\n"
        "print(cells.get('git_commit'), cells.get('git_dirty'), cells.get('git_diff'))\n"
    )
    tables = tmp_path / "tables"

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
        return output_of("git", "-C", str(code), *identity, *arguments).strip()

    def state():
        # From elsewhere: the script's folder decides.
        return output_of(sys.executable, str(code / "train.py"), str(tables), cwd=tmp_path).split()

    assert state() == ["None", "None", "None"]
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert state() == [commit, "False", "None"]
    with (code / "train.py").open("a") as file:
        file.write("# changed\n")
    first, second = state(), state()
    assert first == second
    assert first[:2] == [commit, "True"]
    assert [f"diffs/{path.name}" for path in (tables / "diffs").iterdir()] == [first[2]]
    assert b"+# changed" in (tables / first[2]).read_bytes()


def test_working_directory_is_where_the_process_is():
    assert working_directory() == os.getcwd()
