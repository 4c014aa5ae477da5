"""Snapshots: consistent while training goes on, and written as Keras itself would save."""

import json
import random
import threading
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfx_tips.callbacks.model_snapshot import (
    SnapshotWriter,
    generator_states,
    restore_generators,
    take_snapshot,
)

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def values(model):
    """All that `load_model` brings back, as NumPy arrays."""
    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in (*model.weights, *optimizer(model))]


def optimizer(model):
    return () if model.optimizer is None else model.optimizer.variables


def assert_equal(values, expected):
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected, strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value, wanted)


def config_of(path):
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["config.json", "metadata.json", "model.weights.h5"]
        # Keras marks objects that several layers share by their addresses in memory.
        return json.loads(
            archive.read("config.json"),
            object_hook=lambda part: {k: v for k, v in part.items() if k != "shared_object_id"},
        )


def sequential():
    return keras.Sequential(
        [layers.Input((4,)), layers.Dense(3, "relu"), layers.Dropout(0.5), layers.Dense(1)]
    )


def two_outputs_with_shared_and_frozen_layers():
    one, two = layers.Input((4,), name="one"), layers.Input((4,), name="two")
    shared = layers.Dense(3, name="shared")
    frozen = layers.Dense(2, name="frozen", trainable=False)
    inner = keras.Sequential([layers.Input((2,)), layers.Dense(2), layers.BatchNormalization()])
    nested = inner(frozen(shared(one)))
    merged = layers.concatenate([nested, shared(two)])
    outputs = {"a": layers.Dense(1, name="a")(merged), "b": layers.Dense(1, name="b")(nested)}
    return keras.Model({"one": one, "two": two}, outputs)


class WithConfig(keras.Model):
    def __init__(self, units, **settings):
        super().__init__(**settings)
        self.units = units
        self.hidden = layers.Dense(units)
        self.head = layers.Dense(1)

    def call(self, inputs):
        return self.head(self.hidden(inputs))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class WithoutConfig(keras.Model):
    def __init__(self, make_layer):
        super().__init__()
        self.head = make_layer()

    def call(self, inputs):
        return self.head(inputs)


def unregistered_metric(y_true, y_pred):
    return keras.ops.abs(y_true - y_pred)


def compiled(model, optimizer="adam", **settings):
    model.compile(optimizer, "mse", **settings)
    return model


def with_policy():
    layer = layers.Dense(3, dtype="mixed_float16")
    model = keras.Sequential([layers.Input((4,)), layer, layers.Dense(1, dtype="float32")])
    return compiled(model, keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))


def with_functional():
    model = two_outputs_with_shared_and_frozen_layers()
    model.compile("adam", loss={"a": "mse", "b": "mae"}, metrics={"a": ["mae"], "b": ["mse"]})
    return model


SCHEDULE = {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5}

MODELS = {
    "Sequential": lambda: compiled(sequential(), metrics=["mae", unregistered_metric]),
    "Functional with several outputs": with_functional,
    "subclass with get_config": lambda: compiled(WithConfig(3)),
    "loss scaling": with_policy,
    "learning rate schedule": lambda: compiled(
        sequential(),
        keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(**SCHEDULE), momentum=0.9),
    ),
    "averaged weights": lambda: compiled(
        sequential(), keras.optimizers.Adam(use_ema=True, ema_momentum=0.5)
    ),
    "gradient accumulation": lambda: compiled(
        sequential(), keras.optimizers.Adam(gradient_accumulation_steps=2)
    ),
    "float16 and compiled with XLA": lambda: compiled(
        keras.Sequential([layers.Input((4,)), layers.Dense(1, dtype="bfloat16")]), jit_compile=True
    ),
}


def fit(model):
    if len(getattr(model, "inputs", [X])) == 2:
        data = ({"one": X, "two": X[::-1]}, {"a": Y, "b": Y})
    else:
        data = (X, Y)
    model.fit(*data, batch_size=8, epochs=1, verbose=0, shuffle=False)


