"""Keeping the N best in real trainings; the oracles are the disk and runs without the callback."""

import errno
import json
import logging
import math
import os
import random
import signal
import sys
import threading
import uuid
from pathlib import Path

import fsspec
import keras
import numpy as np
import pytest
from keras import layers

from tfx_tips._core.errors import NotEnoughSpaceError
from tfx_tips.callbacks import (
    BestNCheckpoint,
    StepEvaluation,
    best_checkpoint,
    list_checkpoints,
    restore_best,
    resume,
)

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(48, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True) + DRAW.normal(size=(48, 1)).astype("float32")
VAL = X[::2] + 1, Y[::2]


def make_model(steps_per_execution=1, rate=0.2, **settings):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([layers.Input((4,)), layers.Dropout(rate), layers.Dense(1)])
    model.compile("adam", "mse", **{"steps_per_execution": steps_per_execution, **settings})
    return model


def fit(model, callbacks, **settings):
    """Twelve batches an epoch."""
    return model.fit(
        X, Y, **{"batch_size": 4, "epochs": 2, "verbose": 0, "callbacks": callbacks, **settings}
    )


def state(model):
    variables = (*model.variables, *model.optimizer.variables)
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def assert_equal(values, expected):
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def manifests(directory):
    """The manifests by plain json; the directory must hold nothing besides them and their data."""
    files = {path.name for path in Path(directory).glob("*")}
    found = [json.loads((Path(directory) / n).read_text()) for n in files if n.endswith(".json")]
    assert files == {
        name
        for values in found
        for name in (values["file"], values["file"].split(".")[0] + ".json")
    }
    return sorted(found, key=lambda values: values["sequence"])


def steps(directory):
    return [values["step"] for values in manifests(directory)]


class Fake(keras.callbacks.Callback):
    """Puts values of its own into the epochs' logs."""

    def __init__(self, name, values):
        super().__init__()
        self.name, self.values, self.position = name, values, 0

    def on_epoch_end(self, epoch, logs=None):
        value = self.values[self.position]
        self.position += 1
        if value is not None:
            logs[self.name] = value


class At(keras.callbacks.Callback):
    """Calls a function once, when so many batches have ended."""

    def __init__(self, batches, action):
        super().__init__()
        self.batches, self.action = batches, action

    def on_train_batch_end(self, batch, logs=None):
        self.batches -= 1
        if self.batches == 0:
            self.action()


class BrokenOffError(Exception):
    pass


def break_off():
    raise BrokenOffError


