"""Which commit a run was started from, and what was changed since."""

import dataclasses
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MAX_DIFF_BYTES = 10 * 2**20

# A user's or a repository's settings must not change the diff's form, and none of them may
# start a program: external diffs, text conversions and file system monitors are such. Left to
# itself, `git diff` writes the times of touched files to the index, and locks it for that.
_DIFF = (
    "-c core.fsmonitor=false -c core.quotePath=true -c diff.autoRefreshIndex=false diff HEAD "
    "--no-ext-diff --no-textconv --no-color --no-relative --src-prefix=a/ --dst-prefix=b/ "
    "--submodule=short --full-index"
).split()
# A folder of nothing but untracked files counts as one, or looking would take long.
_UNTRACKED = (
    "-c core.fsmonitor=false ls-files --others --exclude-standard --directory --no-empty-directory"
).split()
# A file whose time alone has changed; every other difference has further lines.
_ONLY_TOUCHED = re.compile(rb"^diff --git [^\n]*\n(?=diff --git |\Z)", re.MULTILINE)
# These would point git away from the folder that it is asked about (hooks have them set).
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")


@dataclass(frozen=True)
class GitState:
    """A work tree's state. None stands for what git did not say in time.

    Attributes:
        commit: The hash of the commit that is checked out.
        dirty: Whether tracked files differ from it, as `git describe --dirty` means it.
        untracked: How many files, or folders of such files, are neither tracked nor ignored.
        diff: What `git apply` needs to get from the commit to the tracked files, headed by the
            names of the untracked ones; None if nothing differs, or too much.
    """

    commit: str
    dirty: bool | None = None
    untracked: int | None = None
    diff: bytes | None = None


def program_folders() -> list[Path]:
    """Returns where the running program's repository may be: the main script's folder, then here.

    The main script decides because a program may be started from anywhere.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [os.path.dirname(os.path.realpath(script))] if script else []
    # The working directory may have been deleted; git then simply fails in ".".
    return [Path(folder) for folder in (*folders, os.curdir)]


def read_git_state(
    folders: Sequence[Path], *, timeout_s: float = TIMEOUT_S, max_diff_bytes: int = MAX_DIFF_BYTES
) -> GitState | None:
    """Reads the state of the first folder that lies in a repository with a commit.

    Runs git four times and changes nothing in the repository. Of untracked files only the names
    are kept, as their contents may be data or secrets; changed binary files are only named.

    Args:
        folders: Where to look.
        timeout_s: How long each call of git may take.
        max_diff_bytes: A larger diff is not kept.

    Returns:
        The state, or None without git or without a repository; never an error.
    """
    for folder in folders:
        commit = _git(folder, ["rev-parse", "--verify", "--quiet", "HEAD"], timeout_s)
        if commit:
            return _state(folder, commit.decode("ascii").strip(), timeout_s, max_diff_bytes)
    return None


def _state(folder: Path, commit: str, timeout_s: float, max_diff_bytes: int) -> GitState:
    top = _git(folder, ["rev-parse", "--show-toplevel"], timeout_s)
    if top is None:
        return GitState(commit)
    root = Path(os.fsdecode(top.rstrip(b"\r\n")))
    changes = _git(root, _DIFF, timeout_s, max_bytes=max_diff_bytes)
    untracked = _git(root, _UNTRACKED, timeout_s, max_bytes=max_diff_bytes)
    too_large = changes is not None and len(changes) > max_diff_bytes
    changes = None if changes is None else _ONLY_TOUCHED.sub(b"", changes)
    names = [] if untracked is None else untracked.splitlines()
    state = GitState(
        commit,
        dirty=None if changes is None else bool(changes),
        untracked=None if untracked is None else len(names),
    )
    if not changes:
        return state
    if too_large:
        _logger.warning(
            "The changes since commit %s are larger than %d bytes and were not saved. Commit "
            "them, or let git ignore files that programs write.",
            commit[:12],
            max_diff_bytes,
        )
        return state
    head = b"".join(b"# untracked: " + name + b"\n" for name in names)
    return dataclasses.replace(state, diff=head + changes)


def _git(
    folder: Path, arguments: list[str], timeout_s: float, *, max_bytes: int = 2**16
) -> bytes | None:
    """Returns what git prints, at most `max_bytes` + 1 of it; None if it fails or takes long."""
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING} | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    # Into a file: a diff of gigabytes must not fill the memory.
    with tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                ["git", "-C", os.fspath(folder), "--no-pager", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=timeout_s,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _logger.debug("git could not be asked in %s: %s", folder, error)
            return None
        output.seek(0)
        return output.read(max_bytes + 1)
