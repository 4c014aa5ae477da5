import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks.run_guard import FitRun, RunGuard, end_broken_runs

X = np.ones((12, 2), "float32")
Y = np.ones((12, 1), "float32")
WAIT_S = 20


class Guarded(keras.callbacks.Callback):
    """Opens a guard in each run; notes what was seen of the run and how it ended."""

    def __init__(self):
        super().__init__()
        self.ends = []
        self.ended = threading.Event()

    def on_train_begin(self, logs=None):
        self.ended.clear()
        self.guard = RunGuard(self.model, self.note)
        run = self.guard.run
        self.seen = (run.found, run.training_batch_size(), run.has_validation_data())
        self.listed = run.callbacks()

    def on_train_batch_begin(self, batch, logs=None):
        end_broken_runs()
        assert self.guard.run.is_running()

    def on_train_end(self, logs=None):
        self.guard.close()

    def note(self, broken):
        self.ends.append(broken)
        self.ended.set()


class Raises(keras.callbacks.Callback):
    def __init__(self, error, hook="on_train_batch_end"):
        super().__init__()
        self.error = error
        setattr(self, hook, self.fail)

    def fail(self, *_, **__):
        raise self.error


def compiled(model=None):
    model = model or keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(model, *callbacks, **options):
    return model.fit(X, Y, batch_size=4, callbacks=list(callbacks), verbose=0, **options)


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "tfx_tips.run_guard"]


def wait_for_no_watcher():
    for thread in watchers():
        thread.join(WAIT_S)
    assert watchers() == []


def test_a_run_that_returns_ends_in_order_and_the_watching_thread_with_it():
    guarded = Guarded()
    fit(compiled(), guarded, epochs=2)
    assert guarded.ends == [False]
    assert guarded.seen == (True, 4, False)
    wait_for_no_watcher()


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_begin", "on_train_end"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_from_a_later_callback_ends_the_run(error, hook):
    guarded = Guarded()
    if hook == "on_train_end":
        guarded.on_train_end = lambda logs=None: None
    with pytest.raises(error):
        fit(compiled(), guarded, Raises(error, hook))
    assert guarded.ended.wait(WAIT_S)
    assert guarded.ends == [True]
    wait_for_no_watcher()


def test_the_next_run_finds_the_broken_one_ended():
    model, guarded = compiled(), Guarded()
    with pytest.raises(ZeroDivisionError):
        fit(model, guarded, Raises(ZeroDivisionError))
    fit(model, guarded)
    assert guarded.ends == [True, False]


def test_the_run_is_seen_with_its_callbacks_and_validation_data():
    guarded = Guarded()
    later = keras.callbacks.LambdaCallback()
    fit(compiled(), guarded, later, validation_split=0.5)
    assert guarded.seen == (True, 4, True)
    assert guarded.listed[:2] == (guarded, later)


def test_a_run_in_another_thread_is_found_there():
    guarded = Guarded()
    thread = threading.Thread(target=fit, args=(compiled(), guarded))
    thread.start()
    thread.join()
    assert guarded.seen[0]
    assert guarded.ends == [False]


def test_an_exception_that_ends_the_runs_thread_is_seen():
    guarded, model = Guarded(), compiled()

    def train():
        with pytest.raises(ValueError, match="stop"):
            fit(model, guarded, Raises(ValueError("stop")))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert guarded.ended.wait(WAIT_S)
    assert guarded.ends == [True]


def test_runs_made_one_by_one_by_a_generator_are_told_apart():
    guarded, model = Guarded(), compiled()

    def runs():
        for error in (None, ZeroDivisionError, None):
            try:
                yield fit(model, guarded, *([Raises(error)] if error else []))
            except ZeroDivisionError:
                yield None

    for _ in runs():
        assert guarded.ended.wait(WAIT_S)
    assert guarded.ends == [False, True, False]


def test_a_run_inside_another_models_run_leaves_that_open():
    outer, inner = Guarded(), Guarded()

    class FitsInside(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with pytest.raises(ZeroDivisionError):
                fit(compiled(), inner, Raises(ZeroDivisionError))
            assert inner.ended.wait(WAIT_S)
            assert outer.ends == []

    fit(compiled(), outer, FitsInside())
    assert (outer.ends, inner.ends) == ([False], [True])


class OverridesFit(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


def test_a_model_that_overrides_fit_is_guarded_by_the_inner_one():
    guarded = Guarded()
    with pytest.raises(ZeroDivisionError):
        fit(compiled(OverridesFit()), guarded, Raises(ZeroDivisionError))
    assert guarded.seen[0]
    assert guarded.ended.wait(WAIT_S)
    assert guarded.ends == [True]


def test_without_keras_fit_nothing_is_known_and_close_ends_it():
    model, ends = compiled(), []
    guard = RunGuard(model, ends.append)
    run = FitRun(model)
    assert (run.found, run.is_running()) == (False, True)
    assert (run.training_batch_size(), run.has_validation_data(), run.callbacks()) == (
        None,
        False,
        (),
    )
    end_broken_runs()
    assert ends == []
    guard.close()
    guard.close()
    assert ends == [False]


def test_a_data_set_without_batch_size_gives_none():
    guarded = Guarded()
    dataset = tf.data.Dataset.from_tensors((X, Y))
    compiled().fit(dataset, callbacks=[guarded], shuffle=False, verbose=0)
    assert guarded.seen[1] in (None, 12)


def test_what_is_still_open_ends_at_the_interpreters_exit():
    program = (
        "from tfx_tips.callbacks.run_guard import RunGuard\n"
        "RunGuard(object(), lambda broken: print('ended', broken))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "ended True\n"


def test_looks_beside_a_busy_thread_see_it_run_until_it_ends():
    looks = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.run = FitRun(self.model)
            self.done = threading.Event()
            threading.Thread(target=self.look, daemon=True).start()

        def look(self):
            while self.run.is_running():
                looks.append(True)
            self.done.set()

    look = Look()
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((64, 2), "float32"), np.ones((64, 1), "float32")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        model.fit(x, y, batch_size=1, verbose=0, callbacks=[look])
    finally:
        sys.setswitchinterval(interval)
    assert look.done.wait(timeout=60)
    assert len(looks) > 10
