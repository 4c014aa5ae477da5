"""Evaluating a stored checkpoint and recording the values with it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips._core.errors import DamagedCheckpointError
from tfx_tips.callbacks import best_checkpoint
from tfx_tips.callbacks.checkpoint_evaluation import evaluate_checkpoint
from tfx_tips.callbacks.checkpoint_store import CheckpointStore

ROWS = 37


def model(compiled=True):
    made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    if compiled:
        made.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc"), spread])
    return made


@keras.saving.register_keras_serializable(package="test_checkpoint_evaluation")
def spread(y_true, y_pred):
    return keras.ops.abs(y_pred)


@pytest.fixture
def data(rng):
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


@pytest.fixture
def trained():
    one = model()
    one.layers[0].kernel.assign(np.full((4, 1), 0.1))
    return one


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "ckpt")


def add(store, one, *, suffix=".keras"):
    return store.add(
        one.save if suffix == ".keras" else one.save_weights,
        suffix=suffix,
        step=5,
        epoch=0,
        batch=5,
        metrics={"val_loss": 0.5},
        monitor="val_loss",
        mode="min",
    )


def expected(data):
    """Loss and mean absolute error in float64, by hand."""
    x, y = (array.astype("float64") for array in data)
    error = (x * 0.1).sum(axis=1, keepdims=True) - y
    return {"full_loss": (error**2).mean(), "full_mae": np.abs(error).mean()}


def batched(data):
    return tf.data.Dataset.from_tensor_slices(data).batch(8)


class Batches(keras.utils.PyDataset):
    def __init__(self, data):
        super().__init__()
        self.data = data

    def __len__(self):
        return -(-ROWS // 8)

    def __getitem__(self, index):
        return tuple(array[index * 8 : index * 8 + 8] for array in self.data)


@pytest.mark.parametrize("form", [tuple, list, batched, Batches])
def test_records_exact_values_over_the_full_set(store, trained, data, form):
    record = add(store, trained)
    values = evaluate_checkpoint(store, record, lambda: form(data))
    assert set(values) == {"full_loss", "full_mae", "full_auc", "full_spread"}
    for name, value in expected(data).items():
        assert values[name] == pytest.approx(value, rel=1e-5)
    (annotated,) = store.records()
    assert annotated.metrics == {"val_loss": 0.5, **values}


def test_what_was_recorded_can_choose_afterwards(store, trained, data, tmp_path):
    record = add(store, trained)
    evaluate_checkpoint(store, record, lambda: data, name="test")
    assert best_checkpoint(tmp_path / "ckpt", monitor="test_loss").step == 5
    (annotated,) = store.records()
    assert annotated.directions == {"test_loss": "min", "test_mae": "min", "test_auc": "max"}
    with pytest.raises(ValueError, match="monitor='test_spread', mode='auto'"):
        best_checkpoint(tmp_path / "ckpt", monitor="test_spread")


def test_sample_weights_and_the_batch_size_of_arrays_count(store, trained, data):
    record = add(store, trained)
    x, y = data
    weights = np.zeros(ROWS, "float32")
    weights[3] = 2.0
    values = evaluate_checkpoint(store, record, lambda: (x, y, weights), batch_size=ROWS)
    one = 2 * (x[3].sum() * 0.1 - y[3, 0]) ** 2
    assert values["full_loss"] == pytest.approx(one / ROWS, rel=1e-4)


def test_a_batch_size_for_batched_data_is_refused(store, trained, data):
    record = add(store, trained)
    with pytest.raises(ValueError, match="`batch_size` can be chosen for arrays only"):
        evaluate_checkpoint(store, record, lambda: batched(data), batch_size=4)


def test_weights_alone_are_loaded_into_a_given_model(store, trained, data):
    record = add(store, trained, suffix=".weights.h5")
    values = evaluate_checkpoint(store, record, lambda: (model(), data))
    assert values["full_loss"] == pytest.approx(expected(data)["full_loss"], rel=1e-5)


def test_weights_alone_without_a_model_say_what_to_return(store, trained, data):
    record = add(store, trained, suffix=".weights.h5")
    with pytest.raises(ValueError, match=r"holds weights only.*return `\(model, data\)`"):
        evaluate_checkpoint(store, record, lambda: data)


@pytest.mark.parametrize("given", [True, False])
def test_a_model_that_is_not_compiled_says_what_to_return(store, data, given):
    plain = model(compiled=False)
    record = add(store, plain)
    with pytest.raises(ValueError, match=r"must be compiled.*return `\(model, data\)`"):
        evaluate_checkpoint(store, record, lambda: (plain, data) if given else data)


def test_a_damaged_file_is_not_loaded(store, trained, data, tmp_path):
    record = add(store, trained)
    path = tmp_path / "ckpt" / "step-00000005.keras"
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    with pytest.raises(DamagedCheckpointError):
        evaluate_checkpoint(store, record, lambda: data)