@pytest.mark.parametrize("name", MODELS)
def test_equals_what_the_model_itself_saves(name, tmp_path):
    model = MODELS[name]()
    fit(model)
    writer = SnapshotWriter(model, weights_only=False)
    writer.require_alike(model)
    snapshot = take_snapshot(model, with_optimizer=True)
    model.save(tmp_path / "foreground.keras")
    fit(model)  # goes on before the snapshot is written

    thread = threading.Thread(target=writer.write, args=(snapshot, tmp_path / "background.keras"))
    thread.start()
    thread.join()

    assert config_of(tmp_path / "background.keras") == config_of(tmp_path / "foreground.keras")
    custom = {
        "WithConfig": WithConfig,
        "unregistered_metric": unregistered_metric,
    }
    background, foreground = (
        keras.models.load_model(tmp_path / f"{ground}.keras", custom_objects=custom)
        for ground in ("background", "foreground")
    )
    assert_equal(values(background), values(foreground))
    assert any(
        not np.array_equal(now, then)
        for now, then in zip(values(model), values(foreground), strict=True)
    )
    assert snapshot.size_bytes == sum(value.nbytes for value in values(foreground))


def test_one_writer_writes_one_snapshot_after_another(tmp_path):
    model = compiled(sequential())
    fit(model)
    writer = SnapshotWriter(model, weights_only=False)
    snapshots, expected = [], []
    for _ in range(3):
        fit(model)
        snapshots.append(take_snapshot(model, with_optimizer=True))
        expected.append([np.copy(value) for value in values(model)])
    for index in (1, 0, 2):
        writer.write(snapshots[index], tmp_path / f"{index}.keras")
    for index in range(3):
        loaded = keras.models.load_model(tmp_path / f"{index}.keras")
        assert_equal(values(loaded), expected[index])


def test_a_learning_rate_changed_in_training_stands_in_the_configuration_too(tmp_path):
    model = compiled(sequential(), keras.optimizers.Adam(0.1))
    fit(model)
    writer = SnapshotWriter(model, weights_only=False)
    model.optimizer.learning_rate = 0.0625
    writer.write(take_snapshot(model, with_optimizer=True), tmp_path / "background.keras")
    settings = config_of(tmp_path / "background.keras")["compile_config"]["optimizer"]["config"]
    assert settings["learning_rate"] == 0.0625


def test_weights_alone_equal_those_that_the_model_saves(tmp_path):
    model = compiled(sequential())
    fit(model)
    writer = SnapshotWriter(model, weights_only=True)
    writer.require_alike(model)
    snapshot = take_snapshot(model, with_optimizer=False)
    assert snapshot.optimizer == []
    expected = [np.copy(weight) for weight in model.get_weights()]
    fit(model)
    writer.write(snapshot, tmp_path / "background.weights.h5")
    fresh = sequential()
    fresh.load_weights(tmp_path / "background.weights.h5")
    assert_equal(fresh.get_weights(), expected)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_stays_as_it_was_while_a_large_model_trains_on(jit_compile):
    """Values that share buffers with variables must survive updates in place."""
    units = 512  # 1 MiB a matrix, beyond what is copied along the way
    model = keras.Sequential([layers.Input((units,)), layers.Dense(units), layers.Dense(units)])
    model.compile("adam", "mse", jit_compile=jit_compile)
    x = np.random.default_rng(0).normal(size=(8, units)).astype("float32")
    model.fit(x, x, batch_size=4, verbose=0)
    kept = []
    for _ in range(3):
        snapshot = take_snapshot(model, with_optimizer=True)
        kept.append((snapshot, [np.array(value) for value in values(model)]))
        model.fit(x, x, batch_size=4, verbose=0, shuffle=False)
    for snapshot, expected in kept:
        assert_equal([np.asarray(v) for v in (*snapshot.weights, *snapshot.optimizer)], expected)
    assert not np.array_equal(kept[0][1][0], kept[2][1][0])


