"""`tfx-tips checkpoints`: what it prints, how it fails, and what it imports."""

import argparse
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from tfx_tips._core.errors import CheckpointError, NoFiniteMetricError
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.cli import checkpoints
from tfx_tips.cli.main import main

DATA_MODULE = """
import keras
import numpy as np

X = np.arange(12, dtype="float32").reshape(6, 2)

def validation():
    return X, X.sum(axis=1, keepdims=True)

def model_and_validation():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, validation()

NO_FUNCTION = 3
"""


def add(store, step, *, size=10, **fields):
    return store.add(
        lambda path: path.write_bytes(bytes(size)),
        suffix=".keras",
        step=step,
        **{
            "epoch": step // 500,
            "batch": step % 500,
            "metrics": {"val_loss": 1.0, "loss": 0.5},
            "monitor": "val_loss",
            "mode": "min",
            "total_steps": 2000,
            "time": "2026-01-02T03:04:05+00:00",
            **fields,
        },
    )


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "ckpt"
    store = CheckpointStore(path)
    add(store, 400, size=999, metrics={"val_loss": 0.5, "loss": 0.75})
    add(store, 1200, size=1500, metrics={"val_loss": 0.25, "val_auc": 0.75})
    add(store, 2000, size=2_500_000, metrics={"val_loss": float("nan")})
    return path


