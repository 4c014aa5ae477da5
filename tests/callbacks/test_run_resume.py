"""Going on with a run: bit for bit what it would have been without the break."""

import contextlib
import json
import logging
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from tfx_tips.callbacks import (
    BestNCheckpoint,
    StepEvaluation,
    best_checkpoint,
    list_checkpoints,
    restore_best,
    resume,
    resume_fit,
)
from tfx_tips.data import from_step

TRAINING = Path(__file__).with_name("resumable_training.py")
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
STEPS_PER_EPOCH = 6


class BrokenOffError(Exception):
    pass


class BreakOff(keras.callbacks.Callback):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch, logs=None):
        self.batches -= 1
        if self.batches == 0:
            raise BrokenOffError


def make_batch(step):
    rows = np.random.default_rng([1, step]).integers(len(X), size=8)
    return X[rows], Y[rows]


def make_model(steps_per_execution=1, optimizer=None, units=1, **settings):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(units)]
    )
    model.compile(
        optimizer or keras.optimizers.Adam(0.01),
        "mse",
        steps_per_execution=steps_per_execution,
        **settings,
    )
    return model


def train(directory, *, break_after=None, epochs=3, every=4, model=None, callbacks=(), **settings):
    """Starts or resumes the run; returns its model, evaluations by step, and history."""
    model = model or make_model()
    evaluation = StepEvaluation((X, Y), every_steps=every)
    checkpoints = BestNCheckpoint(
        directory, evaluation=evaluation, **{"every_steps": 1, "keep": 1, **settings}
    )
    history = resume_fit(
        model,
        lambda step: from_step(make_batch, step),
        directory,
        epochs=epochs,
        steps_per_epoch=STEPS_PER_EPOCH,
        callbacks=[
            evaluation,
            checkpoints,
            *([BreakOff(break_after)] if break_after else ()),
            *callbacks,
        ],
        verbose=0,
    )
    return model, {r.step: r.metrics for r in evaluation.history}, history


