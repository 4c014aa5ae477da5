"""Storing checkpoints: the layout on disk, kills at any instant, full disks, damage."""

import errno
import hashlib
import itertools
import json
import logging
import math
import random
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import fsspec
import keras
import pytest

from tfx_tips._core.errors import CheckpointError, DamagedCheckpointError, NotEnoughSpaceError
from tfx_tips.callbacks.checkpoint_store import CheckpointStore

WRITER = Path(__file__).with_name("killed_checkpoint_writer.py")
MODEL_WRITER = Path(__file__).with_name("killed_model_writer.py")


def add(store, step, *, data=None, write=None, suffix=".keras", **fields):
    data = f"data of step {step}".encode() if data is None else data
    return store.add(
        write or (lambda path: path.write_bytes(data)),
        suffix=suffix,
        step=step,
        **{
            "epoch": 0,
            "batch": step,
            "metrics": {"val_loss": 1 / (1 + step)},
            "monitor": "val_loss",
            "mode": "min",
            **fields,
        },
    )


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def on_disk(directory):
    """What plain json and hashlib find: the manifests by step; all of them must be intact."""
    found = {}
    for manifest in sorted(directory.glob("step-????????.json")):
        values = json.loads(manifest.read_text())
        data = (directory / values["file"]).read_bytes()
        assert len(data) == values["size_bytes"]
        assert hashlib.sha256(data).hexdigest() == values["sha256"]
        found[values["step"]] = values
    return found


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "ckpt")


@pytest.fixture
def remote():
    return CheckpointStore(f"memory://{uuid.uuid4().hex}/run")


class TestAdd:
    def test_writes_data_and_a_manifest_that_plain_python_reads(self, store, tmp_path):
        metrics = {"val_loss": 0.5, "nan": math.nan, "inf": -math.inf}
        record = add(store, 12, epoch=2, batch=4, metrics=metrics, seed=7, total_steps=48)

        directory = tmp_path / "ckpt"
        assert names(directory) == ["step-00000012.json", "step-00000012.keras"]
        values = on_disk(directory)[12]
        assert values["file"] == "step-00000012.keras"
        assert (values["epoch"], values["batch"], values["seed"]) == (2, 4, 7)
        assert values["metrics"]["val_loss"] == 0.5
        assert math.isnan(values["metrics"]["nan"])
        assert values["metrics"]["inf"] == -math.inf
        assert record.path == str(directory / "step-00000012.keras")
        assert record.share_of_budget == 0.25
        assert not record.weights_only

    def test_returns_the_record_that_a_reader_gets(self, store):
        record = add(
            store,
            12,
            directions={"val_loss": "min"},
            random_generators=[["dropout", [1, 2]]],
            total_steps=20,
        )
        assert store.records() == [record]

    def test_a_name_that_is_taken_gets_a_number(self, store, tmp_path):
        paths = [Path(add(store, 12, suffix=suffix).path).name for suffix in (".keras",) * 3]
        assert paths == ["step-00000012.keras", "step-00000012-1.keras", "step-00000012-2.keras"]
        assert Path(add(store, 12, suffix=".weights.h5").path).name == "step-00000012-3.weights.h5"
        assert len(store.records()) == 4

    def test_numbers_checkpoints_by_age_and_goes_on_after_a_restart(self, tmp_path):
        for step in (30, 10, 20):
            add(CheckpointStore(tmp_path), step)
        records = CheckpointStore(tmp_path).records()
        assert [(record.sequence, record.step) for record in records] == [(1, 30), (2, 10), (3, 20)]

    def test_weights_only_follows_from_the_suffix(self, store):
        assert add(store, 1, suffix=".weights.h5").weights_only

    def test_the_writer_gets_a_path_with_the_suffix(self, store):
        seen = []

        def write(path):
            seen.append(path.name)
            path.write_bytes(b"x")

        add(store, 1, write=write, suffix=".weights.h5")
        assert seen[0].endswith("step-00000001.weights.h5")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("metrics", {"val_loss": [0.1, 0.2]}),
            ("mode", "auto"),
            ("epoch", -1),
            ("total_steps", 0),
            ("seed", "7"),
        ],
    )
    def test_refuses_a_field_of_the_wrong_kind_before_writing(self, store, tmp_path, field, value):
        with pytest.raises(ValueError, match=f"`{field}` must be .* Received: {field}="):
            add(store, 1, **{field: value})
        assert not (tmp_path / "ckpt").exists()

    def test_refuses_an_unknown_suffix(self, store):
        with pytest.raises(ValueError, match=r"`suffix` must be one of '.keras', '.weights.h5'"):
            add(store, 1, suffix=".h5")

    def test_an_error_of_the_writer_propagates_and_leaves_nothing(self, store, tmp_path):
        add(store, 1)
        before = names(tmp_path / "ckpt")

        def write(path):
            path.write_bytes(b"half")
            raise RuntimeError("writer broke")

        with pytest.raises(RuntimeError, match="writer broke"):
            add(store, 2, write=write)
        assert names(tmp_path / "ckpt") == before

    def test_data_whose_manifest_cannot_be_written_is_removed(self, store, tmp_path):
        add(store, 1)
        (tmp_path / "ckpt" / "step-00000002.json").mkdir()
        with pytest.raises(OSError, match=r"step-00000002\.json"):
            add(store, 2)
        assert not (tmp_path / "ckpt" / "step-00000002.keras").exists()
        (tmp_path / "ckpt" / "step-00000002.json").rmdir()
        assert list(on_disk(tmp_path / "ckpt")) == [1]


