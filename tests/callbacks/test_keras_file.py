"""Reading which variables stand in a file that Keras has saved."""

import zipfile

import keras
import pytest

from tfx_tips.callbacks.keras_file import stored_shapes


def model(optimizer):
    layers = [keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    made = keras.Sequential([*layers, keras.layers.Dense(1)])
    if optimizer is not None:
        made.compile(optimizer, "mse")
        made.optimizer.build(made.trainable_variables)
    return made


def save(one, path):
    (one.save if path.suffix == ".keras" else one.save_weights)(path)
    return path


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
@pytest.mark.parametrize("optimizer", [None, "sgd", "adam"])
def test_counts_and_shapes_are_those_of_the_model(tmp_path, name, optimizer):
    saved = model(optimizer)
    stored = stored_shapes(save(saved, tmp_path / name))
    assert sorted(stored.model.values()) == sorted(tuple(w.shape) for w in saved.weights)
    expected = [] if optimizer is None else [tuple(v.shape) for v in saved.optimizer.variables]
    assert sorted(stored.optimizer.values()) == sorted(expected)


def test_an_optimizer_inside_another_is_not_counted_twice(tmp_path):
    saved = model(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam()))
    stored = stored_shapes(save(saved, tmp_path / "a.keras"))
    assert len(stored.optimizer) == len(saved.optimizer.variables)
    assert len(stored.model) == len(saved.weights)


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
def test_a_file_that_was_cut_is_an_error(tmp_path, name):
    path = save(model(None), tmp_path / name)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises((OSError, zipfile.BadZipFile)):
        stored_shapes(path)