def state(model):
    variables = (*model.variables, *model.optimizer.variables)
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def assert_equal(values, expected):
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that was never broken off."""
    model, evaluations, history = train(tmp_path_factory.mktemp("whole"))
    return state(model), evaluations, history


class TestResumeFit:
    def test_without_a_break_it_is_plain_fit(self, whole):
        model = make_model()
        evaluation = StepEvaluation((X, Y), every_steps=4)
        history = model.fit(
            from_step(make_batch, 0),
            epochs=3,
            steps_per_epoch=STEPS_PER_EPOCH,
            callbacks=[evaluation],
            shuffle=False,
            verbose=0,
        )
        assert_equal(state(model), whole[0])
        assert {r.step: r.metrics for r in evaluation.history} == whole[1]
        assert list(whole[1]) == [4, 8, 12, 16, 18]
        assert (whole[2].epoch, whole[2].history) == (history.epoch, history.history)

    # All around the ends of epochs, the first step and the last.
    @pytest.mark.parametrize("batches", [1, 5, 6, 7, 11, 12, 13, 17, 18])
    def test_goes_on_bit_for_bit_wherever_it_was_broken_off(self, tmp_path, whole, batches):
        with pytest.raises(BrokenOffError):
            train(tmp_path, break_after=batches)
        model, evaluations, _ = train(tmp_path)
        assert_equal(state(model), whole[0])
        assert evaluations
        assert evaluations.items() <= whole[1].items()
        assert max(evaluations) == 18

    def test_goes_on_after_several_breaks_from_checkpoints_that_are_further_apart(
        self, tmp_path, whole
    ):
        for _ in range(3):
            with pytest.raises(BrokenOffError):
                train(tmp_path, break_after=5, every_steps=4)
        model, evaluations, _ = train(tmp_path, every_steps=4)
        assert_equal(state(model), whole[0])
        assert evaluations.items() <= whole[1].items()

    def test_several_steps_in_one_execution(self, tmp_path):
        def model():
            return make_model(steps_per_execution=3)

        expected, _, _ = train(tmp_path / "whole", model=model())
        with pytest.raises(BrokenOffError):
            train(tmp_path / "broken", model=model(), break_after=4)
        assert resume(model(), tmp_path / "broken").step == 9
        resumed, _, _ = train(tmp_path / "broken", model=model())
        assert_equal(state(resumed), state(expected))

    def test_gradients_accumulated_across_the_end_of_an_epoch(self, tmp_path):
        """Epochs of 6 batches and 4 batches a step: an epoch ends in the middle of a step."""

        def model():
            return make_model(optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=4))

        expected, evaluations, _ = train(tmp_path / "whole", model=model(), epochs=4, every=1)
        assert list(evaluations) == [1, 2, 3, 4, 5, 6]
        for broken, batches in (("a", 9), ("b", 14)):
            with pytest.raises(BrokenOffError):
                train(tmp_path / broken, model=model(), epochs=4, every=1, break_after=batches)
            resumed, found, _ = train(tmp_path / broken, model=model(), epochs=4, every=1)
            assert_equal(state(resumed), state(expected))
            assert found
            assert found.items() <= evaluations.items()

    def test_a_complete_run_trains_no_further(self, tmp_path, whole):
        train(tmp_path)
        model, evaluations, history = train(tmp_path)
        assert_equal(state(model), whole[0])
        assert (evaluations, history.epoch, history.history) == ({}, [], {})

    def test_a_longer_run_continues_a_complete_one(self, tmp_path):
        expected, _, _ = train(tmp_path / "whole", epochs=4)
        train(tmp_path / "shorter", epochs=3)
        resumed, _, history = train(tmp_path / "shorter", epochs=4)
        assert_equal(state(resumed), state(expected))
        assert history.epoch == [3]

    def test_history_holds_epochs_without_an_evaluation_too(self, tmp_path):
        """As in Keras' own, such an epoch adds nothing to that list."""
        with pytest.raises(BrokenOffError):
            train(tmp_path, every=13, break_after=8)
        _, evaluations, history = train(tmp_path, every=13)
        assert list(evaluations) == [13, 18]
        assert history.epoch == [1, 2]
        assert len(history.history["loss"]) == 2
        assert history.history["val_loss"] == [evaluations[18]["val_loss"]]

    def test_the_budget_is_that_of_the_whole_run(self, tmp_path):
        with pytest.raises(BrokenOffError):
            train(tmp_path, break_after=8)
        train(tmp_path)
        (*_, last) = list_checkpoints(tmp_path)
        assert (last.step, last.total_steps, last.share_of_budget) == (18, 18, 1.0)
        assert (last.epoch, last.batch) == (3, 0)

    def test_a_stop_in_the_broken_epoch_holds(self, tmp_path):
        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = True

        with pytest.raises(BrokenOffError):
            train(tmp_path, break_after=8)
        _, _, history = train(tmp_path, callbacks=[Stop()])
        assert history.epoch == [1]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"epochs": 0}, "`epochs` must be .* Received: epochs=0"),
            ({"steps_per_epoch": 2.5}, "`steps_per_epoch` must be .* Received: steps_per_epoch"),
            ({"steps_per_epoch": 7}, "multiple of .*steps_per_epoch=7, steps_per_execution=2"),
        ],
    )
    def test_refuses_numbers_that_are_not_valid(self, tmp_path, arguments, message):
        model = make_model(steps_per_execution=2)
        with pytest.raises(ValueError, match=message):
            resume_fit(model, None, tmp_path, **{"epochs": 1, "steps_per_epoch": 4, **arguments})

    def test_refuses_a_break_that_falls_into_an_execution(self, tmp_path):
        with pytest.raises(BrokenOffError):
            train(tmp_path, break_after=4)
        with pytest.raises(ValueError, match=r"after batch 3 .*steps_per_execution=2"):
            train(tmp_path, model=make_model(steps_per_execution=2))


