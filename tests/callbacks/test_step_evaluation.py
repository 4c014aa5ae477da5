import csv
import subprocess
import sys
import tracemalloc
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips._core.schedule import DenseThenSparse
from tfx_tips.callbacks.step_evaluation import StepEvaluation

RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(10, 4)).astype("float32"), RNG.normal(size=(10, 1)).astype("float32")
X_VAL, Y_VAL = RNG.normal(size=(7, 4)).astype("float32"), RNG.normal(size=(7, 1)).astype("float32")
VAL = (X_VAL, Y_VAL)


@pytest.fixture(scope="module")
def shared():
    """A compiled model for tests in which its state does not matter."""
    return compiled()


def compiled(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), **({"loss": "mse", "metrics": ["mae"]} | options))
    return model


def restarted(model):
    model.optimizer.iterations.assign(0)
    return model


def fit(model, *callbacks, epochs=3, **options):
    return model.fit(
        X, Y, batch_size=2, epochs=epochs, callbacks=list(callbacks), verbose=0, **options
    )


def steps(evaluation):
    return [record.step for record in evaluation.history]


class EveryPrime:
    """A schedule of the user's own."""

    def crossed(self, before, after):
        return any(step in (2, 3, 5, 7, 11, 13) for step in range(before + 1, after + 1))


# When: three epochs of five steps.


@pytest.mark.parametrize(
    ("every_steps", "expected"),
    [
        (7, [7, 14, 15]),
        (5, [5, 10, 15]),
        (100, [15]),
        ([1, 6, 15], [1, 6, 15]),
        (DenseThenSparse(early=2, until=4, late=6), [2, 4, 6, 12, 15]),
        (EveryPrime(), [2, 3, 5, 7, 11, 13, 15]),
    ],
)
def test_evaluates_at_steps_counted_over_the_whole_run(shared, every_steps, expected):
    evaluation = StepEvaluation(VAL, every_steps=every_steps)
    fit(restarted(shared), evaluation)
    assert steps(evaluation) == expected


def test_several_steps_in_one_execution_give_one_evaluation_at_or_after_each_multiple():
    model = compiled(steps_per_execution=4)
    # Executions end after the steps 4 and 5, 9 and 10, 14 and 15.
    for every_steps, expected in (
        (7, [9, 14, 15]),
        (1, [4, 5, 9, 10, 14, 15]),
        (3, [4, 9, 14, 15]),
    ):
        evaluation = StepEvaluation(VAL, every_steps=every_steps)
        fit(restarted(model), evaluation)
        assert steps(evaluation) == expected


def test_the_begin_and_the_end_are_evaluated_where_asked_for(shared):
    evaluation = StepEvaluation(VAL, every_steps=7, at_start=True, at_end=False)
    fit(restarted(shared), evaluation)
    assert steps(evaluation) == [0, 7, 14]


def test_a_later_run_with_the_same_instance_goes_on_with_a_new_history(shared):
    evaluation = StepEvaluation(VAL, every_steps=7)
    fit(restarted(shared), evaluation, epochs=1)
    assert steps(evaluation) == [5]
    fit(shared, evaluation, epochs=2)
    assert steps(evaluation) == [7, 14, 15]


class StopAt(keras.callbacks.Callback):
    def __init__(self, *, batch=None, epoch=None):
        super().__init__()
        self.batch, self.epoch = batch, epoch

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training |= batch == self.batch

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= epoch == self.epoch


def test_a_stop_in_the_middle_of_an_epoch_is_evaluated_in_its_logs(shared):
    evaluation = StepEvaluation(VAL, every_steps=7)
    history = fit(restarted(shared), evaluation, StopAt(batch=2)).history
    assert steps(evaluation) == [3]
    assert history["val_loss"] == [evaluation.history[0].metrics["val_loss"]]


def test_a_stop_by_a_later_callback_at_an_epochs_end_is_evaluated_at_the_end(shared):
    evaluation, seen = StepEvaluation(VAL, every_steps=7), []
    evaluation.subscribe(seen.append)
    history = fit(restarted(shared), evaluation, StopAt(epoch=1)).history
    assert steps(evaluation) == [7, 10]
    assert seen == evaluation.history
    assert history["val_loss"] == [evaluation.history[0].metrics["val_loss"]]


# Where to: logs, later callbacks, subscribers, files.


class Logs(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(dict(logs))


def test_an_epochs_logs_hold_its_last_evaluation_and_nothing_if_there_was_none(shared):
    evaluation, logs = StepEvaluation(VAL, every_steps=[1, 3, 12], at_end=False), Logs()
    history = fit(restarted(shared), evaluation, logs).history
    first, second, third = logs.seen
    assert {name: first[name] for name in ("val_loss", "val_mae")} == evaluation.history[1].metrics
    assert set(second) == {"loss", "mae"}
    assert third["val_loss"] == evaluation.history[2].metrics["val_loss"]
    assert history["val_loss"] == [first["val_loss"], third["val_loss"]]
    assert evaluation.metric_names == ("val_loss", "val_mae")


def test_early_stopping_after_it_works(shared):
    evaluation = StepEvaluation(VAL, every_steps=5)
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e6)
    fit(restarted(shared), evaluation, stopping)
    assert stopping.stopped_epoch == 1
    assert steps(evaluation) == [5, 10]


