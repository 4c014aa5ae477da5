import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tfx_tips.callbacks.git_state import program_folders, read_git_state

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    return subprocess.run(
        ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b.invalid", *arguments],
        check=True,
        capture_output=True,
    ).stdout


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit of two text files and a binary one."""
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "train.py").write_text("lr = 0.1\n")
    (root / "src" / "model.py").write_text("units = 8\n")
    (root / "data.bin").write_bytes(bytes(range(256)))
    (root / ".gitignore").write_text("*.log\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def head(repository):
    return git(repository, "rev-parse", "HEAD").decode().strip()


def restored(repository, diff, tmp_path):
    """A fresh clone with the diff applied."""
    clone = tmp_path / "clone"
    git(repository, "clone", "-q", repository, clone)
    (tmp_path / "saved.diff").write_bytes(diff)
    git(clone, "apply", tmp_path / "saved.diff")
    return clone


def test_a_clean_tree_has_a_commit_and_no_diff(repository):
    state = read_git_state([repository])
    assert (state.commit, state.dirty, state.untracked, state.diff) == (
        head(repository),
        False,
        0,
        None,
    )


def test_a_diff_leads_from_the_commit_to_the_tree(repository, tmp_path):
    (repository / "train.py").write_text("lr = 0.2\n")
    (repository / "src" / "model.py").unlink()
    (repository / "new.py").write_text("added = 'é'\n", encoding="utf-8")
    git(repository, "add", "new.py")
    state = read_git_state([repository])
    assert state.dirty
    clone = restored(repository, state.diff, tmp_path)
    assert (clone / "train.py").read_text() == "lr = 0.2\n"
    assert not (clone / "src" / "model.py").exists()
    assert (clone / "new.py").read_text(encoding="utf-8") == "added = 'é'\n"


def test_the_whole_repository_counts_from_within_a_folder(repository):
    (repository / "train.py").write_text("lr = 0.2\n")
    assert b"+lr = 0.2" in read_git_state([repository / "src"]).diff


def test_untracked_files_are_named_and_counted_and_their_contents_left_alone(repository, tmp_path):
    (repository / "train.py").write_text("lr = 0.2\n")
    (repository / ".env").write_text("TOKEN=hidden-value\n")
    (repository / "run.log").write_text("ignored\n")
    (repository / "out").mkdir()
    for number in range(3):
        (repository / "out" / f"{number}.txt").touch()
    state = read_git_state([repository])
    assert state.untracked == 2
    assert state.diff.startswith(b"# untracked: .env\n# untracked: out/\ndiff --git")
    assert b"hidden-value" not in state.diff
    restored(repository, state.diff, tmp_path)


def test_untracked_files_alone_do_not_make_a_tree_dirty(repository):
    (repository / "new.py").touch()
    state = read_git_state([repository])
    assert (state.dirty, state.untracked, state.diff) == (False, 1, None)


def test_a_changed_binary_file_is_named_only(repository):
    (repository / "data.bin").write_bytes(bytes(reversed(range(256))))
    state = read_git_state([repository])
    assert state.dirty
    assert b"Binary files a/data.bin and b/data.bin differ" in state.diff


def test_settings_of_the_user_change_nothing_and_start_nothing(repository, tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (repository / "train.py").write_text("lr = 0.2\n")
    plain = read_git_state([repository])
    for name, value in {
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "color.diff": "always",
        "diff.external": str(program),
        "core.fsmonitor": str(program),
        "core.pager": str(program),
        "diff.x.textconv": str(program),
    }.items():
        git(repository, "config", name, value)
    (repository / ".git" / "info" / "attributes").write_text("*.py diff=x\n")
    assert read_git_state([repository]) == plain
    assert not (tmp_path / "started").exists()


def test_a_variable_that_misleads_git_is_not_followed(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert read_git_state([repository]).dirty is False


@pytest.mark.parametrize("touched", [["train.py"], ["data.bin"], ["data.bin", "train.py"]])
def test_a_touched_file_is_no_change_and_nothing_is_written(repository, touched):
    for name in touched:
        os.utime(repository / name, (1, 1))  # git would like to note this in its index
    index = repository / ".git" / "index"
    before = index.read_bytes(), index.stat().st_mtime_ns
    state = read_git_state([repository])
    assert (state.dirty, state.diff) == (False, None)
    (repository / "src" / "model.py").write_text("units = 9\n")
    state = read_git_state([repository])
    assert [line for line in state.diff.splitlines() if line.startswith(b"diff")] == [
        b"diff --git a/src/model.py b/src/model.py"
    ]
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before


def test_an_empty_new_file_and_a_changed_mode_are_changes(repository, tmp_path):
    (repository / "empty.py").touch()
    git(repository, "add", "empty.py")
    (repository / "train.py").chmod(0o755)
    state = read_git_state([repository])
    clone = restored(repository, state.diff, tmp_path)
    assert (clone / "empty.py").read_bytes() == b""
    assert (clone / "train.py").stat().st_mode & stat.S_IXUSR


def test_a_diff_that_is_too_large_is_not_kept(repository, caplog):
    (repository / "train.py").write_text("x = 1\n" * 1000)
    with caplog.at_level(logging.WARNING):
        state = read_git_state([repository], max_diff_bytes=1000)
    assert (state.dirty, state.diff) == (True, None)
    assert "larger than 1000 bytes" in caplog.text
    assert state.commit[:12] in caplog.text


def test_takes_the_first_folder_in_a_repository(repository, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    assert read_git_state([plain, tmp_path / "missing", repository]).commit == head(repository)
    assert read_git_state([plain, tmp_path / "missing"]) is None


def test_a_repository_without_a_commit_has_no_state(tmp_path):
    git(tmp_path, "init", "-q")
    assert read_git_state([tmp_path]) is None


def test_without_git_there_is_no_state(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert read_git_state([repository]) is None


def test_git_that_hangs_is_given_up(repository, monkeypatch, tmp_path):
    real = shutil.which("git")
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *" diff "*) exec tail -f /dev/null;; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    state = read_git_state([repository], timeout_s=0.5)
    assert (state.commit, state.dirty, state.diff) == (head(repository), None, None)


def test_looks_beside_the_main_script_first(tmp_path, monkeypatch):
    # Under pytest-xdist the main module has no file of its own.
    script = tmp_path / "train.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert program_folders() == [tmp_path.resolve(), Path(".")]