class TestEvaluations:
    @pytest.mark.parametrize("steps_per_execution", [1, 4])
    @pytest.mark.parametrize("background", [True, False])
    def test_files_hold_the_weights_that_were_evaluated(
        self, tmp_path, steps_per_execution, background
    ):
        model = make_model(steps_per_execution)
        evaluation = StepEvaluation(VAL, every_steps=4)
        seen = {}
        evaluation.subscribe(lambda record: seen.update({record.step: model.get_weights()}))
        checkpoints = BestNCheckpoint(
            tmp_path, evaluation=evaluation, keep=3, background=background, seed=3
        )
        fit(model, [evaluation, checkpoints])

        losses = {record.step: record.metrics["val_loss"] for record in evaluation.history}
        assert list(losses) == [4, 8, 12, 16, 20, 24]
        best = sorted(losses, key=losses.get)[:3]
        kept = manifests(tmp_path)
        assert {values["step"] for values in kept} == {*best, 24}
        for values in kept:
            loaded = keras.models.load_model(tmp_path / values["file"])
            assert_equal(loaded.get_weights(), seen[values["step"]])
            loss = loaded.evaluate(*VAL, verbose=0)
            assert values["metrics"]["val_loss"] == losses[values["step"]]
            assert values["metrics"]["val_loss"] == pytest.approx(loss, rel=1e-6)
            assert int(loaded.optimizer.iterations) == values["step"]
            assert values["seed"] == 3
            assert values["total_steps"] == 24
            assert [values["epoch"], values["batch"]] == list(divmod(values["step"], 12))
        assert checkpoints.best.step == best[0]
        assert restore_best(model, tmp_path).step == best[0]
        assert_equal(model.get_weights(), seen[best[0]])

    def test_a_run_is_bit_identical_to_one_without(self, tmp_path):
        def run(callbacks):
            random.seed(5)
            np.random.seed(5)
            model = make_model()
            evaluation = StepEvaluation(VAL, every_steps=5, at_start=True)
            history = fit(model, [evaluation, *callbacks(evaluation)])
            draws = random.random(), np.random.random()
            metrics = [record.metrics for record in evaluation.history]
            return state(model), draws, history.history, metrics

        expected = run(lambda evaluation: [])
        found = run(
            lambda evaluation: [
                BestNCheckpoint(tmp_path, evaluation=evaluation, every_steps=3, keep=2)
            ]
        )
        assert_equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert manifests(tmp_path)

    def test_every_steps_times_the_latest_alone(self, tmp_path):
        class Written(keras.callbacks.Callback):
            def __init__(self):
                super().__init__()
                self.seen = []

            def on_train_batch_end(self, batch, logs=None):
                self.seen += [step for step in steps(tmp_path) if step not in self.seen]

            def on_epoch_end(self, epoch, logs=None):
                self.on_train_batch_end(None)

        evaluation = StepEvaluation(VAL, every_steps=12)
        checkpoints = BestNCheckpoint(
            tmp_path, evaluation=evaluation, every_steps=5, keep=1, background=False
        )
        written = Written()
        fit(make_model(), [evaluation, checkpoints, written])
        assert written.seen == [5, 10, 12, 15, 20, 24]
        assert [v["step"] for v in manifests(tmp_path) if not v["metrics"]] == []
        assert steps(tmp_path) == [24]  # the best and the latest

    def test_what_is_not_best_is_not_saved_when_every_steps_times_the_latest(self, tmp_path):
        evaluation = StepEvaluation(VAL, every_steps=2, at_end=False)
        rising = make_model(rate=0.0)
        rising.optimizer.learning_rate = -0.01  # away from the best
        checkpoints = BestNCheckpoint(tmp_path, evaluation=evaluation, every_steps=[7], keep=1)
        fit(rising, [evaluation, checkpoints], epochs=1)
        assert steps(tmp_path) == [2, 7]

    def test_one_step_is_stored_once_where_it_is_due_twice(self, tmp_path):
        evaluation = StepEvaluation(VAL, every_steps=6)
        checkpoints = BestNCheckpoint(
            tmp_path, evaluation=evaluation, every_steps=6, keep=9, keep_latest=9
        )
        fit(make_model(), [evaluation, checkpoints])
        assert steps(tmp_path) == [6, 12, 18, 24]

    def test_the_evaluation_before_the_first_step_counts(self, tmp_path, caplog):
        evaluation = StepEvaluation(VAL, every_steps=100, at_start=True, at_end=False)
        fit(make_model(), [evaluation, BestNCheckpoint(tmp_path, evaluation=evaluation)])
        (values,) = manifests(tmp_path)
        assert (values["step"], values["epoch"], values["batch"]) == (0, 0, 0)
        fresh = make_model()
        loaded = keras.models.load_model(tmp_path / values["file"])
        assert_equal(loaded.get_weights(), fresh.get_weights())
        assert resume(fresh, tmp_path).step == 0
        assert caplog.records == []

    def test_the_final_evaluation_counts_where_training_stops_early(self, tmp_path):
        model = make_model()
        evaluation = StepEvaluation(VAL, every_steps=100)
        stop = At(7, lambda: setattr(model, "stop_training", True))
        fit(model, [evaluation, BestNCheckpoint(tmp_path, evaluation=evaluation), stop])
        (values,) = manifests(tmp_path)
        assert (values["step"], values["epoch"], values["batch"]) == (7, 0, 7)
        assert values["metrics"]["val_loss"] == evaluation.history[-1].metrics["val_loss"]

    def test_an_evaluation_that_stands_later_is_refused(self, tmp_path):
        model = make_model()
        evaluation = StepEvaluation(VAL, every_steps=5)
        with pytest.raises(ValueError, match=r"before the BestNCheckpoint .* List the StepEval"):
            fit(model, [BestNCheckpoint(tmp_path, evaluation=evaluation), evaluation])
        assert int(model.optimizer.iterations) == 0

    def test_an_evaluation_in_a_fit_of_its_own_saves_nothing(self, tmp_path):
        evaluation = StepEvaluation(VAL, every_steps=5)
        checkpoints = BestNCheckpoint(tmp_path, evaluation=evaluation)
        with pytest.raises(BrokenOffError):
            fit(make_model(), [evaluation, checkpoints, At(2, break_off)])
        fit(make_model(), [evaluation])
        assert manifests(tmp_path) == []

    def test_several_sets_and_any_recorded_metric_can_choose(self, tmp_path):
        evaluation = StepEvaluation({"clean": VAL, "noisy": (VAL[0] * 2, VAL[1])}, every_steps=6)
        checkpoints = BestNCheckpoint(tmp_path, monitor="noisy_mae", evaluation=evaluation, keep=9)
        fit(make_model(metrics=["mae"]), [evaluation, checkpoints])
        values = manifests(tmp_path)[0]
        assert set(values["metrics"]) == {
            "clean_loss",
            "clean_mae",
            "noisy_loss",
            "noisy_mae",
        }
        assert set(values["directions"].values()) == {"min"}
        by_clean = {r.step: r.metrics["clean_loss"] for r in evaluation.history}
        chosen = best_checkpoint(tmp_path, monitor="clean_loss")
        assert chosen.step == min(by_clean, key=by_clean.get)

    def test_an_unbuilt_subclass_is_evaluated_and_saved(self, tmp_path):
        class Late(keras.Model):
            def __init__(self):
                super().__init__()
                self.head = layers.Dense(1)

            def call(self, inputs):
                return self.head(inputs)

        model = Late()
        model.compile("adam", "mse")
        evaluation = StepEvaluation(VAL, every_steps=6)
        fit(model, [evaluation, BestNCheckpoint(tmp_path, evaluation=evaluation, keep=9)])
        assert steps(tmp_path) == [6, 12, 18, 24]
        trained = state(model)
        best = restore_best(model, tmp_path)
        losses = {r.step: r.metrics["val_loss"] for r in evaluation.history}
        assert best.step == min(losses, key=losses.get)
        assert best.step == 24
        assert_equal(state(model), trained)


