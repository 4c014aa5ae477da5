"""The oracle, for tests and for the scripts that they start."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def oracle():
    """The module `ghost_oracle`."""
    spec = importlib.util.spec_from_file_location("ghost_oracle", FOLDER / "ghost_oracle.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_script():
    """Runs a script of this folder in a process of its own; returns what it prints."""

    def run(name, *arguments, **environment):
        root = str(FOLDER.parents[1])
        done = subprocess.run(
            [sys.executable, str(FOLDER / name), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