class TestResume:
    def test_a_directory_without_checkpoints_leaves_the_model_as_it_is(self, tmp_path):
        model = make_model()
        before = state(model)
        point = resume(model, tmp_path / "none")
        assert (point.step, point.epoch, point.batch, point.record) == (0, 0, 0, None)
        assert_equal(state(model), before)

    def test_restores_generators_and_tells_the_place(self, tmp_path):
        with pytest.raises(BrokenOffError):
            train(tmp_path, break_after=9)
        model = make_model()
        point = resume(model, tmp_path)
        assert (point.step, point.epoch, point.batch) == (8, 1, 2)
        assert point.record.step == 8
        # Eight steps have drawn eight times from Dropout's generator, beside the build.
        (generator,) = [v for v in model.variables if "seed" in v.path]
        record = json.loads((tmp_path / "step-00000008.json").read_text())
        assert record["random_generators"][0]["value"] == generator.numpy().tolist()
        assert generator.numpy()[1] >= 8

    def test_the_newest_counts_not_the_best(self, tmp_path):
        train(tmp_path)
        newest = list_checkpoints(tmp_path)[-1]
        assert resume(make_model(), tmp_path).record == newest
        assert newest.step == 18

    def test_a_damaged_latest_gives_way_to_the_one_before(self, tmp_path, caplog):
        train(tmp_path, keep_latest=2)
        records = list_checkpoints(tmp_path)
        path = Path(records[-1].path)
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert resume(make_model(), tmp_path).step == records[-2].step
        (line,) = caplog.records
        assert path.name in line.getMessage()

    def test_weights_alone_are_refused_and_the_model_stays(self, tmp_path):
        model = make_model()
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss", save_weights_only=True)
        model.fit(X, Y, callbacks=[checkpoints], verbose=0)
        fresh = make_model()
        before = fresh.get_weights()
        with pytest.raises(ValueError, match="saved without it; load the weights alone with"):
            resume(fresh, tmp_path)
        assert_equal(fresh.get_weights(), before)
        restore_best(fresh, tmp_path)
        assert_equal(fresh.get_weights(), model.get_weights())

    def test_another_architecture_is_refused_and_stays(self, tmp_path):
        train(tmp_path, epochs=1)
        other = make_model(units=2)
        before = other.get_weights()
        with pytest.raises(ValueError, match="must have the architecture"):
            resume(other, tmp_path)
        assert_equal(other.get_weights(), before)

    def test_a_model_that_keras_cannot_save_resumes_too(self, tmp_path):
        class Subclass(keras.Model):
            def __init__(self, hidden):
                super().__init__()
                self.hidden, self.drop, self.head = hidden, layers.Dropout(0.5), layers.Dense(1)

            def call(self, inputs, training=False):
                return self.head(self.drop(self.hidden(inputs), training=training))

        def model():
            keras.utils.set_random_seed(3)
            model = Subclass(layers.Dense(4))
            model.compile("adam", "mse")
            model(X[:1])
            return model

        expected, _, _ = train(tmp_path / "whole", model=model(), every_steps=3)
        with pytest.raises(BrokenOffError):
            train(tmp_path / "broken", model=model(), every_steps=3, break_after=8)
        resumed, _, _ = train(tmp_path / "broken", model=model(), every_steps=3)
        assert_equal(state(resumed), state(expected))


def start(directory, *options):
    directory.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, TRAINING, directory, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def assert_all_readable(directory):
    """Whatever selection returns can be loaded, all of it."""
    for record in list_checkpoints(directory):
        loaded = keras.models.load_model(record.path)
        assert int(loaded.optimizer.iterations) == record.step
    if any("val_loss" in record.metrics for record in list_checkpoints(directory)):
        assert best_checkpoint(directory, monitor="val_loss").path


def assert_same_result(directory, expected):
    with np.load(directory / "result.npz") as found, np.load(expected / "result.npz") as wanted:
        assert set(found) == set(wanted)
        for name in set(wanted) - {"steps", "metrics"}:
            np.testing.assert_array_equal(found[name], wanted[name])
        evaluations = dict(zip(wanted["steps"].tolist(), wanted["metrics"].tolist(), strict=True))
        again = dict(zip(found["steps"].tolist(), found["metrics"].tolist(), strict=True))
        assert again
        assert again.items() <= evaluations.items()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    finish(start(directory))
    return directory


@pytest.mark.multi_process
class TestKilledTrainings:
    def test_five_killed_at_random_moments_end_as_if_nothing_had_happened(
        self, tmp_path, uninterrupted
    ):
        draw = random.Random(6)
        moments = [(draw.randint(1, 28), draw.uniform(0.0, 0.05)) for _ in range(5)]

        def kill_and_resume(number):
            directory = tmp_path / str(number)
            steps, later_s = moments[number]
            process = start(directory, "--delay-s", 0.02)
            for _ in range(steps):
                assert process.stdout.readline() == "step\n"
            # Somewhere between this step's hooks, the next one and the writing.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=later_s)
            process.kill()
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            assert_all_readable(directory / "ckpt")
            finish(start(directory))
            assert_same_result(directory, uninterrupted)
            assert not list((directory / "ckpt").glob(".unfinished-*"))

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(kill_and_resume, range(5)))

    def test_sigterm_saves_the_very_step_and_the_run_goes_on_from_it(self, tmp_path, uninterrupted):
        process = start(tmp_path, "--delay-s", 0.05)
        steps = 0
        while steps < 13:
            steps += process.stdout.readline() == "step\n"
        process.terminate()
        rest, errors = process.communicate(timeout=120)
        assert process.returncode == 143, errors
        steps += rest.count("step\n")
        assert list_checkpoints(tmp_path / "ckpt")[-1].step == steps
        finish(start(tmp_path))
        assert_same_result(tmp_path, uninterrupted)

    def test_two_replicas_resume_bit_for_bit(self, tmp_path):
        finish(start(tmp_path / "whole", "--replicas", 2))
        process = start(tmp_path / "killed", "--replicas", 2, "--delay-s", 0.02)
        for _ in range(14):
            process.stdout.readline()
        process.kill()
        process.communicate()
        assert 0 < list_checkpoints(tmp_path / "killed" / "ckpt")[-1].step <= 15
        finish(start(tmp_path / "killed", "--replicas", 2))
        assert_same_result(tmp_path / "killed", tmp_path / "whole")