def test_prints_the_table_with_the_best_marked_its_place_and_its_path(directory, capsys):
    assert main(["checkpoints", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "best  step  epoch  val_loss  loss  val_auc  size    time (UTC)",
        "----  ----  -----  --------  ----  -------  ------  -------------------",
        "       400      0       0.5  0.75           999 B   2026-01-02 03:04:05",
        "*     1200      2      0.25           0.75  1.5 kB  2026-01-02 03:04:05",
        "      2000      4       nan                 2.5 MB  2026-01-02 03:04:05",
        "",
        "best: step 1,200 of 2,000 (60 %), val_loss 0.25",
        f"path: {directory / 'step-00001200.keras'}",
    ]


def test_chooses_by_the_given_metric_and_mode(directory, capsys):
    assert main(["checkpoints", str(directory), "--monitor", "loss", "--mode", "max"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["best", "step", "epoch", "loss"]
    assert "best: step 400 of 2,000 (20 %), loss 0.75" in lines


def test_without_a_plan_the_share_is_left_out(tmp_path, capsys):
    add(CheckpointStore(tmp_path), 12_345, total_steps=None)
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "\nbest: step 12,345, val_loss 1\n" in capsys.readouterr().out


def test_many_metrics_are_named_below_the_table(tmp_path, capsys):
    add(CheckpointStore(tmp_path), 1, metrics={"val_loss": 1.0} | {f"m{i}": 0.5 for i in range(8)})
    main(["checkpoints", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[3:9] == ["val_loss", "m0", "m1", "m2", "m3", "m4"]
    assert lines[3] == "3 more metrics are recorded: m5, m6, m7"


def test_a_metric_that_is_not_recorded_has_no_column(directory, capsys):
    assert main(["checkpoints", str(directory), "--monitor", "val_los"]) == 2
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].split()[3:6] == ["loss", "val_auc", "val_loss"]
    assert "Recorded are: loss, val_auc, val_loss" in printed.err


def test_what_would_steer_the_terminal_is_shown_escaped(tmp_path, capsys):
    metrics = {"val_loss": 1.0} | {f"m{i}\x1b[2J": 0.5 for i in range(8)}
    add(CheckpointStore(tmp_path), 1, metrics=metrics)
    assert main(["checkpoints", str(tmp_path), "--monitor", "m7\x1b[2J", "--mode", "min"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_where_none_can_be_chosen_the_table_is_shown_before_the_error(tmp_path, capsys):
    add(CheckpointStore(tmp_path), 7, metrics={"val_loss": float("nan")})
    assert main(["checkpoints", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "   7 " in printed.out
    assert "*" not in printed.out
    assert "all 1 recorded values are NaN" in printed.err


def parsed(*words):
    parser = argparse.ArgumentParser()
    checkpoints.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_errors_are_those_of_the_selection(tmp_path, directory):
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        checkpoints.run(parsed(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="Recorded are: loss, val_auc, val_loss"):
        checkpoints.run(parsed(directory, "--monitor", "val_los"))
    add(CheckpointStore(tmp_path), 7, metrics={"val_loss": float("nan")})
    with pytest.raises(NoFiniteMetricError):
        checkpoints.run(parsed(tmp_path))


@pytest.mark.parametrize("size", ["0", "-1"])
def test_a_batch_size_below_one_is_refused(directory, size):
    with pytest.raises(ValueError, match="`--batch-size` must be an integer of at least 1"):
        checkpoints.run(parsed(directory, "--batch-size", size))


@pytest.mark.multi_process
def test_lists_without_importing_tensorflow_keras_or_numpy(directory):
    script = (
        "import sys; from tfx_tips.cli.main import main; "
        f"assert main(['checkpoints', {str(directory)!r}]) == 0; "
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr


class TestEvaluate:
    @pytest.fixture
    def stored(self, tmp_path, monkeypatch):
        """A directory with one real checkpoint, beside the module that gives the data."""
        # One name for each test: a module stays imported in this process.
        name = f"data_of_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(DATA_MODULE)
        monkeypatch.chdir(tmp_path)
        return name

    def add_trained(self, suffix):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.set_weights([np.array([[1.0], [1.0]]), np.array([0.5])])
        return CheckpointStore("ckpt").add(
            model.save if suffix == ".keras" else model.save_weights,
            suffix=suffix,
            step=3,
            epoch=0,
            batch=3,
            metrics={"val_loss": 0.5},
            monitor="val_loss",
            mode="min",
        )

    @pytest.mark.parametrize(
        ("suffix", "function"), [(".keras", "validation"), (".weights.h5", "model_and_validation")]
    )
    def test_evaluates_the_best_and_records_the_values(self, stored, capsys, suffix, function):
        self.add_trained(suffix)
        path_before = list(sys.path)
        words = ["checkpoints", "ckpt", "--evaluate", f"{stored}:{function}", "--name", "test"]
        assert main([*words, "--batch-size", "2"]) == 0
        assert sys.path == path_before
        # The model adds 0.5 to the right value, so the mean squared error is 0.25.
        assert capsys.readouterr().out.splitlines()[-3:] == [
            "metric     value",
            "---------  -----",
            "test_loss   0.25",
        ]
        with open("ckpt/step-00000003.json") as file:
            assert json.load(file)["metrics"] == {"val_loss": 0.5, "test_loss": 0.25}
        assert main(["checkpoints", "ckpt", "--monitor", "test_loss"]) == 0
        assert "best: step 3, test_loss 0.25" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("validation", r"Write for example `my_data:validation`\."),
            (":validation", r"Write for example `my_data:validation`\."),
            ("no_such_module_here:f", "there is no module 'no_such_module_here'"),
            ("{module}:missing", "has no function 'missing'"),
            ("{module}:NO_FUNCTION", "has no function 'NO_FUNCTION'"),
        ],
    )
    def test_a_function_that_cannot_be_found_is_an_error(self, stored, text, reason):
        add(CheckpointStore("ckpt"), 3)
        text = text.format(module=stored)
        with pytest.raises(ValueError, match=f"`--evaluate` must be MODULE:FUNCTION.*{reason}"):
            checkpoints.run(parsed("ckpt", "--evaluate", text))

    def test_a_module_missing_inside_the_users_own_is_their_error(self, stored, tmp_path):
        add(CheckpointStore("ckpt"), 3)
        (tmp_path / "broken_data.py").write_text("import no_such_module_here")
        with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
            checkpoints.run(parsed("ckpt", "--evaluate", "broken_data:validation"))
