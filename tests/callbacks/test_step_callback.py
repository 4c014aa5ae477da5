import statistics
import sys
import sysconfig
import tracemalloc
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_tips
from tfx_tips.callbacks.run_plan import RunPlan, part_of
from tfx_tips.callbacks.step_callback import StepCallback, batches_per_step
from tfx_tips.callbacks.step_evaluation import StepEvaluation

X = np.ones((20, 2), "float32")
Y = np.ones((20, 1), "float32")


class Reports(StepCallback):
    def __init__(self):
        super().__init__()
        self.reports = []
        self.positions = []

    def steps_finished(self, before, after):
        self.reports.append((before, after))
        self.positions.append(self.position)


def fit(*, epochs=2, batch_size=2, trainable=True, optimizer="sgd", callback=None, model=None, **k):
    if model is None:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.trainable = trainable
        model.compile(optimizer, "mse", **k)
    callback = callback or Reports()
    model.fit(X, Y, batch_size=batch_size, epochs=epochs, callbacks=[callback], verbose=0)
    return model, callback


def test_every_step_is_reported_once_over_epochs():
    model, callback = fit()
    assert callback.reports == [(step, step + 1) for step in range(20)]
    assert callback.finished_steps == 20 == int(model.optimizer.iterations.numpy())
    assert callback.positions[8:11] == [(0, 9), (1, 0), (1, 1)]


def test_an_epochs_last_execution_may_be_shorter():
    _, callback = fit(steps_per_execution=4)
    assert callback.reports == [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20)]


def test_a_later_run_goes_on_from_the_optimizers_iterations():
    model, _ = fit(epochs=1)
    _, callback = fit(model=model, epochs=1)
    assert callback.reports[0] == (10, 11)
    fit(model=model, callback=callback, epochs=1)
    assert callback.reports[-1] == (29, 30)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable:UserWarning")
def test_a_frozen_model_counts_batches():
    model, callback = fit(trainable=False, steps_per_execution=4)
    assert int(model.optimizer.iterations.numpy()) == 0
    assert callback.finished_steps == 20


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_accumulated_gradients_count_as_one_step(steps_per_execution):
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=4)
    model, callback = fit(optimizer=optimizer, steps_per_execution=steps_per_execution)
    assert callback.reports == [(step, step + 1) for step in range(5)]
    assert int(model.optimizer.iterations.numpy()) == 5


@pytest.mark.parametrize("accumulated", [None, 2])
def test_an_optimizer_that_scales_the_loss_is_counted_by_the_inner_one(accumulated):
    inner = keras.optimizers.SGD(gradient_accumulation_steps=accumulated)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
    model, _ = fit(epochs=1, optimizer=optimizer)
    _, callback = fit(model=model, epochs=1)
    steps = 10 // (accumulated or 1)
    assert callback.reports[0] == (steps, steps + 1)
    assert callback.finished_steps == 2 * steps == int(model.optimizer.iterations.numpy())


def test_steps_left_out_because_gradients_overflow_are_counted():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=3.3e38)
    model, callback = fit(optimizer=optimizer, steps_per_execution=4)
    assert int(model.optimizer.iterations.numpy()) < 20
    assert callback.finished_steps == 20


def test_a_stop_in_the_middle_of_an_epoch_ends_the_count_there():
    class Stop(Reports):
        def steps_finished(self, before, after):
            super().steps_finished(before, after)
            self.model.stop_training = after >= 6

    _, callback = fit(callback=Stop(), steps_per_execution=4)
    # Keras runs the batch before which it is told to stop.
    assert callback.reports == [(0, 4), (4, 8), (8, 10)]


def test_a_part_of_a_run_is_counted_where_the_plan_says():
    with part_of(RunPlan(epochs=5, start_step=103, total_steps=150, start_batch=3)):
        _, callback = fit(epochs=1)
        assert callback.planned_epochs == 5
    assert callback.reports[0] == (103, 104)
    assert callback.finished_steps == 113
    assert callback.positions[0] == (0, 4)
    assert callback.planned_epochs == 1


class QuietEvaluation(StepEvaluation):
    """Runs a probe around the hook of each batch, apart from the first ones of an epoch."""

    probe = None

    def on_train_batch_begin(self, batch, logs=None):
        if batch < 3 or self.probe is None:
            super().on_train_batch_begin(batch, logs)
        else:
            self.probe(lambda: super(QuietEvaluation, self).on_train_batch_begin(batch, logs))


def quiet(probe, rows=20):
    evaluation = QuietEvaluation((X, Y), every_steps=10_000)
    evaluation.probe = probe
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensors((X, Y)).repeat(rows)
    model.fit(dataset, callbacks=[evaluation], shuffle=False, verbose=0)
    assert [record.step for record in evaluation.history] == [rows]


def test_a_quiet_hook_enters_only_the_package_and_the_standard_library():
    own = (str(Path(tfx_tips.__file__).parent), sysconfig.get_paths()["stdlib"], __file__, "<")
    entered = []

    def profile(frame, event, argument):
        if event == "call":
            entered.append(frame.f_code.co_filename)

    def probe(hook):
        sys.setprofile(profile)
        try:
            hook()
        finally:
            sys.setprofile(None)

    quiet(probe)
    assert len(entered) >= 17 * 3
    outside = [f for f in entered if not f.startswith(own) or "site-packages" in f]
    assert [f for f in outside if not f.startswith(own[0])] == []


def test_a_quiet_hook_touches_no_file():
    events = []
    recording = [False]

    def audit(event, arguments):
        if recording[0]:
            events.append(event)

    sys.addaudithook(audit)

    def probe(hook):
        recording[0] = True
        try:
            hook()
        finally:
            recording[0] = False

    quiet(probe)
    assert not [event for event in events if event.startswith(("open", "os.", "shutil."))]


def test_quiet_hooks_keep_no_memory():
    grown = []

    def probe(hook):
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        hook()
        grown.append(tracemalloc.get_traced_memory()[0] - before)

    try:
        quiet(probe, rows=600)
    finally:
        tracemalloc.stop()
    # 32 bytes are `before` itself; other threads disturb some of the measurements.
    assert statistics.median(grown[100:]) <= 32


def test_a_loss_scaling_optimizer_accumulates_as_its_inner_one_does():
    inner = keras.optimizers.SGD(gradient_accumulation_steps=3)
    assert batches_per_step(inner) == 3
    assert batches_per_step(keras.optimizers.LossScaleOptimizer(inner)) == 3
    assert batches_per_step(keras.optimizers.SGD()) == 1
    assert batches_per_step(None) == 1