class TestKills:
    @pytest.fixture
    def before(self, tmp_path):
        """A directory with two checkpoints, strays of an earlier kill, and a user's files."""
        directory = tmp_path / "before"
        store = CheckpointStore(directory)
        add(store, 10)
        add(store, 20)
        (directory / "step-00000015.keras").write_bytes(b"data without a manifest")
        (directory / ".unfinished-0123abcd-step-00000016.keras").write_bytes(b"half")
        (directory / "notes.txt").write_text("mine")
        (directory / "step-7.json").write_text("mine")
        (directory / ".unfinished-thoughts.txt").write_text("mine")
        return directory

    MINE = frozenset({"notes.txt", "step-7.json", ".unfinished-thoughts.txt"})

    @pytest.mark.multi_process
    def test_a_kill_at_any_file_operation_loses_nothing(self, before, tmp_path):
        states = []
        for operation in itertools.count(1):
            directory = tmp_path / f"killed-{operation}"
            shutil.copytree(before, directory)
            finished = subprocess.run(
                [sys.executable, WRITER, directory, str(operation)],
                stderr=subprocess.PIPE,
                timeout=120,
            )
            steps = self.check(directory)
            if finished.returncode == 0:
                break
            assert finished.returncode == -signal.SIGKILL, finished.stderr
            states.append(steps)
        assert steps == {20, 30}
        # Kills fell before, between and after the third's arrival and the first's removal.
        assert operation > 15
        assert {frozenset(state) for state in states} == {
            frozenset({10, 20}),
            frozenset({10, 20, 30}),
            frozenset({20, 30}),
        }

    @pytest.mark.multi_process
    def test_a_kill_while_keras_saves_a_model_loses_nothing(self, before, tmp_path):
        after = tmp_path / "after"
        after.mkdir()
        finished = subprocess.run(
            [sys.executable, MODEL_WRITER, before, after],
            stderr=subprocess.PIPE,
            timeout=300,
        )
        assert finished.returncode == 0, finished.stderr
        operations = len(names(after))
        states = [self.check(after / str(number)) for number in range(1, operations + 1)]
        assert operations > 15
        assert states[0] == {10, 20}
        assert {10, 20, 30} in states
        assert states[-1] == {20, 30}
        for number, steps in enumerate(states, start=1):
            if 30 in steps:
                model = keras.models.load_model(after / str(number) / "step-00000030.keras")
                assert model.optimizer.built

    def check(self, directory):
        """Asserts that all is intact; returns the steps that plain Python can read."""
        found = on_disk(directory)
        assert set(found) in ({10, 20}, {10, 20, 30}, {20, 30})
        assert found[20]["metrics"].get("full_loss") in (None, 0.75)

        store = CheckpointStore(directory)
        assert {record.step for record in store.records()} == set(found)
        store.clean()
        files = {values["file"] for values in found.values()}
        manifests = {file.replace(".keras", ".json") for file in files}
        assert set(names(directory)) == files | manifests | self.MINE
        return set(found)