class TestEpochs:
    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_keeps_the_best_of_all_runs_in_the_directory(self, tmp_path, mode):
        values = [0.5, math.nan, 0.5, 0.7, -math.inf, 0.2, 0.9, math.inf, 0.2, 0.4]
        for part in (values[:4], values[4:]):
            checkpoints = BestNCheckpoint(
                tmp_path, monitor="score", mode=mode, keep=2, keep_latest=0
            )
            fit(make_model(), [Fake("score", part), checkpoints], epochs=len(part))
        kept = [values["metrics"]["score"] for values in manifests(tmp_path)]
        assert kept == ([0.2, 0.2] if mode == "min" else [0.7, 0.9])

    def test_a_worse_resumed_run_does_not_replace_the_best(self, tmp_path):
        """Dense(1) with a fixed bias: the loss is (bias - 1)^2, and the file's bias tells whose."""

        def run(bias):
            model = keras.Sequential(
                [
                    layers.Input((4,)),
                    layers.Dense(
                        1,
                        kernel_initializer="zeros",
                        bias_initializer=keras.initializers.Constant(bias),
                    ),
                ]
            )
            model.compile(keras.optimizers.SGD(0.0), "mse")
            checkpoints = BestNCheckpoint(tmp_path, keep=1, keep_latest=0)
            ones = np.ones((8, 1))
            model.fit(
                X[:8], ones, validation_data=(X[:8], ones), callbacks=[checkpoints], verbose=0
            )

        run(0.9)
        run(-3.0)
        (values,) = manifests(tmp_path)
        assert values["metrics"]["val_loss"] == pytest.approx(0.01)
        loaded = keras.models.load_model(tmp_path / values["file"])
        assert loaded.layers[-1].bias.numpy() == np.float32([0.9])

    def test_exactly_the_two_best_of_two_runs_stay(self, tmp_path):
        first, second = [0.5, 0.3, 0.4], [0.6, 0.2, 0.35]
        for part in (first, second):
            fit(
                make_model(),
                [
                    Fake("score", part),
                    BestNCheckpoint(tmp_path, monitor="score", mode="min", keep=2, keep_latest=0),
                ],
                epochs=3,
            )
        assert [v["metrics"]["score"] for v in manifests(tmp_path)] == [0.3, 0.2]

    @pytest.mark.parametrize("keep_latest", [0, 1, 2])
    def test_keeps_the_latest_besides(self, tmp_path, keep_latest):
        values = [0.1, 0.5, 0.4, 0.6]
        checkpoints = BestNCheckpoint(
            tmp_path, monitor="score", mode="min", keep=1, keep_latest=keep_latest
        )
        fit(make_model(), [Fake("score", values), checkpoints], epochs=4)
        assert steps(tmp_path) == [12, *[36, 48][2 - keep_latest :]]

    def test_validation_that_is_not_made_every_epoch(self, tmp_path):
        model = make_model()
        checkpoints = BestNCheckpoint(tmp_path, keep=9)
        history = fit(model, [checkpoints], validation_data=VAL, validation_freq=2, epochs=4)
        found = {v["step"]: v["metrics"]["val_loss"] for v in manifests(tmp_path)}
        assert found == dict(zip((24, 48), history.history["val_loss"], strict=True))

    def test_an_evaluation_earlier_in_the_list_ranks_epochs_that_have_a_value(self, tmp_path):
        """No stale value stands in for an epoch without one."""
        evaluation = StepEvaluation(VAL, every_steps=20, at_end=False)
        checkpoints = BestNCheckpoint(tmp_path, keep=9)
        fit(make_model(), [evaluation, checkpoints], epochs=4)
        # Epochs end at 12, 24, 36, 48; evaluations at 20 and 40. No values in 1 and 3.
        assert steps(tmp_path) == [24, 48]

    def test_training_loss_by_epochs(self, tmp_path):
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss", keep=9)
        history = fit(make_model(), [checkpoints], epochs=3)
        assert [v["metrics"]["loss"] for v in manifests(tmp_path)] == history.history["loss"]
        assert [v["epoch"] for v in manifests(tmp_path)] == [1, 2, 3]