def test_a_monitor_listed_before_it_is_refused_before_the_first_step(shared):
    evaluation = StepEvaluation(VAL, every_steps=5)
    stopping = keras.callbacks.EarlyStopping("val_loss")
    with pytest.raises(ValueError, match=r"(?s)EarlyStopping.*'val_loss'.*first in `callbacks`"):
        fit(restarted(shared), stopping, evaluation)
    assert int(shared.optimizer.iterations.numpy()) == 0


def test_subscribers_get_each_record_while_the_model_holds_what_was_evaluated(shared):
    evaluation, seen = StepEvaluation(VAL, every_steps=7), []

    def subscriber(record):
        errors = shared.predict_on_batch(X_VAL) - np.float64(Y_VAL)
        seen.append((record.step, np.mean(errors**2)))

    evaluation.subscribe(subscriber)
    fit(restarted(shared), evaluation)
    assert [step for step, _ in seen] == [7, 14, 15]
    losses = [record.metrics["val_loss"] for record in evaluation.history]
    assert losses == pytest.approx([loss for _, loss in seen], rel=1e-6)


def test_several_sets_are_evaluated_under_their_names(shared):
    other = tf.data.Dataset.from_tensor_slices((X_VAL + 1, Y_VAL)).batch(3)
    evaluation = StepEvaluation({"clean": VAL, "moved": other}, every_steps=15)
    history = fit(restarted(shared), evaluation).history
    metrics = evaluation.history[0].metrics
    assert set(metrics) == {"clean_loss", "clean_mae", "moved_loss", "moved_mae"}
    assert set(history) == {"loss", "mae", *metrics}
    errors = np.float64(shared.predict_on_batch(X_VAL + 1)) - Y_VAL
    assert metrics["moved_mae"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-6)


def test_history_is_written_as_csv(shared, tmp_path):
    evaluation = StepEvaluation(VAL, every_steps=7)
    fit(restarted(shared), evaluation)
    evaluation.to_csv(tmp_path / "history.csv")
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [7, 14, 15]
    for row, record in zip(rows, evaluation.history, strict=True):
        assert float(row["val_loss"]) == record.metrics["val_loss"]
        assert float(row["seconds"]) == record.seconds > 0


def test_tensorboard_scalars_stand_at_optimizer_steps(shared, tmp_path):
    evaluation = StepEvaluation(VAL, every_steps=7, log_dir=tmp_path)
    fit(restarted(shared), evaluation)
    found = {}
    for path in tmp_path.glob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    expected = {
        (f"evaluation/{name}", record.step): value
        for record in evaluation.history
        for name, value in record.metrics.items()
    }
    assert found == expected


