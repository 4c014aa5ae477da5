import csv
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import keras
import numpy as np
import pytest

from tfx_tips.callbacks import (
    BestNCheckpoint,
    ExperimentTracker,
    StepEvaluation,
    list_studies,
    list_trials,
    resume_fit,
)
from tfx_tips.callbacks.run_guard import end_broken_runs
from tfx_tips.callbacks.run_plan import RunPlan, part_of
from tfx_tips.data import from_step

ROWS, BATCH = 40, 4


@pytest.fixture
def data(rng):
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) + 1).astype("float32")


def make_model(*, steps_per_execution=1, metrics=(), learning_rate=0.02):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=0.9),
        "mse",
        metrics=list(metrics),
        steps_per_execution=steps_per_execution,
    )
    return model


def fit(model, data, callbacks, *, epochs=2, **options):
    return model.fit(
        *data, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=callbacks, **options
    )


def rows(directory, table="trials"):
    """What a program sees that knows only CSV."""
    with (directory / f"{table}.csv").open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def wait_until(condition, timeout_s=60):
    """Waits for another thread or process, in vain at most `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


class FailsAtBatch(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            raise RuntimeError("on purpose")


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_records_the_best_evaluation_by_steps(tmp_path, data, steps_per_execution):
    evaluation = StepEvaluation(data, every_steps=3)
    tracker = ExperimentTracker(tmp_path, study="s", evaluation=evaluation)
    for trial in (1, 2):
        model = make_model(steps_per_execution=steps_per_execution)
        fit(model, data, [evaluation, tracker])
        best = min(evaluation.history, key=lambda record: record.metrics["val_loss"])
        row = rows(tmp_path)[-1]
        assert len(rows(tmp_path)) == trial
        assert (row["trial"], row["status"]) == (str(trial), "completed")
        assert float(row["best_value"]) == best.metrics["val_loss"]
        assert int(row["best_step"]) == best.step
        assert int(row["steps"]) == model.optimizer.iterations == 2 * ROWS // BATCH


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_records_the_best_epoch_without_an_evaluation_by_steps(tmp_path, data, steps_per_execution):
    tracker = ExperimentTracker(tmp_path, study="s")
    for trial in (1, 2):
        # The higher rate makes the loss go up and down.
        model = make_model(steps_per_execution=steps_per_execution, learning_rate=0.3)
        history = fit(model, data, [tracker], epochs=4, validation_data=data)
        values = history.history["val_loss"]
        epoch = int(np.nanargmin(values))
        row = rows(tmp_path)[-1]
        assert (row["trial"], row["status"]) == (str(trial), "completed")
        assert float(row["best_value"]) == values[epoch]
        assert int(row["best_step"]) == (epoch + 1) * ROWS // BATCH


def test_the_study_has_the_best_of_its_trials(tmp_path, data):
    values = []
    for rate in (0.001, 0.02, 0.005):
        tracker = ExperimentTracker(
            tmp_path,
            study="rates",
            configuration="https://example.invalid/rates.yaml",
            notes="first, then\nsecond",
            parameters={"learning_rate": rate, "optimizer": "SGD", "depth": None},
        )
        history = fit(make_model(learning_rate=rate), data, [tracker], validation_data=data)
        values.append(min(history.history["val_loss"]))
    (study,) = rows(tmp_path, "studies")
    assert study["study"] == "rates"
    assert study["status"] == "completed"
    assert study["trials"] == "3"
    assert study["monitor"] == "val_loss"
    assert float(study["best_value"]) == min(values)
    assert int(study["best_trial"]) == 1 + int(np.argmin(values))
    assert study["configuration"] == "https://example.invalid/rates.yaml"
    assert study["notes"] == "first, then\nsecond"
    trials = rows(tmp_path)
    assert [row["parameter/learning_rate"] for row in trials] == ["0.001", "0.02", "0.005"]
    assert {(row["parameter/optimizer"], row["parameter/depth"]) for row in trials} == {("SGD", "")}


def test_the_row_says_where_the_run_comes_from(tmp_path, data):
    fit(make_model(), data, [ExperimentTracker(tmp_path, study="s", monitor="loss")])
    (row,) = rows(tmp_path)
    assert (row["host"], row["process"]) == (socket.gethostname(), str(os.getpid()))
    assert row["working_directory"] == os.getcwd()
    assert row["started_utc"] <= row["updated_utc"]


def test_the_row_runs_while_training_does_and_has_the_best_so_far(tmp_path, data):
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            best = min([logs["val_loss"], *(value for _, value in seen)])
            wait_until(lambda: rows(tmp_path)[0]["best_value"] == repr(best))
            seen.append((rows(tmp_path)[0], logs["val_loss"]))

    fit(
        make_model(),
        data,
        [ExperimentTracker(tmp_path, study="s"), Look()],
        validation_data=data,
    )
    assert [row["status"] for row, _ in seen] == ["running", "running"]


def test_training_is_bit_identical_with_and_without(tmp_path, data):
    results = []
    for track in (False, True):
        model = make_model(metrics=["mae"])
        tracker = ExperimentTracker(tmp_path, study="s", parameters={"a": 1})
        history = fit(model, data, [tracker] if track else [], validation_data=data)
        variables = [*model.variables, *model.optimizer.variables]
        state = [keras.ops.convert_to_numpy(variable) for variable in variables]
        results.append((history.history, state))
    (plain_history, plain), (history, tracked) = results
    assert history == plain_history
    assert all(np.array_equal(a, b) for a, b in zip(plain, tracked, strict=True))
    assert len(rows(tmp_path)) == 1


def test_nothing_happens_on_a_step():
    hooks = [name for name in dir(keras.callbacks.Callback) if "batch" in name]
    assert hooks
    for name in hooks:
        assert getattr(ExperimentTracker, name) is getattr(keras.callbacks.Callback, name)


def test_a_fit_that_raises_has_failed(tmp_path, data):
    evaluation = StepEvaluation(data, every_steps=3)
    tracker = ExperimentTracker(tmp_path, study="s", evaluation=evaluation)
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(make_model(), data, [evaluation, tracker, FailsAtBatch(7)])
    end_broken_runs()
    (row,) = rows(tmp_path)
    assert (row["status"], row["steps"]) == ("failed", "6")
    assert float(row["best_value"]) == min(r.metrics["val_loss"] for r in evaluation.history)
    assert rows(tmp_path, "studies")[0]["status"] == "failed"


def test_the_next_fit_of_the_instance_is_another_trial_after_one_that_raised(tmp_path, data):
    tracker = ExperimentTracker(tmp_path, study="s", monitor="loss")
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(make_model(), data, [tracker, FailsAtBatch(2)])
    fit(make_model(), data, [tracker])
    assert [(row["trial"], row["status"]) for row in rows(tmp_path)] == [
        ("1", "failed"),
        ("2", "completed"),
    ]


def test_an_evaluation_outside_of_the_trial_changes_nothing(tmp_path, data):
    evaluation = StepEvaluation(data, every_steps=3)
    tracker = ExperimentTracker(tmp_path, study="s", evaluation=evaluation)
    fit(make_model(), data, [evaluation, tracker])
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(make_model(), data, [evaluation, tracker, FailsAtBatch(0)])
    end_broken_runs()
    before = (tmp_path / "trials.csv").read_bytes()
    fit(make_model(), data, [evaluation])
    assert (tmp_path / "trials.csv").read_bytes() == before


def test_a_metric_that_is_never_logged_leaves_empty_cells(tmp_path, data, caplog):
    fit(make_model(), data, [ExperimentTracker(tmp_path, study="s")])
    (row,) = rows(tmp_path)
    assert (row["status"], row["best_value"], row["best_step"]) == ("completed", "", "")
    assert "'val_loss' was in no logs" in caplog.text


@pytest.mark.parametrize("built", [False, True])
def test_knows_the_direction_of_keras_metrics_before_and_after_they_exist(tmp_path, rng, built):
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    if built:
        model.evaluate(x, y, verbose=0)
    history = fit(
        model,
        (x, y),
        [ExperimentTracker(tmp_path, study="s", monitor="val_auc")],
        validation_data=(x, y),
        epochs=3,
    )
    (row,) = rows(tmp_path)
    assert row["mode"] == "max"
    assert float(row["best_value"]) == max(history.history["val_auc"])


def test_a_direction_that_cannot_be_known_is_an_error_before_the_first_step(tmp_path, data):
    def f1(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred, axis=-1)

    model = make_model(metrics=[f1])
    tracker = ExperimentTracker(tmp_path / "t", study="s", monitor="val_f1")
    with pytest.raises(ValueError, match=r"'val_f1'.*mode='auto'.*`mode='max'`"):
        fit(model, data, [tracker], validation_data=data)
    assert model.optimizer.iterations == 0
    assert not (tmp_path / "t").exists()


def test_a_metric_that_the_evaluation_lacks_is_an_error_before_the_first_step(tmp_path, data):
    model = make_model()
    evaluation = StepEvaluation(data, every_steps=3)
    tracker = ExperimentTracker(
        tmp_path / "t", study="s", monitor="val_los", mode="min", evaluation=evaluation
    )
    with pytest.raises(ValueError, match=r"val_loss\. Received: monitor='val_los'"):
        fit(model, data, [evaluation, tracker])
    assert model.optimizer.iterations == 0
    assert not (tmp_path / "t").exists()


def test_a_source_that_does_not_stand_before_it_is_an_error(tmp_path, data):
    evaluation = StepEvaluation(data, every_steps=3)
    tracker = ExperimentTracker(tmp_path / "t", study="s", evaluation=evaluation)
    for callbacks in ([tracker, evaluation], [tracker]):
        with pytest.raises(ValueError, match="`evaluation` of an ExperimentTracker must stand bef"):
            fit(make_model(), data, callbacks)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"study": ""}, "`study` must be a name. Received: study=''"),
        ({"study": 3}, "Received: study=3"),
        ({"notes": "x" * 40_000}, "`notes` must be shorter"),
        ({"parameters": {"a": {"b": 1}}}, r"parameters\['a'\]={'b': 1}.*one by one"),
        ({"parameters": {1: 2}}, "names in `parameters` must be printable text"),
        ({"parameters": {"a\nb": 2}}, "names in `parameters` must be printable text"),
        ({"mode": "down"}, "`mode` must be one of 'auto', 'min', 'max'"),
        ({"monitor": ""}, "`monitor` must be the name of a metric"),
        ({"evaluation": (1, 2)}, r"`evaluation` must be a StepEvaluation. Received: eval"),
        ({"checkpoint": "ckpt"}, r"`checkpoint` must be a BestNCheckpoint. Received: ch.*'ckpt'"),
    ],
)
def test_wrong_arguments_fail_in_the_constructor(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        ExperimentTracker(tmp_path, **{"study": "s", **options})


def test_a_remote_directory_is_refused():
    with pytest.raises(ValueError, match=r"must be a local directory.*gs://bucket/t"):
        ExperimentTracker("gs://bucket/t", study="s")


def test_a_damaged_table_stops_the_run_before_the_first_step_and_stays_as_it_is(tmp_path, data):
    (tmp_path / "trials.csv").write_bytes(b"study;trial\r\n")
    model = make_model()
    with pytest.raises(ValueError, match="must be a comma-separated"):
        fit(model, data, [ExperimentTracker(tmp_path, study="s", monitor="loss")])
    assert model.optimizer.iterations == 0
    assert (tmp_path / "trials.csv").read_bytes() == b"study;trial\r\n"


@pytest.mark.parametrize(("index", "written"), [(1, False), (0, True)])
def test_only_the_chief_writes(tmp_path, data, monkeypatch, index, written):
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    task = {"type": "worker", "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    fit(make_model(), data, [ExperimentTracker(tmp_path / "t", study="s", monitor="loss")])
    assert (tmp_path / "t").exists() == written


def test_two_fits_of_one_run_are_one_trial(tmp_path, data):
    tracker = ExperimentTracker(tmp_path, study="s")
    model = make_model()
    steps = ROWS // BATCH
    values = []
    for plan in (
        RunPlan(epochs=3, start_step=0, total_steps=3 * steps, more_follows=True),
        RunPlan(epochs=3, start_step=steps, total_steps=3 * steps, continues=True),
    ):
        with part_of(plan):
            history = fit(
                model,
                data,
                [tracker],
                initial_epoch=plan.start_step // steps,
                epochs=1 if plan.more_follows else 3,
                validation_data=data,
            )
        values += history.history["val_loss"]
        (row,) = rows(tmp_path)
        assert row["status"] == ("running" if plan.more_follows else "completed")
    assert float(row["best_value"]) == min(values)
    assert int(row["steps"]) == 3 * steps


def test_a_run_that_stops_early_in_its_first_part_is_completed(tmp_path, data):
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True)
    )
    model = make_model()
    with part_of(RunPlan(epochs=3, start_step=0, total_steps=30, more_follows=True)):
        fit(model, data, [ExperimentTracker(tmp_path, study="s", monitor="loss"), stop], epochs=1)
    assert rows(tmp_path)[0]["status"] == "completed"


def test_the_row_names_the_best_checkpoint_that_is_kept(tmp_path, data):
    evaluation = StepEvaluation(data, every_steps=3)
    checkpoint = BestNCheckpoint(tmp_path / "c", keep=2, evaluation=evaluation)
    tracker = ExperimentTracker(
        tmp_path / "t", study="s", evaluation=evaluation, checkpoint=checkpoint
    )
    fit(make_model(learning_rate=0.3), data, [evaluation, checkpoint, tracker])
    row = rows(tmp_path / "t")[-1]
    best = min(evaluation.history, key=lambda record: record.metrics["val_loss"])
    assert float(row["best_value"]) == best.metrics["val_loss"]
    assert int(row["best_step"]) == best.step
    model = keras.models.load_model(row["best_checkpoint"])
    assert model.evaluate(*data, verbose=0) == pytest.approx(best.metrics["val_loss"], rel=1e-6)
    assert row["checkpoint_directory"] == str(tmp_path / "c")
    (study,) = rows(tmp_path / "t", "studies")
    assert study["best_checkpoint"] == row["best_checkpoint"]


def test_a_fit_that_raises_names_a_checkpoint_that_was_still_being_written(tmp_path, data):
    evaluation = StepEvaluation(data, every_steps=4)
    checkpoint = BestNCheckpoint(tmp_path / "c", keep=1, evaluation=evaluation)
    tracker = ExperimentTracker(
        tmp_path / "t", study="s", evaluation=evaluation, checkpoint=checkpoint
    )
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(make_model(), data, [evaluation, checkpoint, tracker, FailsAtBatch(4)])
    end_broken_runs()
    (row,) = rows(tmp_path / "t")
    assert (row["status"], row["best_step"]) == ("failed", "4")
    model = keras.models.load_model(row["best_checkpoint"])
    assert model.optimizer.iterations == 4


def test_monitors_what_the_checkpoint_ranks_by(tmp_path, data):
    evaluation = StepEvaluation(data, every_steps=3)
    checkpoint = BestNCheckpoint(
        tmp_path / "c", monitor="val_mae", mode="max", evaluation=evaluation
    )
    tracker = ExperimentTracker(
        tmp_path / "t", study="s", evaluation=evaluation, checkpoint=checkpoint
    )
    fit(make_model(metrics=["mae"]), data, [evaluation, checkpoint, tracker])
    (row,) = rows(tmp_path / "t")
    assert (row["monitor"], row["mode"]) == ("val_mae", "max")
    assert float(row["best_value"]) == max(r.metrics["val_mae"] for r in evaluation.history)


def test_a_run_that_is_resumed_keeps_its_row(tmp_path, data):
    def batch(step):
        return tuple(part[step % 10 * BATCH :][:BATCH] for part in data)

    def train(*further):
        evaluation = StepEvaluation(data, every_steps=3)
        checkpoint = BestNCheckpoint(tmp_path / "c", evaluation=evaluation)
        tracker = ExperimentTracker(
            tmp_path / "t", study="s", evaluation=evaluation, checkpoint=checkpoint
        )
        resume_fit(
            make_model(),
            functools.partial(from_step, batch),
            tmp_path / "c",
            epochs=3,
            steps_per_epoch=10,
            callbacks=[evaluation, checkpoint, tracker, *further],
            verbose=0,
        )
        return evaluation.history

    with pytest.raises(RuntimeError, match="on purpose"):
        train(FailsAtBatch(8))
    end_broken_runs()
    (before,) = rows(tmp_path / "t")
    assert (before["status"], before["steps"]) == ("failed", "6")
    history = train()
    (row,) = rows(tmp_path / "t")
    assert (row["status"], row["trial"], row["steps"]) == ("completed", "1", "30")
    assert row["started_utc"] == before["started_utc"]
    assert float(row["best_value"]) == min(
        float(before["best_value"]), *(record.metrics["val_loss"] for record in history)
    )
    assert rows(tmp_path / "t", "studies")[0]["trials"] == "1"


TRAINING = textwrap.dedent(
    """
    import os, sys
    import keras
    import numpy as np
    from tfx_tips.callbacks import ExperimentTracker

    class EndsInEpoch2(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                if sys.argv[2] == "waits":
                    print("ready", flush=True)
                    sys.stdin.read()
                raise RuntimeError("on purpose")

    keras.utils.set_random_seed(0)
    x = np.ones((8, 4), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tracker = ExperimentTracker(sys.argv[1], study="s", monitor="loss")
    model.fit(x, x[:, :1], epochs=5, verbose=0, callbacks=[tracker, EndsInEpoch2()])
    """
)


def start_training(directory, end):
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(directory), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.multi_process
def test_a_killed_training_is_seen_as_killed_with_its_best_so_far(tmp_path):
    process = start_training(tmp_path, "waits")
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: list_trials(tmp_path)[0].get("best_step") == "2")
    assert list_trials(tmp_path)[0]["status"] == "running"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (trial,) = list_trials(tmp_path)
    assert (trial["status"], trial["best_step"], trial["steps"]) == ("killed", "2", "2")
    assert list_studies(tmp_path)[0]["status"] == "killed"
    assert rows(tmp_path)[0]["status"] == "running"


@pytest.mark.multi_process
def test_a_program_that_ends_by_an_exception_has_failed(tmp_path):
    process = start_training(tmp_path, "raises")
    process.communicate()
    assert process.returncode == 1
    assert rows(tmp_path)[0]["status"] == "failed"
