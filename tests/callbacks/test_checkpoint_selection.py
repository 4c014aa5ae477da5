"""Listing checkpoints and choosing the best one."""

import hashlib
import itertools
import json
import logging
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

import tfx_tips.callbacks
from tfx_tips._core.errors import CheckpointError, DamagedCheckpointError, NoFiniteMetricError
from tfx_tips.callbacks import best_checkpoint, list_checkpoints
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_selection import rank_checkpoints

VALUES = (0.0, 1.0, 2.0, math.nan, math.inf, -math.inf, None)


def plant(directory, step, metrics, *, sequence=None, monitor="val_loss", mode="min", **fields):
    """Writes a checkpoint by hand, as the documentation describes the directory."""
    data = f"data of step {step}".encode()
    stem = directory / f"step-{step:08d}"
    stem.with_suffix(".keras").write_bytes(data)
    manifest = {
        "format": 1,
        "file": f"{stem.name}.keras",
        "sequence": step if sequence is None else sequence,
        "step": step,
        "epoch": 0,
        "batch": step,
        "metrics": metrics,
        "monitor": monitor,
        "mode": mode,
        "directions": {},
        "time": "2026-01-02T03:04:05+00:00",
        "seed": None,
        "versions": {},
        "size_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "weights_only": False,
        "total_steps": None,
        "random_generators": [],
        **fields,
    }
    stem.with_suffix(".json").write_text(json.dumps(manifest))


def plant_values(directory, values, **fields):
    for step, value in enumerate(values, start=1):
        plant(directory, step, {} if value is None else {"val_loss": value}, **fields)


def brute_force(values, mode):
    """The index that must be chosen, found by comparing one by one, or None."""
    for accepted in (math.isfinite, math.isinf):
        best = None
        for index, value in enumerate(values):
            if value is None or not accepted(value):
                continue
            if (
                best is None
                or (mode == "min" and value < values[best])
                or (mode == "max" and value > values[best])
            ):
                best = index
        if best is not None:
            return best
    return None


class TestRanking:
    def record(self, sequence, value):
        return CheckpointRecord(
            path=f"/ckpt/step-{sequence:08d}.keras",
            sequence=sequence,
            step=100 - sequence,
            epoch=0,
            batch=0,
            metrics={} if value is None else {"val_loss": value},
            monitor="val_loss",
            mode="min",
            time="",
            size_bytes=0,
            sha256="0" * 64,
            weights_only=False,
        )

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_agrees_with_brute_force_on_every_short_sequence(self, mode):
        for length in (1, 2, 3, 4):
            for values in itertools.product(VALUES, repeat=length):
                records = [self.record(i, value) for i, value in enumerate(values)]
                expected = brute_force(values, mode)
                try:
                    ranked = rank_checkpoints(
                        records, directory="ckpt", monitor="val_loss", mode=mode
                    )
                except (NoFiniteMetricError, ValueError):
                    assert expected is None, values
                    continue
                assert ranked[0].sequence == expected, values
                # What follows is what would be the best without those before.
                left = list(values)
                for record in ranked:
                    assert record.sequence == brute_force(left, mode), values
                    left[record.sequence] = None
                assert brute_force(left, mode) is None