def test_without_a_log_dir_nothing_is_written(shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(restarted(shared), StepEvaluation(VAL, every_steps=7))
    assert list(tmp_path.iterdir()) == []


# What is refused, before the first step.


def test_the_name_of_fits_own_validation_is_taken_and_another_is_not(shared):
    with pytest.raises(ValueError, match=r"(?s)validation_data.*another `name`"):
        fit(restarted(shared), StepEvaluation(VAL, every_steps=5), validation_data=VAL)
    assert int(shared.optimizer.iterations.numpy()) == 0
    evaluation = StepEvaluation(VAL, every_steps=5, name="steps")
    history = fit(shared, evaluation, validation_data=VAL).history
    assert history["steps_loss"] == pytest.approx(history["val_loss"], rel=1e-6)


def test_a_name_that_collides_with_the_trainings_own_logs_is_refused():
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("val", "other")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"val": "mse", "other": "mse"})
    targets = {"val": Y, "other": Y}
    evaluation = StepEvaluation((X, targets), every_steps=5)
    with pytest.raises(ValueError, match=r"(?s)'val_loss'.*another `name`"):
        model.fit(X, targets, callbacks=[evaluation], verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 0


def test_an_infinite_set_needs_steps(shared):
    endless = tf.data.Dataset.from_tensor_slices(VAL).batch(2).repeat()
    with pytest.raises(ValueError, match=r"(?s)infinite.*Pass `steps`"):
        fit(restarted(shared), StepEvaluation(endless, every_steps=5))
    assert int(shared.optimizer.iterations.numpy()) == 0
    evaluation = StepEvaluation(endless, every_steps=15, steps=3)
    fit(shared, evaluation)
    errors = np.float64(shared.predict_on_batch(X_VAL[:6])) - Y_VAL[:6]
    assert evaluation.history[0].metrics["val_mae"] == pytest.approx(
        np.mean(np.abs(errors)), rel=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_steps": 0}, "Received: every_steps=0"),
        ({"every_steps": [5, 3]}, "strictly increasing"),
        ({"every_steps": "often"}, "every_steps"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"steps": -1}, "steps=-1"),
        ({"predictions": 3}, "Pass `log_dir`"),
        ({"export": True}, "Pass `log_dir`"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepEvaluation(**({"validation_data": VAL, "every_steps": 5} | arguments))


# What goes wrong on the way.


class Fragile(keras.metrics.Metric):
    """Raises where the labels are above a limit."""

    def __init__(self):
        super().__init__(name="fragile")
        self.sum = self.add_variable((), "zeros", name="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        tf.debugging.assert_less(y_true, 50.0)
        self.sum.assign_add(keras.ops.sum(y_true))

    def result(self):
        return self.sum


class MetricsAround(StepEvaluation):
    """Notes the training's metrics before and after each evaluation."""

    def steps_finished(self, before, after):
        self.kept = [variable.numpy() for variable in self.model.metrics_variables]
        super().steps_finished(before, after)


def growing_labels(first_passes):
    """A data set whose labels get too large for `Fragile` after some passes."""
    passes = [0]

    def rows():
        passes[0] += 1
        yield X_VAL, Y_VAL if passes[0] <= first_passes else Y_VAL + 100

    signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(rows, output_signature=signature)


@pytest.mark.parametrize("eager", [False, True])
def test_an_exception_in_an_evaluation_propagates_and_leaves_the_trainings_metrics(eager):
    model = compiled(metrics=["mae", Fragile()], run_eagerly=eager)
    # Passes before the first step: one that looks at a batch, one that evaluates it.
    evaluation = MetricsAround(growing_labels(2), every_steps=3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        fit(model, evaluation)
    assert int(model.optimizer.iterations.numpy()) == 3
    after = [variable.numpy() for variable in model.metrics_variables]
    assert any(value != 0 for value in after)
    assert after == evaluation.kept
    good = StepEvaluation(VAL, every_steps=100)
    fit(model, good, epochs=1)
    assert steps(good) == [8]


def test_a_run_that_raises_in_the_middle_can_be_repeated(shared, tmp_path):
    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ZeroDivisionError

    evaluation = StepEvaluation(VAL, every_steps=2, at_start=True, log_dir=tmp_path)
    with pytest.raises(ZeroDivisionError):
        fit(restarted(shared), evaluation, Break())
    assert steps(evaluation) == [0]
    fit(restarted(shared), evaluation, epochs=1)
    assert steps(evaluation) == [0, 2, 4, 5]
    assert not evaluation.is_open


def test_a_run_in_the_middle_of_which_metrics_were_evaluated_reports_its_own_loss():
    """Keras' `evaluate` in a hook would leave the sums of the other rows behind."""
    rows = np.arange(20, dtype="float32")[:, None] * np.ones((1, 4), "float32")
    targets = rows[:, :1] ** 2 / 20
    model = compiled()
    model.optimizer.learning_rate = 0.0
    evaluation = StepEvaluation((100 + rows[:4], targets[:4]), every_steps=[8], at_end=False)
    history = model.fit(rows, targets, batch_size=2, callbacks=[evaluation], verbose=0).history
    expected = np.mean((np.float64(model.predict_on_batch(rows)) - targets) ** 2)
    assert history["loss"][0] == pytest.approx(expected, rel=1e-6)
    assert evaluation.history[0].metrics["val_loss"] > 10 * expected


def test_two_hundred_evaluations_keep_no_memory_and_trace_nothing():
    traces = []

    class Traced(keras.Sequential):
        def test_step(self, data):
            traces.append(data)
            return super().test_step(data)

    model = Traced([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    evaluation, sizes = StepEvaluation(VAL, every_steps=1, batch_size=4), {}

    def measure(record):
        if record.step in (50, 250):
            sizes[record.step] = (tracemalloc.get_traced_memory()[0], len(traces))

    evaluation.subscribe(measure)
    dataset = tf.data.Dataset.from_tensors((X, Y)).repeat(250)
    tracemalloc.start()
    try:
        model.fit(dataset, callbacks=[evaluation], shuffle=False, verbose=0)
    finally:
        tracemalloc.stop()
    assert sizes[250][1] == sizes[50][1]
    # A record of two metrics takes about 600 bytes.
    assert sizes[250][0] - sizes[50][0] < 200 * 2000


def test_one_static_shape_is_compiled_by_xla(capfd):
    model = compiled(jit_compile=True)
    evaluation = StepEvaluation(VAL, every_steps=15, batch_size=4, pad_partial_batch=True)
    fit(model, evaluation)
    errors = np.float64(model.predict(X_VAL, batch_size=7, verbose=0)) - Y_VAL
    assert evaluation.history[0].metrics == pytest.approx(
        {"val_loss": np.mean(errors**2), "val_mae": np.mean(np.abs(errors))}, rel=1e-6
    )


@pytest.mark.multi_process
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_is_exact_and_leaves_no_trace_under_a_mirrored_strategy(devices):
    # A process of its own: strategies over the same logical devices collide in TensorFlow.
    program = Path(__file__).with_name("mirrored_step_evaluation.py")
    done = subprocess.run(
        [sys.executable, str(program), str(devices)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "exact and identical"
