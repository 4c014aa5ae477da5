"""Atomic writes against what a killed process or a full disk leaves."""

import errno
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tfx_tips._core import files
from tfx_tips._core.errors import NotEnoughSpaceError, TfxTipsError

OLD, NEW = b"old content", b"the new content, which is longer"

# Writes NEW over OLD and kills itself just before its k-th file operation in the folder.
KILLED_WRITER = textwrap.dedent(f"""
    import os, signal, sys
    from pathlib import Path
    from tfx_tips._core.files import write_beside

    target, kill_at, count = Path(sys.argv[1]), int(sys.argv[2]), 0

    def write(path):
        with path.open("wb", buffering=0) as file:
            file.write({NEW[:7]!r})
            sys.audit("half.written", path)
            file.write({NEW[7:]!r})

    def watch(event, arguments):
        global count
        if event in ("open", "os.rename", "os.remove", "half.written"):
            if str(arguments[0]).startswith(str(target.parent)):
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    write_beside(target, write)
""")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("existing", [True, False])
def test_writer_killed_at_any_file_operation_leaves_the_old_file_or_the_new(tmp_path, existing):
    outcomes = []
    for kill_at in range(1, 50):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        target = folder / "state.bin"
        if existing:
            target.write_bytes(OLD)
        finished = subprocess.run(
            [sys.executable, "-c", KILLED_WRITER, target, str(kill_at)], capture_output=True
        )
        whole = target.read_bytes() if target.exists() else None
        strays = [name for name in names_in(folder) if name != target.name]
        assert whole in ({OLD, NEW} if existing else {None, NEW})
        assert all(name.startswith(files.STRAY_PREFIX) for name in strays)
        assert files.remove_strays(folder) == strays
        assert names_in(folder) == ([target.name] if whole is not None else [])
        outcomes.append((finished.returncode, whole, bool(strays)))
        if finished.returncode == 0:
            break

    before = OLD if existing else None
    killed = -signal.SIGKILL
    assert outcomes[0] == (killed, before, False)
    assert (killed, before, True) in outcomes
    assert (killed, NEW, False) in outcomes
    assert outcomes[-1] == (0, NEW, False)


def test_write_beside_replaces_the_file_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "state.bin"
    target.write_bytes(OLD)

    files.write_beside(target, lambda path: path.write_bytes(NEW))

    assert target.read_bytes() == NEW
    assert names_in(tmp_path) == ["state.bin"]


def test_target_is_untouched_while_the_writer_works_in_the_same_folder(tmp_path):
    target = tmp_path / "model.weights.h5"
    target.write_bytes(OLD)
    seen = []

    def write(path):
        path.write_bytes(NEW)
        seen.extend([path.parent, path.suffixes[-2:], target.read_bytes()])

    files.write_beside(target, write)

    assert seen == [tmp_path, [".weights", ".h5"], OLD]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads Linux' process folder")
def test_file_is_flushed_to_the_disk_before_the_rename_and_its_folder_after(tmp_path, monkeypatch):
    target = tmp_path / "state.bin"
    order = []

    def noting(function):
        def call(place, *rest):
            path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place
            order.append((function.__name__, "folder" if path == str(tmp_path) else "file"))
            return function(place, *rest)

        return call

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "replace", noting(os.replace))
    files.write_beside(target, lambda path: path.write_bytes(NEW))

    assert order == [("fsync", "file"), ("replace", "file"), ("fsync", "folder")]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), OSError(5, "I/O")])
def test_error_of_the_writer_propagates_and_leaves_no_stray(tmp_path, error):
    target = tmp_path / "state.bin"
    target.write_bytes(OLD)

    def write(path):
        path.write_bytes(NEW[:7])
        raise error

    with pytest.raises(type(error)) as caught:
        files.write_beside(target, write)

    assert caught.value is error
    assert target.read_bytes() == OLD
    assert names_in(tmp_path) == ["state.bin"]