class TestTrainingMetrics:
    @pytest.mark.parametrize(("steps_per_execution", "due"), [(1, [5, 10]), (4, [8, 12])])
    def test_rank_every_so_many_steps(self, tmp_path, steps_per_execution, due):
        seen = {}

        class Logs(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen[int(self.model.optimizer.iterations)] = logs["loss"]

        checkpoints = BestNCheckpoint(tmp_path, monitor="loss", every_steps=5, keep=9)
        fit(make_model(steps_per_execution), [Logs(), checkpoints], epochs=1)
        found = {v["step"]: v["metrics"]["loss"] for v in manifests(tmp_path)}
        assert found == {step: pytest.approx(seen[step], rel=1e-6) for step in due}

    def test_steps_are_counted_over_epochs(self, tmp_path):
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss", every_steps=5, keep=9)
        fit(make_model(), [checkpoints])
        assert steps(tmp_path) == [5, 10, 15, 20]

    def test_what_a_train_step_of_its_own_returns_counts(self, tmp_path):
        """Keras' own loss metric stays at zero there and must not stand in."""

        class Own(keras.Model):
            def train_step(self, data):
                super().train_step(data)
                self.reset_metrics()
                return {"loss": keras.ops.cast(self.optimizer.iterations, "float32")}

        inputs = layers.Input((4,))
        model = Own(inputs, layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss", every_steps=4, keep=9)
        fit(model, [checkpoints], epochs=1)
        assert [v["metrics"]["loss"] for v in manifests(tmp_path)] == [4.0, 8.0, 12.0]


class TestBudget:
    def run(self, tmp_path, **settings):
        arguments = settings.pop("arguments", {})
        model = settings.pop("model", None) or make_model()
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss", keep=9, **arguments)
        fit(model, [checkpoints], **settings)
        return {r.step: (r.total_steps, r.share_of_budget) for r in list_checkpoints(tmp_path)}

    def test_is_what_fit_was_asked_for(self, tmp_path):
        assert self.run(tmp_path, epochs=2) == {12: (24, 0.5), 24: (24, 1.0)}

    def test_a_second_fit_adds_to_it(self, tmp_path):
        model = make_model()
        self.run(tmp_path / "a", model=model, epochs=1)
        assert self.run(tmp_path / "b", model=model, epochs=3)[24] == (48, 0.5)
        assert self.run(tmp_path / "c", model=model, initial_epoch=2, epochs=3) == {60: (60, 1.0)}

    def test_is_what_the_user_says(self, tmp_path):
        found = self.run(tmp_path, epochs=1, arguments={"total_steps": 48})
        assert found == {12: (48, 0.25)}

    # Said by Keras of every generator that ends.
    @pytest.mark.filterwarnings("ignore:Your input ran out of data")
    def test_is_unknown_where_nothing_tells(self, tmp_path):
        model = make_model()
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss")
        batches = ((X[:4], Y[:4]) for _ in range(3))
        model.fit(batches, shuffle=False, callbacks=[checkpoints], verbose=0)
        (record,) = list_checkpoints(tmp_path)
        # Keras makes one batch more of a generator than it holds.
        assert record.step == int(model.optimizer.iterations)
        assert (record.total_steps, record.share_of_budget) == (None, None)


class TestVerbose:
    def test_shows_each_value_and_in_the_end_where_the_best_fell(self, tmp_path, capsys):
        checkpoints = BestNCheckpoint(
            tmp_path, monitor="score", mode="max", keep=1, keep_latest=0, verbose=1
        )
        fit(make_model(), [Fake("score", [0.25, 0.75, 0.5]), checkpoints], epochs=3)
        assert capsys.readouterr().out == (
            "\nStep 12: score 0.25\n"
            "\nStep 24: score 0.75\n"
            "\nStep 36: score 0.5\n"
            "Best score 0.75 at step 24 of 36, at 67% of the budget: "
            f"{tmp_path}/step-00000024.keras\n"
        )

    def test_says_nothing_by_default(self, tmp_path, capsys, caplog):
        with caplog.at_level(logging.INFO):
            fit(make_model(), [BestNCheckpoint(tmp_path, monitor="loss")])
        assert capsys.readouterr().out == ""
        assert caplog.records == []


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_one_instance_serves_several_fits(tmp_path, steps_per_execution):
    evaluation = StepEvaluation(VAL, every_steps=8)
    checkpoints = BestNCheckpoint(tmp_path, evaluation=evaluation, keep=99)
    model = make_model(steps_per_execution)
    fit(model, [evaluation, checkpoints])
    fit(model, [evaluation, checkpoints])
    fit(make_model(steps_per_execution), [evaluation, checkpoints], epochs=1)
    assert steps(tmp_path) == [8, 16, 24, 32, 40, 48, 8, 12]


class TestErrors:
    def test_what_was_submitted_is_on_the_disk_when_fit_raised(self, tmp_path):
        evaluation = StepEvaluation(VAL, every_steps=5)
        checkpoints = BestNCheckpoint(tmp_path / "ckpt", evaluation=evaluation, keep=9)
        with pytest.raises(BrokenOffError):
            fit(make_model(), [evaluation, checkpoints, At(12, break_off)])
        # The next run waits for what the broken one still writes.
        fit(make_model(), [BestNCheckpoint(tmp_path / "other", monitor="loss")], epochs=1)
        assert steps(tmp_path / "ckpt") == [5, 10]

    def test_another_fit_at_once_in_the_same_directory_loses_nothing(self, tmp_path):
        for _ in range(3):
            checkpoints = BestNCheckpoint(tmp_path, monitor="loss", every_steps=6, keep=99)
            with pytest.raises(BrokenOffError):
                fit(make_model(), [checkpoints, At(7, break_off)])
        fit(make_model(), [checkpoints], epochs=1)
        assert steps(tmp_path) == [6, 6, 6, 6, 12]

    @pytest.mark.parametrize("batches", [9, 100])
    def test_a_full_disk_surfaces_at_the_next_hook_or_the_end(self, tmp_path, batches):
        fit(make_model(), [BestNCheckpoint(tmp_path, monitor="loss", keep=9)])
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        class Full(keras.layers.Layer):
            def call(self, inputs):
                return inputs

            def save_own_variables(self, store):
                raise OSError(errno.ENOSPC, "No space left on device")

        model = keras.Sequential([layers.Input((4,)), Full(), layers.Dense(1)])
        model.compile("adam", "mse")
        reached = []

        class Wait(keras.callbacks.Callback):
            """Lets the background come to its end, so that the very next hook must raise."""

            def on_train_batch_end(self, batch, logs=None):
                if batch + 1 == 6 and batches == 9:
                    while [t for t in threading.enumerate() if t.name == "tfx_tips.checkpoints"]:
                        if checkpoints._writer._worker._error is not None:
                            break
                        threading.Event().wait(0.01)
                reached.append(batch)

        checkpoints = BestNCheckpoint(
            tmp_path, monitor="loss", every_steps=[5 if batches == 9 else 12], keep=9
        )
        with pytest.raises(NotEnoughSpaceError, match=r"[\d,]+ bytes are needed, [\d,]+ bytes"):
            fit(model, [checkpoints, Wait()], epochs=1)
        assert len(reached) == (6 if batches == 9 else 12)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_directory_that_became_a_file_surfaces(self, tmp_path):
        directory = tmp_path / "ckpt"
        checkpoints = BestNCheckpoint(directory, monitor="loss", every_steps=5)
        with pytest.raises(OSError, match="ckpt"):
            fit(make_model(), [checkpoints, At(3, lambda: directory.write_text("mine"))])
        assert directory.read_text() == "mine"

    def test_an_error_of_the_background_after_fit_raised_is_logged(self, tmp_path, caplog):
        directory = tmp_path / "ckpt"

        def spoil():
            directory.write_text("mine")

        checkpoints = BestNCheckpoint(directory, monitor="loss", every_steps=[6])
        with pytest.raises(BrokenOffError):
            fit(make_model(), [checkpoints, At(3, spoil), At(7, break_off)])
        fit(make_model(), [BestNCheckpoint(tmp_path / "other", monitor="loss")], epochs=1)
        assert "could not be written after `fit` had failed" in caplog.text


class TestTermination:
    @pytest.fixture(autouse=True)
    def users(self):
        """A handler of the user's own; a signal that reaches it fails the test."""

        def handler(number, frame):
            raise BrokenOffError

        before = signal.signal(signal.SIGTERM, handler)
        yield handler
        assert signal.getsignal(signal.SIGTERM) is handler
        signal.signal(signal.SIGTERM, before)

    @staticmethod
    def terminate():
        signal.raise_signal(signal.SIGTERM)

    def test_saves_at_the_very_step_and_leaves_with_143(self, tmp_path):
        model = make_model()
        evaluation = StepEvaluation(VAL, every_steps=100)
        checkpoints = BestNCheckpoint(tmp_path, evaluation=evaluation)
        with pytest.raises(SystemExit) as exit_:
            fit(model, [evaluation, checkpoints, At(17, self.terminate)])
        assert exit_.value.code == 143
        (values,) = manifests(tmp_path)
        assert (values["step"], values["epoch"], values["batch"]) == (17, 1, 5)
        assert_equal(
            keras.models.load_model(tmp_path / values["file"]).get_weights(), model.get_weights()
        )

    @pytest.mark.parametrize("batch", [12, 24])
    def test_at_the_end_of_an_epoch(self, tmp_path, batch):
        checkpoints = BestNCheckpoint(tmp_path, monitor="loss")
        with pytest.raises(SystemExit) as exit_:
            fit(make_model(), [checkpoints, At(batch, self.terminate)])
        assert exit_.value.code == 143
        assert steps(tmp_path)[-1] == batch

    @pytest.mark.parametrize("background", [True, False])
    def test_saves_although_the_latest_is_not_kept_otherwise(self, tmp_path, background):
        checkpoints = BestNCheckpoint(
            tmp_path, monitor="loss", every_steps=4, keep=1, keep_latest=0, background=background
        )
        with pytest.raises(SystemExit):
            fit(make_model(), [checkpoints, At(10, self.terminate)])
        assert steps(tmp_path)[-1] == 10
        assert len(steps(tmp_path)) == 2

    def test_saves_a_step_whose_evaluation_was_not_worth_a_file(self, tmp_path):
        evaluation = StepEvaluation(VAL, every_steps=1)
        model = make_model()
        # The loss falls, so by this direction each evaluation is worse than the one before.
        checkpoints = BestNCheckpoint(
            tmp_path, mode="max", evaluation=evaluation, keep=1, every_steps=100
        )
        with pytest.raises(SystemExit):
            fit(model, [evaluation, checkpoints, At(3, self.terminate)])
        assert steps(tmp_path) == [1, 3]

    def test_the_old_handler_is_back_after_fit(self, tmp_path):
        fit(make_model(), [BestNCheckpoint(tmp_path, monitor="loss")], epochs=1)

    def test_two_callbacks_put_it_back_too(self, tmp_path):
        callbacks = [BestNCheckpoint(tmp_path / name, monitor="loss") for name in "ab"]
        fit(make_model(), callbacks, epochs=1)

    def test_the_old_handler_gets_the_signal_after_fit_raised(self, tmp_path):
        with pytest.raises(BrokenOffError):
            fit(make_model(), [BestNCheckpoint(tmp_path, monitor="loss"), At(2, break_off)])
        with pytest.raises(BrokenOffError):
            signal.raise_signal(signal.SIGTERM)

    def test_is_not_installed_outside_the_main_thread(self, tmp_path, caplog):
        def work():
            fit(make_model(), [BestNCheckpoint(tmp_path, monitor="loss")], epochs=1)

        with caplog.at_level(logging.INFO, logger="tfx_tips"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        (line,) = caplog.records
        assert "SIGTERM is not handled" in line.getMessage()
        assert steps(tmp_path) == [12]


def test_a_remote_directory_from_end_to_end():
    url = f"memory://{uuid.uuid4().hex}/run"
    evaluation = StepEvaluation(VAL, every_steps=8)
    model = make_model()
    fit(model, [evaluation, BestNCheckpoint(url, evaluation=evaluation, keep=1)])
    losses = {r.step: r.metrics["val_loss"] for r in evaluation.history}
    best = min(losses, key=losses.get)
    files, root = fsspec.core.url_to_fs(url)
    names = {name.rsplit("/", 1)[-1] for name in files.ls(root, detail=False)}
    assert names == {
        f"step-{step:08d}.{suffix}" for step in {best, 24} for suffix in ("keras", "json")
    }
    fresh = make_model()
    assert restore_best(fresh, url).step == best
    loss = fresh.evaluate(*VAL, verbose=0)
    assert loss == pytest.approx(losses[best], rel=1e-6)


class TestHosts:
    def run(self, monkeypatch, directory, index):
        cluster = {"worker": ["localhost:1", "localhost:2"]}
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        evaluation = StepEvaluation(VAL, every_steps=8)
        checkpoints = BestNCheckpoint(
            directory, evaluation=evaluation, every_steps=5, keep=2, verbose=1
        )
        fit(make_model(), [evaluation, checkpoints])

    def test_a_worker_that_is_not_the_chief_writes_nothing(self, tmp_path, monkeypatch):
        self.run(monkeypatch, tmp_path / "ckpt", 1)
        assert list(tmp_path.iterdir()) == []

    def test_the_chief_writes_all(self, tmp_path, monkeypatch):
        self.run(monkeypatch, tmp_path / "ckpt", 0)
        assert len(steps(tmp_path / "ckpt")) >= 2


def test_its_hooks_do_nothing_on_quiet_steps(tmp_path):
    """No frame outside the package and the standard library, no file opened."""
    import tfx_tips

    allowed = (str(Path(tfx_tips.__file__).parent), os.path.dirname(threading.__file__))
    foreign, opened, watching = [], [], [False]

    def audit(event, arguments):
        if watching[0] and event == "open" and threading.current_thread() is main:
            opened.append(arguments[0])

    main = threading.main_thread()
    sys.addaudithook(audit)

    class Watched(BestNCheckpoint):
        def on_train_batch_begin(self, batch, logs=None):
            def profile(frame, event, argument):
                name = frame.f_code.co_filename
                if event == "call" and not name.startswith((*allowed, __file__)):
                    foreign.append(name)

            is_quiet = batch not in (0, 6)
            watching[0] = is_quiet
            sys.setprofile(profile if is_quiet else None)
            try:
                super().on_train_batch_begin(batch, logs)
            finally:
                sys.setprofile(None)
                watching[0] = False

    evaluation = StepEvaluation(VAL, every_steps=6)
    fit(make_model(), [evaluation, Watched(tmp_path, evaluation=evaluation)], epochs=1)
    assert steps(tmp_path) == [6, 12]
    assert foreign == []
    assert opened == []


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"monitor": ""}, r"`monitor` must be .* Received: monitor=''"),
            ({"monitor": 3}, r"`monitor` must be .* Received: monitor=3"),
            ({"mode": "best"}, r"`mode` must be .* Received: mode='best'"),
            ({"keep": 0}, r"`keep` must be .* Received: keep=0"),
            ({"keep": True}, r"`keep` must be .* Received: keep=True"),
            ({"keep_latest": -1}, r"`keep_latest` must be .* Received: keep_latest=-1"),
            ({"total_steps": 0}, r"`total_steps` must be .* Received: total_steps=0"),
            ({"every_steps": 0}, r"`every_steps` must be .* Received: every_steps=0"),
            ({"every_steps": 5}, r"'val_loss' is known at the ends of epochs only.*every_steps=5"),
            ({"evaluation": "val"}, r"`evaluation` must be a StepEvaluation. Received"),
        ],
    )
    def test_that_are_not_valid_are_refused_at_once(self, tmp_path, arguments, message):
        with pytest.raises(ValueError, match=message):
            BestNCheckpoint(tmp_path / "ckpt", **arguments)
        assert list(tmp_path.iterdir()) == []