class TestBestCheckpoint:
    def test_agrees_with_brute_force_on_disk(self, tmp_path):
        generator = random.Random(0)
        for case in range(60):
            directory = tmp_path / str(case)
            directory.mkdir()
            values = [generator.choice(VALUES) for _ in range(generator.randint(1, 8))]
            plant_values(directory, values)
            mode = generator.choice(["min", "max"])
            expected = brute_force(values, mode)
            try:
                found = best_checkpoint(directory, monitor="val_loss", mode=mode).step
            except NoFiniteMetricError:
                assert expected is None
                assert any(value is not None for value in values)
            except ValueError:
                assert all(value is None for value in values)
            else:
                assert found == expected + 1, values

    def test_of_equal_values_the_earlier_wins_by_age_and_not_by_step(self, tmp_path):
        plant(tmp_path, 10, {"val_loss": 0.5}, sequence=2)
        plant(tmp_path, 90, {"val_loss": 0.5}, sequence=1)
        assert best_checkpoint(tmp_path).step == 90

    def test_chooses_by_another_recorded_metric_in_its_recorded_direction(self, tmp_path):
        for step, (loss, auc) in enumerate([(0.1, 0.7), (0.3, 0.9), (0.2, 0.8)], start=1):
            metrics = {"val_loss": loss, "val_auc": auc}
            plant(tmp_path, step, metrics, directions={"val_auc": "max"})
        assert best_checkpoint(tmp_path).step == 1
        assert best_checkpoint(tmp_path, monitor="val_auc").step == 2
        assert best_checkpoint(tmp_path, monitor="val_auc", mode="min").step == 1
        assert best_checkpoint(tmp_path, mode="max").step == 2

    def test_ranks_by_default_as_the_newest_run_did(self, tmp_path):
        metrics = {"val_loss": 0.1, "val_auc": 0.7}
        plant(tmp_path, 1, metrics)
        plant(tmp_path, 2, {**metrics, "val_auc": 0.9}, monitor="val_auc", mode="max")
        assert best_checkpoint(tmp_path).step == 2

    def test_the_direction_is_found_where_an_earlier_checkpoint_alone_knows_it(self, tmp_path):
        plant(tmp_path, 1, {"full_loss": 0.5}, directions={"full_loss": "min"})
        plant(tmp_path, 2, {"full_loss": 0.25})
        assert best_checkpoint(tmp_path, monitor="full_loss").step == 2

    def test_an_unknown_direction_is_an_error_that_names_metric_and_mode(self, tmp_path):
        plant(tmp_path, 1, {"val_f1": 0.5})
        with pytest.raises(ValueError, match=r"monitor='val_f1', mode='auto'.*`mode='max'`"):
            best_checkpoint(tmp_path, monitor="val_f1")

    def test_an_unknown_mode_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="`mode` must be one of"):
            best_checkpoint(tmp_path, mode="lowest")

    def test_a_metric_that_is_nowhere_recorded_lists_those_that_are(self, tmp_path):
        plant(tmp_path, 1, {"val_loss": 0.5, "loss": 0.4})
        with pytest.raises(ValueError, match=r"monitor='val_los'\. Recorded are: loss, val_loss\."):
            best_checkpoint(tmp_path, monitor="val_los")

    def test_no_value_yet_of_the_runs_own_metric_is_a_checkpoint_error(self, tmp_path):
        plant(tmp_path, 1, {"loss": 0.4})
        with pytest.raises(CheckpointError, match=r"has a value of 'val_loss'.*Recorded are: loss"):
            best_checkpoint(tmp_path)

    def test_all_nan_is_an_error_that_says_so(self, tmp_path):
        plant_values(tmp_path, [math.nan, math.nan, None])
        with pytest.raises(NoFiniteMetricError, match="all 2 recorded values are NaN"):
            best_checkpoint(tmp_path)

    @pytest.mark.parametrize("make", [True, False])
    def test_no_checkpoint_says_what_was_looked_for(self, tmp_path, make):
        directory = tmp_path / "run"
        if make:
            directory.mkdir()
        with pytest.raises(CheckpointError, match=r"no checkpoint in '.*run'.*step-00000100\.json"):
            best_checkpoint(directory)

    def test_a_file_with_another_checksum_gives_way_to_the_next_best(self, tmp_path, caplog):
        plant_values(tmp_path, [0.3, 0.1, 0.2])
        flip_a_bit(tmp_path / "step-00000002.keras")
        with caplog.at_level(logging.WARNING):
            assert best_checkpoint(tmp_path).step == 3
        assert "step-00000002.keras is not what was written" in caplog.text

    def test_when_all_are_damaged_none_is_returned(self, tmp_path):
        plant_values(tmp_path, [0.3, 0.1, math.nan])
        for path in (tmp_path / "step-00000001.keras", tmp_path / "step-00000002.keras"):
            flip_a_bit(path)
        with pytest.raises(DamagedCheckpointError, match=r"step-00000002\.keras, .*00001\.keras"):
            best_checkpoint(tmp_path)


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


class TestListCheckpoints:
    def test_gives_them_in_the_order_of_their_age(self, tmp_path):
        for sequence, step in ((3, 10), (1, 30), (2, 20)):
            plant(tmp_path, step, {"val_loss": 0.5}, sequence=sequence)
        assert [record.step for record in list_checkpoints(str(tmp_path))] == [30, 20, 10]

    def test_gives_none_for_a_directory_that_does_not_exist(self, tmp_path):
        assert list_checkpoints(tmp_path / "nowhere") == []

    def test_a_record_tells_step_epoch_metrics_and_a_path_that_exists(self, tmp_path):
        plant(tmp_path, 7, {"val_loss": 0.5}, epoch=3)
        (record,) = list_checkpoints(tmp_path)
        assert (record.step, record.epoch, record.metrics) == (7, 3, {"val_loss": 0.5})
        assert Path(record.path).read_bytes() == b"data of step 7"


@pytest.mark.multi_process
def test_needs_neither_tensorflow_nor_keras_nor_numpy(tmp_path):
    plant_values(tmp_path, [0.3, 0.1])
    script = (
        "import sys; from tfx_tips.callbacks import best_checkpoint, list_checkpoints; "
        f"assert len(list_checkpoints({str(tmp_path)!r})) == 2; "
        f"assert best_checkpoint({str(tmp_path)!r}).step == 2; "
        "print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert finished.stdout.strip() == "set()", finished.stderr


def test_the_public_names_are_reachable():
    for name in ("CheckpointRecord", "best_checkpoint", "list_checkpoints", "restore_best"):
        assert name in tfx_tips.callbacks.__all__
        assert getattr(tfx_tips.callbacks, name).__name__ == name