def test_writer_that_writes_nothing_is_an_error_and_keeps_the_old_file(tmp_path):
    target = tmp_path / "state.bin"
    target.write_bytes(OLD)

    with pytest.raises(FileNotFoundError):
        files.write_beside(target, lambda path: None)

    assert target.read_bytes() == OLD


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux' always full device")
def test_full_disk_names_bytes_needed_and_free_and_keeps_what_was_there(tmp_path):
    target = tmp_path / "state.bin"
    target.write_bytes(OLD)

    def write(path):
        path.symlink_to("/dev/full")
        path.write_bytes(NEW)

    with pytest.raises(NotEnoughSpaceError) as caught:
        files.write_beside(target, write, expected_bytes=12_345_678)

    message = str(caught.value)
    assert "state.bin" in message
    assert "12,345,678 bytes are needed" in message
    assert "bytes are free in" in message
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, TfxTipsError)
    assert isinstance(caught.value.__cause__, OSError)
    assert target.read_bytes() == OLD
    assert names_in(tmp_path) == ["state.bin"]


def test_full_disk_without_an_expected_size_names_what_was_written(tmp_path):
    def write(path):
        path.write_bytes(b"x" * 1500)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.raises(NotEnoughSpaceError, match="1,500 bytes are needed"):
        files.write_beside(tmp_path / "state.bin", write)

    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (
            OSError("Unable to write (file write failed: errno = 28, 'No space left on device')"),
            True,
        ),
        (OSError(errno.EIO, "Input/output error"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_full_disk_is_told_from_other_errors(error, full):
    assert files.is_disk_full(error) is full


def test_text_is_written_as_utf8_without_changed_line_ends(tmp_path):
    files.write_text(tmp_path / "a.txt", "größer\r\n∞\n")

    assert (tmp_path / "a.txt").read_bytes() == "größer\r\n∞\n".encode()


def test_bytes_are_written_as_they_are(tmp_path):
    data = bytes(range(256))

    files.write_bytes(tmp_path / "a.bin", data)

    assert (tmp_path / "a.bin").read_bytes() == data


def test_json_reads_back_with_nan_and_infinities(tmp_path):
    files.write_json(tmp_path / "a.json", {"b": [math.nan, math.inf, -math.inf, 0.1], "a": None})

    read = json.loads((tmp_path / "a.json").read_text())

    assert list(read) == ["a", "b"]
    assert math.isnan(read["b"][0])
    assert read["b"][1:] == [math.inf, -math.inf, 0.1]


def test_sha256_is_that_of_the_bytes(tmp_path):
    data = os.urandom(300_000)
    (tmp_path / "a.bin").write_bytes(data)

    assert files.sha256_of(tmp_path / "a.bin") == hashlib.sha256(data).hexdigest()


def test_strays_are_removed_be_they_files_or_folders_and_nothing_else(tmp_path):
    (tmp_path / ".unfinished-1234-a.bin").write_bytes(NEW)
    (tmp_path / ".unfinished-5678-b").mkdir()
    (tmp_path / ".unfinished-5678-b" / "inside").write_bytes(NEW)
    (tmp_path / "kept.bin").write_bytes(NEW)
    (tmp_path / ".hidden").write_bytes(NEW)

    assert files.remove_strays(tmp_path) == [".unfinished-1234-a.bin", ".unfinished-5678-b"]
    assert names_in(tmp_path) == [".hidden", "kept.bin"]


def test_strays_of_one_target_are_removed_and_others_left_to_their_writers(tmp_path):
    for name in (".unfinished-1234-a[1].bin", ".unfinished-5678-b.bin", ".unfinished-9999-a1.bin"):
        (tmp_path / name).write_bytes(NEW)

    assert files.remove_strays(tmp_path, of="a[1].bin") == [".unfinished-1234-a[1].bin"]
    assert names_in(tmp_path) == [".unfinished-5678-b.bin", ".unfinished-9999-a1.bin"]


def test_removing_strays_of_a_folder_that_does_not_exist_does_nothing(tmp_path):
    assert files.remove_strays(tmp_path / "nowhere") == []


def test_flushing_what_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.flush_to_disk(tmp_path / "nowhere")


def test_size_of_a_missing_file_is_0(tmp_path):
    (tmp_path / "a.bin").write_bytes(NEW)

    assert files.written_size(tmp_path / "a.bin") == len(NEW)
    assert files.written_size(tmp_path / "b.bin") == 0