class TestFullDisk:
    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device"),
            OSError("Can't write data (errno = 28, error message = 'No space left on device')"),
        ],
        ids=["errno", "text as HDF5 gives it"],
    )
    def test_says_bytes_needed_and_free_and_loses_nothing(self, store, tmp_path, error):
        add(store, 1)
        directory = tmp_path / "ckpt"
        before = {path.name: path.read_bytes() for path in directory.iterdir()}

        def write(path):
            path.write_bytes(b"half of it")
            raise error

        with pytest.raises(NotEnoughSpaceError, match=r"12,345 bytes are needed, [\d,]+ bytes are"):
            add(store, 2, write=write, expected_bytes=12_345)
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before

    def test_what_cannot_fit_is_not_begun(self, store):
        needed = 10**18
        with pytest.raises(NotEnoughSpaceError, match="1,000,000,000,000,000,000 bytes are needed"):
            add(
                store,
                2,
                write=lambda path: pytest.fail("the writer was called"),
                expected_bytes=needed,
            )
        assert store.records() == []


class TestRecords:
    def test_a_directory_that_does_not_exist_holds_none_and_is_not_made(self, store, tmp_path):
        assert store.records() == []
        assert store.clean() == []
        assert names(tmp_path) == []

    def test_a_file_of_another_size_is_left_out_with_one_warning(self, store, caplog):
        records = [add(store, step) for step in (1, 2, 3, 4)]
        Path(records[0].path).write_bytes(b"short")
        Path(records[1].path).unlink()
        with caplog.at_level(logging.WARNING):
            assert store.records() == records[2:]
        (warning,) = caplog.records
        assert "step-00000001.keras has 5 bytes, recorded are 14" in warning.getMessage()
        assert "step-00000002.keras is missing" in warning.getMessage()

    def test_a_directory_that_was_moved_is_read_where_it_is(self, store, tmp_path):
        add(store, 1)
        (tmp_path / "ckpt").rename(tmp_path / "moved")
        (record,) = CheckpointStore(tmp_path / "moved").records()
        assert record.path == str(tmp_path / "moved" / "step-00000001.keras")

    def test_a_relative_directory_gives_absolute_paths(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert add(CheckpointStore("here"), 1).path == str(tmp_path / "here/step-00000001.keras")

    @pytest.mark.parametrize("file", ["../step-00000001.keras", "step-00000002.keras", 3, None])
    def test_a_manifest_cannot_name_any_other_file(self, store, tmp_path, file, caplog):
        add(store, 1)
        add(store, 2)
        manifest = tmp_path / "ckpt" / "step-00000001.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "file": file}))
        with caplog.at_level(logging.WARNING):
            assert [record.step for record in store.records()] == [2]
        assert "as its data file" in caplog.text

    def test_damaged_manifests_are_left_out_and_never_raise(self, store, tmp_path):
        add(store, 1)
        good = add(store, 2)
        manifest = tmp_path / "ckpt" / "step-00000001.json"
        text = manifest.read_bytes()
        for damaged in damaged_manifests(text):
            manifest.write_bytes(damaged)
            assert store.records() == [good], damaged
        manifest.write_bytes(text)
        assert len(store.records()) == 2

    def test_a_manifest_of_a_later_version_with_further_fields_is_read(self, store, tmp_path):
        record = add(store, 1)
        manifest = tmp_path / "ckpt" / "step-00000001.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "new": [1]}))
        assert store.records() == [record]
        store.annotate(record, {"full_loss": 1.0})
        assert json.loads(manifest.read_text())["new"] == [1]


def damaged_manifests(text):
    """Cut at every byte that matters, garbage, and every field missing or of the wrong kind."""
    # The last byte is a newline, and without it nothing is lost.
    yield from (text[:length] for length in range(len(text) - 2))
    generator = random.Random(0)
    yield from (generator.randbytes(generator.randrange(200)) for _ in range(200))
    yield from (b"[" * 100_000, b"null", b"[]", b"3", b'"text"', b"9" * 5000, b"\xff\xfe{}")
    values = json.loads(text)
    values.pop("new", None)
    # Whoever has no seed or plan has null there, and these three may be absent.
    optional = {"seed", "total_steps", "directions", "versions", "random_generators"}
    for name in values:
        if name not in optional:
            yield json.dumps({k: v for k, v in values.items() if k != name}).encode()
        for wrong in (None, "text", -1, 1.5, {"a": None}, [[]], True):
            if not fits(name, wrong):
                yield json.dumps({**values, name: wrong}).encode()
    yield json.dumps({**values, "format": 2}).encode()
    yield json.dumps({**values, "metrics": {"val_loss": 10**400}}).encode()


def fits(name, value):
    return (
        (name in ("seed", "total_steps") and value is None)
        or (name == "seed" and value == -1)
        or (name in ("monitor", "time") and value == "text")
        or (name == "random_generators" and value == [[]])
        or (name == "weights_only" and value is True)
        or (name == "format" and value is True)
    )


class TestRemove:
    def test_removes_both_files_and_no_other(self, store, tmp_path):
        first, second = add(store, 1), add(store, 2)
        store.remove(first)
        store.remove(first)
        assert names(tmp_path / "ckpt") == ["step-00000002.json", "step-00000002.keras"]
        assert store.records() == [second]

    def test_after_the_directory_is_gone_is_nothing(self, store, tmp_path):
        record = add(store, 1)
        shutil.rmtree(tmp_path / "ckpt")
        store.remove(record)
        assert not (tmp_path / "ckpt").exists()


class TestClean:
    def test_returns_what_it_removed_and_touches_nothing_else(self, store, tmp_path):
        add(store, 1)
        directory = tmp_path / "ckpt"
        kept = [
            "model.keras",
            "step-1.keras",
            "step-00000001.keras.bak",
            "xstep-00000001.keras",
            "step-00000009.txt",
            ".unfinished-00000000-trials.csv",
        ]
        strays = [
            ".unfinished-00000000-step-00000003.json",
            ".unfinished-ffffffff-step-00000003-1.weights.h5",
            "step-00000002-1.keras",
            "step-00000002.weights.h5",
            "step-123456789.keras",
        ]
        for name in kept + strays:
            (directory / name).write_bytes(b"")
        assert store.clean() == sorted(strays)
        assert names(directory) == sorted([*kept, "step-00000001.json", "step-00000001.keras"])


class TestAnnotate:
    def test_adds_metrics_and_directions_and_keeps_the_rest(self, store, tmp_path):
        record = add(store, 1, directions={"val_auc": "max"})
        annotated = store.annotate(record, {"full_loss": 2, "x": math.nan}, directions={"x": "max"})
        assert annotated.metrics["full_loss"] == 2.0
        assert annotated.directions == {"val_auc": "max", "x": "max"}
        assert annotated.sha256 == record.sha256
        (read,) = store.records()
        assert read.metrics["val_loss"] == record.metrics["val_loss"]
        assert read.metrics["full_loss"] == 2.0
        assert math.isnan(read.metrics["x"])
        assert names(tmp_path / "ckpt") == ["step-00000001.json", "step-00000001.keras"]

    def test_refuses_what_is_no_number_and_changes_nothing(self, store):
        record = add(store, 1)
        with pytest.raises(ValueError, match="`metrics` must be names with single numbers"):
            store.annotate(record, {"full_loss": "low"})
        assert store.records() == [record]

    def test_a_checkpoint_that_is_gone_is_an_error_and_does_not_come_back(self, store, tmp_path):
        record = add(store, 1)
        store.remove(record)
        with pytest.raises(CheckpointError, match="step 1 is no longer in"):
            store.annotate(record, {"full_loss": 1.0})
        assert names(tmp_path / "ckpt") == []

    def test_a_record_of_something_else_is_refused(self, store):
        record = add(store, 1)
        object.__setattr__(record, "path", "elsewhere/model.keras")
        with pytest.raises(ValueError, match=r"Received: record\.path='elsewhere/model\.keras'"):
            store.annotate(record, {"full_loss": 1.0})


class TestReading:
    def test_gives_the_local_file_itself(self, store):
        record = add(store, 1, data=b"abc")
        with store.local_file(record) as path:
            assert path.read_bytes() == b"abc"
        assert Path(record.path).exists()
        assert store.verified(record) is record

    def test_a_changed_file_of_the_same_size_is_refused(self, store):
        record = add(store, 1, data=b"abc")
        Path(record.path).write_bytes(b"abd")
        assert store.records() == [record]
        with pytest.raises(DamagedCheckpointError, match="is not what was written: its SHA-256"):
            store.verified(record)
        with pytest.raises(DamagedCheckpointError), store.local_file(record):
            pytest.fail("a damaged file was given")

    def test_a_file_removed_meanwhile_is_a_damaged_one(self, store):
        record = add(store, 1)
        store.remove(record)
        with pytest.raises(DamagedCheckpointError, match="is no longer there"):
            store.verified(record)
        with pytest.raises(DamagedCheckpointError), store.local_file(record):
            pytest.fail("a missing file was given")

    def test_an_error_of_the_reader_is_not_taken_for_damage(self, store):
        record = add(store, 1)
        with pytest.raises(FileNotFoundError, match="of my own"), store.local_file(record):
            raise FileNotFoundError("of my own")


class TestRemote:
    def files(self, store):
        root = store.directory.removeprefix("memory:/")
        return {
            path.removeprefix(f"{root}/"): bytes(content.getvalue())
            for path, content in fsspec.filesystem("memory").store.items()
            if path.startswith(f"{root}/")
        }

    def test_holds_the_same_files_as_a_local_directory(self, remote, store, tmp_path):
        for one in (remote, store):
            add(one, 1, data=b"abc")
        assert self.files(remote)["step-00000001.keras"] == b"abc"
        written = json.loads(self.files(remote)["step-00000001.json"])
        local = json.loads((tmp_path / "ckpt" / "step-00000001.json").read_text())
        assert {**written, "time": None} == {**local, "time": None}

    def test_lists_annotates_reads_and_removes(self, remote):
        assert remote.records() == []
        first, second = add(remote, 1, data=b"abc"), add(remote, 2)
        assert remote.records() == [first, second]
        assert first.path == f"{remote.directory}/step-00000001.keras"
        assert remote.verified(first) == first
        with remote.local_file(first) as path:
            assert path.read_bytes() == b"abc"
            assert path.suffix == ".keras"
        assert not path.exists()
        annotated = remote.annotate(first, {"full_loss": 0.5})
        assert remote.records() == [annotated, second]
        remote.remove(annotated)
        remote.remove(annotated)
        assert remote.records() == [second]
        assert set(self.files(remote)) == {"step-00000002.json", "step-00000002.keras"}

    def test_an_upload_that_was_cut_is_no_checkpoint(self, remote, caplog):
        record = add(remote, 1, data=b"abc")
        files = fsspec.filesystem("memory")
        root = remote.directory.removeprefix("memory:/")
        files.pipe_file(f"{root}/step-00000002.keras", b"ab")
        files.pipe_file(f"{root}/notes.txt", b"mine")
        assert remote.records() == [record]
        assert remote.clean() == ["step-00000002.keras"]
        assert "notes.txt" in self.files(remote)
        files.pipe_file(f"{root}/step-00000001.keras", b"abd")
        with pytest.raises(DamagedCheckpointError), remote.local_file(record):
            pytest.fail("a damaged file was given")
        files.pipe_file(f"{root}/step-00000001.keras", b"ab")
        with caplog.at_level(logging.WARNING):
            assert remote.records() == []
        assert "has 2 bytes, recorded are 3" in caplog.text

    def test_an_error_of_the_writer_uploads_nothing(self, remote):
        with pytest.raises(TypeError):
            add(remote, 1, data="no bytes")
        assert self.files(remote) == {}
