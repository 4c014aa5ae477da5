import csv

import keras
import numpy as np
import pytest

from tfx_tips.callbacks import (
    BestNCheckpoint,
    ExperimentTracker,
    StepEvaluation,
    best_checkpoint,
    recommended,
)


@pytest.fixture
def data(rng):
    x = rng.normal(size=(24, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_order_lets_each_callback_see_what_it_needs(tmp_path, data):
    callbacks = recommended(tmp_path / "run", data, every_steps=2)
    assert [type(c) for c in callbacks] == [StepEvaluation, BestNCheckpoint, ExperimentTracker]


def test_one_line_gives_curves_checkpoints_and_a_row(tmp_path, data, model):
    run = tmp_path / "digits"
    callbacks = recommended(run, data, every_steps=2, monitor="val_mae", parameters={"rate": 0.01})
    history = model.fit(*data, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    assert [r.step for r in callbacks[0].history] == [2, 4, 6, 8, 10, 12]
    best = best_checkpoint(run / "checkpoints")
    values = {r.step: r.metrics["val_mae"] for r in callbacks[0].history}
    assert best.step == min(values, key=values.get)
    assert history.history["val_mae"][-1] == values[12]
    with (run / "experiments" / "trials.csv").open(newline="", encoding="utf-8-sig") as file:
        (row,) = csv.DictReader(file)
    assert row["study"] == "digits"
    assert row["parameter/rate"] == "0.01"
    assert float(row["best_value"]) == min(values.values())
    assert list(run.glob("events.out.tfevents.*"))


def test_early_stopping_behind_them_sees_the_evaluations(tmp_path, data, model):
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=np.inf)
    model.fit(
        *data,
        batch_size=4,
        epochs=5,
        verbose=0,
        callbacks=[*recommended(tmp_path, data, every_steps=6), stop],
    )
    assert stop.stopped_epoch > 0
