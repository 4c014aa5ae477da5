"""Local and remote folders: which one a directory is, and what is missing for it."""

import contextlib
import sys
import uuid
from pathlib import Path

import fsspec
import pytest

from tfx_tips.callbacks.checkpoint_folder import LocalFolder, RemoteFolder, open_folder


def test_paths_and_file_urls_are_local(tmp_path):
    for directory in (tmp_path, str(tmp_path), f"file://{tmp_path}", f"local://{tmp_path}"):
        folder = open_folder(directory)
        assert isinstance(folder, LocalFolder)
        assert folder.location("a") == str(tmp_path / "a")


def test_other_urls_are_remote_with_the_location_as_given():
    folder = open_folder("memory://bucket/run/")
    assert isinstance(folder, RemoteFolder)
    assert folder.location("a") == "memory://bucket/run/a"


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=r"'gs://bucket/run' needs .*pip install gcsfs") as caught:
        open_folder("gs://bucket/run")
    # One of our own, which says what to do, and no fault of an import.
    assert not isinstance(caught.value, ModuleNotFoundError)


def test_an_unknown_protocol_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="Received: directory='nowhere://run'"):
        open_folder("nowhere://run")


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    url = f"memory://{uuid.uuid4().hex}/run"
    return open_folder(tmp_path / "ckpt" if request.param == "local" else url)


def test_writes_lists_reads_and_removes(folder):
    assert folder.sizes() == {}
    written = folder.write("a.bin", lambda path: path.write_bytes(b"abc"), expected_bytes=None)
    # As `printf abc | sha256sum` prints it.
    assert written == (3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    folder.write_text("b.json", "{}\n")
    folder.write_text("b.json", "ä\n")
    assert folder.sizes() == {"a.bin": 3, "b.json": 3}
    with folder.open("b.json") as file:
        assert file.read() == "ä\n".encode()
    with folder.local_copy("a.bin") as path:
        assert path.read_bytes() == b"abc"
    folder.remove("a.bin")
    folder.remove("a.bin")
    assert folder.sizes() == {"b.json": 3}


def test_what_is_missing_is_a_file_not_found_error(folder):
    folder.write("b.bin", lambda path: path.write_bytes(b"abc"), expected_bytes=None)
    with pytest.raises(FileNotFoundError):
        folder.open("a")
    with contextlib.ExitStack() as stack, pytest.raises(FileNotFoundError):
        stack.enter_context(folder.local_copy("a")).read_bytes()


def test_sizes_leave_folders_out(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").write_bytes(b"12")
    assert open_folder(tmp_path).sizes() == {"file": 2}
    url = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(f"{url}/sub/file", b"1")
    fsspec.filesystem("memory").pipe_file(f"{url}/file", b"12")
    assert open_folder(url).sizes() == {"file": 2}


def test_a_remote_write_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []

    def write(path: Path):
        seen.append(path)
        path.write_bytes(b"abc")

    open_folder(f"memory://{uuid.uuid4().hex}").write("a.keras", write, expected_bytes=None)
    assert tmp_path in seen[0].parents
    assert list(tmp_path.iterdir()) == []