def test_assigning_from_outside_does_not_reach_a_snapshot():
    model = compiled(sequential())
    fit(model)
    snapshot = take_snapshot(model, with_optimizer=True)
    expected = [np.copy(value) for value in values(model)]
    for variable in (*model.weights, *model.optimizer.variables):
        if variable.dtype.startswith("float"):
            variable.assign_add(keras.ops.ones_like(variable))
    assert_equal([np.asarray(v) for v in (*snapshot.weights, *snapshot.optimizer)], expected)


def test_a_model_that_cannot_be_made_again_is_refused_with_the_reason():
    model = compiled(WithoutConfig(lambda: layers.Dense(1)))
    fit(model)
    with pytest.raises(ValueError, match="No second WithoutConfig could be made from its config"):
        SnapshotWriter(model, weights_only=False)


class TellsTooLittle(WithConfig):
    def get_config(self):
        return {"units": 2}


def test_a_model_whose_configuration_tells_something_else_is_refused():
    model = compiled(TellsTooLittle(3))
    fit(model)
    writer = SnapshotWriter(model, weights_only=False)
    with pytest.raises(ValueError, match="other variables"):
        writer.require_alike(model)


@keras.saving.register_keras_serializable("tests")
class DrawsFromNumPy(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.convert_to_tensor(np.random.normal(size=shape), dtype)


@pytest.mark.parametrize("initializer", ["glorot_uniform", DrawsFromNumPy()])
def test_making_a_writer_draws_nothing_from_global_generators(initializer):
    model = keras.Sequential([layers.Input((4,)), layers.Dense(1, kernel_initializer=initializer)])
    model = compiled(model)
    fit(model)

    def draws():
        return random.random(), np.random.random()

    keras.utils.set_random_seed(3)
    expected = draws()
    keras.utils.set_random_seed(3)
    SnapshotWriter(model, weights_only=False)
    assert draws() == expected


def test_a_model_in_mixed_precision_gets_one_loss_scale(tmp_path):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(sequential(), "adam")
        fit(model)
        writer = SnapshotWriter(model, weights_only=False)
        writer.require_alike(model)
        writer.write(take_snapshot(model, with_optimizer=True), tmp_path / "m.keras")
        expected = values(model)
        assert_equal(values(keras.models.load_model(tmp_path / "m.keras")), expected)
    finally:
        keras.config.set_dtype_policy(policy)


class TestGenerators:
    def model(self, rate=0.5):
        model = keras.Sequential(
            [layers.Input((4,)), layers.Dropout(rate, seed=1), layers.Dense(1)]
        )
        return compiled(model)

    def test_their_state_is_json_and_brings_back_the_same_draws(self):
        model, other = self.model(), self.model()
        ones = np.ones((2, 4), "float32")
        for _ in range(3):
            model.layers[0](ones, training=True)
        states = json.loads(json.dumps(generator_states(model)))
        expected = np.asarray(model.layers[0](ones, training=True))
        restore_generators(other, states)
        np.testing.assert_array_equal(np.asarray(other.layers[0](ones, training=True)), expected)

    def test_a_model_without_any_has_none(self):
        model = keras.Sequential([layers.Input((4,)), layers.BatchNormalization(), layers.Dense(1)])
        assert generator_states(compiled(model)) == []
        restore_generators(model, [])

    def test_another_number_of_them_is_refused(self):
        with pytest.raises(ValueError, match="a model with 1 of them, and the state of 0"):
            restore_generators(self.model(), [])

    def test_a_generator_of_a_users_layer_counts(self):
        class Noise(layers.Layer):
            def __init__(self):
                super().__init__()
                self.generator = keras.random.SeedGenerator(5)

            def call(self, inputs):
                return inputs + keras.random.normal((), seed=self.generator)

        noise = Noise()
        model = keras.Sequential([layers.Input((4,)), noise])
        model(np.zeros((1, 4), "float32"))
        (state,) = generator_states(model)
        assert state["value"] == np.asarray(noise.generator.state).tolist()


def test_tensorflow_values_of_a_snapshot_are_held_not_copied():
    model = compiled(sequential())
    fit(model)
    snapshot = take_snapshot(model, with_optimizer=True)
    assert all(isinstance(value, tf.Tensor) for value in snapshot.weights)
