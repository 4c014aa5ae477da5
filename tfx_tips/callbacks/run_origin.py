"""Where a run comes from: the command, the code, the process."""

import contextlib
import hashlib
import logging
import os
import shlex
import sys
from pathlib import Path

from tfx_tips._core.processes import ProcessIdentity
from tfx_tips.callbacks.experiment_records import save_beside
from tfx_tips.callbacks.experiment_table import MAX_CELL_CHARACTERS
from tfx_tips.callbacks.git_state import program_folders, read_git_state

_logger = logging.getLogger(__name__)


def origin_cells(directory: Path) -> dict[str, object]:
    """Returns the cells that say how to repeat this process's run, and which process it is.

    Args:
        directory: The tables' directory, which gets the diff of a dirty work tree.
    """
    process = ProcessIdentity.current()
    return {
        "command": command_to_reproduce(),
        "working_directory": working_directory(),
        **_git_cells(directory),
        "host": process.host,
        "process": process.pid,
        "process_started": process.started,
    }


def command_to_reproduce() -> str:
    """Returns what to type in a POSIX shell, in the same working directory.

    Holds the arguments as they were given, and nothing of the environment. Empty where no
    command would do the same: in a notebook, an interactive interpreter, or a program that
    came through a pipe; also where it is too long for a cell.
    """
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        return ""
    if sys.argv[:1] in ([], [""], ["-"]):
        return ""
    if "--multiprocessing-fork" in sys.orig_argv:
        # A process that multiprocessing spawned: its own command works within its parent only.
        command = shlex.join([sys.executable, *sys.argv])
    else:
        command = shlex.join(sys.orig_argv)
    if len(command) >= MAX_CELL_CHARACTERS:
        _logger.warning("A command of %d characters does not fit into a cell.", len(command))
        return ""
    return command


def working_directory() -> str:
    """Returns where the command has to be typed; empty if that folder was deleted."""
    with contextlib.suppress(FileNotFoundError):
        return os.getcwd()
    return ""


def _git_cells(directory: Path) -> dict[str, object]:
    state = read_git_state(program_folders())
    if state is None:
        return {}
    name = None
    if state.diff is not None:
        # Named by its content, so that trials of one state of the code share a file.
        name = f"diffs/{hashlib.sha256(state.diff).hexdigest()[:16]}.diff"
        save_beside(directory, name, state.diff)
    return {
        "git_commit": state.commit,
        "git_dirty": state.dirty,
        "git_untracked": state.untracked,
        "git_diff": name,
    }
