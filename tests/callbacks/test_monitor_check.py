"""What is refused before the first step, in a directory that holds good checkpoints already."""

import keras
import numpy as np
import pytest
from keras import layers

from tfx_tips.callbacks import BestNCheckpoint, StepEvaluation, list_checkpoints

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
LABELS = np.eye(3, dtype="float32")[np.arange(16) % 3]
VAL = (X, LABELS)


def f1(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def make_model(kind=keras.Model, **settings):
    inputs = layers.Input((4,))
    model = kind(inputs, layers.Dense(3, "softmax")(inputs))
    model.compile("sgd", "categorical_crossentropy", **settings)
    return model


class OwnStep(keras.Model):
    """Logs what no configuration names."""

    def train_step(self, data):
        return {**super().train_step(data), "score": 0.5, "vector": [0.1, 0.2]}


class Recorder(keras.callbacks.Callback):
    """A callback of the user's own, which may log anything."""


@pytest.fixture
def directory(tmp_path):
    """One that holds good checkpoints, which no refused run may touch."""
    model = make_model()
    model.fit(X, LABELS, callbacks=[BestNCheckpoint(tmp_path, monitor="loss")], verbose=0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before
    yield tmp_path
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def fit(model, directory, *, evaluation=None, callbacks=(), arguments=None, **settings):
    checkpoints = BestNCheckpoint(directory, keep=1, evaluation=evaluation, **settings)
    first = [] if evaluation is None else [evaluation]
    model.fit(
        X,
        LABELS,
        verbose=0,
        callbacks=[*first, *callbacks, checkpoints],
        **(arguments or {}),
    )


class TestRefusedBeforeTheFirstStep:
    @pytest.mark.parametrize("evaluated", ["by steps", "by fit"])
    @pytest.mark.parametrize(
        ("metric", "monitor", "message"),
        [
            (lambda: f1, "val_f1", "`mode='auto'` cannot tell .*'val_f1', mode='auto'"),
            (lambda: keras.metrics.F1Score(name="f"), "val_f", "must be a single number"),
            (lambda: "accuracy", "val_acuracy", "must be a metric .*monitor='val_acuracy'"),
        ],
    )
    def test_what_the_metrics_tell(self, directory, evaluated, metric, monitor, message):
        model = make_model(metrics=[metric()])
        evaluation, arguments = None, {"validation_data": VAL}
        if evaluated == "by steps":
            evaluation, arguments = StepEvaluation(VAL, every_steps=1), None
        with pytest.raises(ValueError, match=message):
            fit(model, directory, evaluation=evaluation, monitor=monitor, arguments=arguments)
        assert int(model.optimizer.iterations) == 0

    def test_validation_metrics_where_fit_has_no_validation_data(self, directory):
        model = make_model()
        with pytest.raises(ValueError, match=r"without validation data\. Pass `validation_data`"):
            fit(model, directory)
        assert int(model.optimizer.iterations) == 0

    def test_an_evaluation_that_takes_no_part(self, directory):
        model = make_model()
        checkpoints = BestNCheckpoint(directory, evaluation=StepEvaluation(VAL, every_steps=1))
        with pytest.raises(ValueError, match="must itself be among the callbacks"):
            model.fit(X, LABELS, verbose=0, callbacks=[checkpoints])
        assert int(model.optimizer.iterations) == 0


class TestRefusedAtTheFirstValue:
    @pytest.mark.parametrize("every_steps", [None, 1])
    @pytest.mark.parametrize(
        ("monitor", "message"),
        [
            ("scores", "is not logged; logged are: .*score.* Nothing was saved or removed"),
            ("vector", "which is not a single number"),
        ],
    )
    def test_what_a_train_step_of_its_own_does_not_log(
        self, directory, monitor, message, every_steps
    ):
        model = make_model(OwnStep, run_eagerly=True)
        with pytest.raises(ValueError, match=message):
            fit(model, directory, monitor=monitor, mode="max", every_steps=every_steps)

    def test_what_a_users_callback_does_not_log(self, directory):
        with pytest.raises(ValueError, match="Nothing was saved or removed"):
            fit(make_model(), directory, monitor="score", mode="max", callbacks=[Recorder()])


class TestAccepted:
    @pytest.mark.parametrize("evaluated", ["by steps", "by fit"])
    def test_a_built_in_metric_tells_its_direction(self, tmp_path, evaluated):
        model = make_model(metrics=[keras.metrics.AUC(name="auc")])
        evaluation, arguments = None, {"validation_data": VAL}
        if evaluated == "by steps":
            evaluation, arguments = StepEvaluation(VAL, every_steps=1), None
        fit(model, tmp_path, evaluation=evaluation, monitor="val_auc", arguments=arguments)
        assert list_checkpoints(tmp_path)[0].mode == "max"

    def test_a_given_mode_is_taken_for_any_metric(self, tmp_path):
        fit(
            make_model(metrics=[f1]),
            tmp_path,
            monitor="val_f1",
            mode="min",
            arguments={"validation_data": VAL},
        )
        assert list_checkpoints(tmp_path)[0].mode == "min"

    def test_what_a_train_step_of_its_own_logs(self, tmp_path):
        model = make_model(OwnStep, run_eagerly=True)
        fit(model, tmp_path, monitor="score", mode="max")
        assert list_checkpoints(tmp_path)[0].metrics["score"] == 0.5

    def test_a_direction_that_only_a_value_could_tell_must_be_given(self, tmp_path):
        model = make_model(OwnStep, run_eagerly=True)
        with pytest.raises(ValueError, match="cannot tell whether"):
            fit(model, tmp_path, monitor="score")
        assert int(model.optimizer.iterations) == 0
