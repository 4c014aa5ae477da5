"""The command: what it imports, how it fails, how it ends."""

import argparse
import importlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import textwrap
import types

import pytest

import tfx_tips
from tfx_tips._core.errors import CheckpointError
from tfx_tips.cli import main as command

HEAVY = {"tensorflow", "keras", "numpy"}


@pytest.fixture
def subcommand(monkeypatch):
    """Registers a subcommand `act` whose `run` is given, as a module of its own."""

    def register(run):
        module = types.ModuleType("act_for_test")
        module.add_arguments = lambda parser: parser.add_argument("--number", type=int, default=3)
        module.run = run
        monkeypatch.setitem(sys.modules, "act_for_test", module)
        monkeypatch.setitem(command.SUBCOMMANDS, "act", ("act_for_test", "acts"))

    return register


def python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)


def raising(error):
    def run(arguments):
        raise error

    return run


def heavy_modules_after(words):
    """Runs the command in a fresh interpreter; returns which heavy packages it imported."""
    script = textwrap.dedent(f"""
        import sys
        from tfx_tips.cli.main import main
        try:
            main({words!r})
        except SystemExit as stop:
            assert stop.code == 0, stop.code
        print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
    """)
    finished = python("-c", script)
    assert finished.returncode == 0, finished.stderr
    *_, last = finished.stdout.splitlines()
    return set(last.split()[1:])


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(words):
    assert heavy_modules_after(words) == set()


def test_subcommand_help_imports_nothing_heavy():
    words = [[name, "--help"] for name in command.SUBCOMMANDS]

    assert [heavy_modules_after(each) for each in words] == [set()] * len(words)


def test_help_lists_every_subcommand_with_its_line(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])

    lines = capsys.readouterr().out.splitlines()
    for name, (_, help_line) in command.SUBCOMMANDS.items():
        assert any(line.split()[:1] == [name] for line in lines)
        assert help_line.split()[0] in " ".join(lines)


def test_every_subcommand_has_a_module_with_the_interface():
    for module_name, _ in command.SUBCOMMANDS.values():
        module = importlib.import_module(module_name)
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        assert callable(module.run)


def test_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["--version"])

    assert capsys.readouterr().out == f"tfx-tips {tfx_tips.__version__}\n"


def test_without_a_subcommand_shows_the_usage_and_exits_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main([])

    assert "usage: tfx-tips" in capsys.readouterr().err


def test_unknown_subcommand_exits_2_and_names_it(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["flies"])

    assert "'flies'" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_is_what_the_subcommand_returns(subcommand, code):
    seen = []

    def run(arguments):
        seen.append(arguments.number)
        return code

    subcommand(run)

    assert command.main(["act", "--number", "8"]) == code
    assert seen == [8]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("`keep` must be at least 1."),
        FileNotFoundError(2, "No such file or directory", "runs"),
        PermissionError(13, "Permission denied", "runs"),
        CheckpointError("No checkpoint in 'runs'."),
        ImportError("Install 'tfx-tips[quickstart]'."),
    ],
)
def test_error_that_a_user_can_correct_is_one_line_and_exit_code_2(subcommand, capsys, error):
    subcommand(raising(error))

    assert command.main(["act"]) == 2
    assert capsys.readouterr().err == f"tfx-tips: {error}\n"


def test_missing_tensorflow_prints_the_lines_that_install_it(subcommand, capsys):
    subcommand(raising(ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")))

    assert command.main(["act"]) == 2
    message = capsys.readouterr().err
    assert "pip install 'tfx-tips[tensorflow]'" in message
    assert "pip install 'tfx-tips[cpu]'" in message
    assert "pip install 'tfx-tips[tpu]'" in message


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'x'", name="x"), KeyError("x"), TypeError("x")]
)
def test_fault_of_the_program_keeps_its_traceback(subcommand, error):
    subcommand(raising(error))

    with pytest.raises(type(error)):
        command.main(["act"])


def test_system_exit_of_a_subcommand_passes_through(subcommand):
    subcommand(raising(SystemExit(143)))

    with pytest.raises(SystemExit, match="143"):
        command.main(["act"])


def script_with_subcommand(body):
    """Returns a program that is the command with a subcommand `act` that runs `body`."""
    return textwrap.dedent("""
        import sys, time, types
        from tfx_tips.cli import main as command
        module = types.ModuleType("act_for_test")
        module.add_arguments = lambda parser: None
        def run(arguments):
            {body}
            return 0
        module.run = run
        sys.modules["act_for_test"] = module
        command.SUBCOMMANDS["act"] = ("act_for_test", "acts")
        raise SystemExit(command.main(sys.argv[1:]))
    """).format(body=body)


def run_without_reader(body, word, *, unbuffered):
    """Runs the command with an output that nobody reads."""
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    try:
        return subprocess.run(
            [sys.executable, "-c", script_with_subcommand(body), word],
            stdout=writing_end,
            stderr=subprocess.PIPE,
            timeout=120,
            env={**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""},
        )
    finally:
        os.close(writing_end)


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("lines", [1, 100_000])
def test_reader_that_goes_away_ends_the_command_without_a_word(lines, unbuffered):
    body = f"[print('x' * 50) for _ in range({lines})]"
    finished = run_without_reader(body, "act", unbuffered=unbuffered)

    assert finished.stderr == b""
    assert finished.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("unbuffered", [False, True])
def test_reader_that_goes_away_from_the_help_sees_no_error(unbuffered):
    assert run_without_reader("pass", "--help", unbuffered=unbuffered).stderr == b""


def test_ctrl_c_exits_130_without_a_traceback():
    script = script_with_subcommand("print('ready', flush=True); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", script, "act"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors == ""


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["flies"]])
def test_python_m_is_the_same_as_the_command(words):
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="tfx-tips")
    script = f"import sys; from {entry.module} import {entry.attr}; sys.exit({entry.attr}())"
    as_module = python("-m", "tfx_tips", *words)
    as_command = python("-c", script, *words)

    assert (as_module.returncode, as_module.stdout, as_module.stderr) == (
        as_command.returncode,
        as_command.stdout,
        as_command.stderr,
    )
