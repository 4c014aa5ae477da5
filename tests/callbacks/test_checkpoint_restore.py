"""Loading checkpoints into models: all of it or nothing."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips._core.errors import CheckpointError
from tfx_tips.callbacks import restore_best
from tfx_tips.callbacks.checkpoint_restore import load_into
from tfx_tips.callbacks.checkpoint_store import CheckpointStore

SUFFIXES = [".keras", ".weights.h5"]


def model(*layers, optimizer="adam"):
    made = keras.Sequential([keras.layers.Input((4,)), *(layers or usual_layers())])
    if optimizer is not None:
        made.compile(optimizer, "mse")
    return made


def usual_layers(units=3, outputs=1, bias=True):
    return (
        keras.layers.Dense(units, use_bias=bias),
        keras.layers.Dropout(0.5),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(outputs),
    )


def values(one):
    variables = [*one.weights, *(one.optimizer.variables if one.compiled else ())]
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def equal(some, others):
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def save(one, path):
    (one.save if path.name.endswith(".keras") else one.save_weights)(path)


@pytest.fixture
def trained(rng):
    """A model as after eight steps: no value is as it was built."""
    return after_training(model(), rng)


def after_training(one, rng):
    one.optimizer.build(one.trainable_variables)
    for variable in [*one.weights, *one.optimizer.variables]:
        if "float" in variable.dtype:
            variable.assign(rng.normal(size=variable.shape))
    one.optimizer.iterations.assign(8)
    return one


def store_one(store, one, step, suffix=".keras", **fields):
    return store.add(
        lambda path: save(one, path),
        suffix=suffix,
        step=step,
        **{
            "epoch": 0,
            "batch": step,
            "metrics": {"val_loss": 1 / step, "val_auc": 1 / step},
            "monitor": "val_loss",
            "mode": "min",
            "directions": {"val_auc": "max"},
            **fields,
        },
    )


class TestLoadInto:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    @pytest.mark.parametrize("built", [True, False])
    def test_brings_weights_and_optimizer_back(self, trained, tmp_path, suffix, built):
        path = tmp_path / f"a{suffix}"
        save(trained, path)
        other = model()
        if built:
            other.optimizer.build(other.trainable_variables)
        assert load_into(other, path)
        assert equal(values(other), values(trained))
        assert int(other.optimizer.iterations) == 8

    def test_a_loss_scale_optimizer_comes_back_too(self, tmp_path, rng):
        def scaled():
            adam = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam())
            return model(optimizer=adam)

        one, other = after_training(scaled(), rng), scaled()
        save(one, tmp_path / "a.keras")
        assert load_into(other, tmp_path / "a.keras", require_optimizer=True)
        assert equal(values(other), values(one))

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_an_uncompiled_model_gets_the_weights(self, trained, tmp_path, suffix):
        path = tmp_path / f"a{suffix}"
        save(trained, path)
        other = model(optimizer=None)
        assert not load_into(other, path)
        assert equal(values(other), values(trained)[: len(trained.weights)])

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_a_file_without_optimizer_leaves_it_alone_in_silence(
        self, trained, tmp_path, suffix, caplog
    ):
        path = tmp_path / f"a{suffix}"
        plain = model(optimizer=None)
        save(plain, path)
        state = values(trained)[len(trained.weights) :]
        assert not load_into(trained, path)
        assert not caplog.records
        assert equal(values(trained)[: len(trained.weights)], values(plain))
        assert equal(values(trained)[len(trained.weights) :], state)

    def test_another_optimizer_stays_as_it_is_with_a_logged_warning(
        self, trained, tmp_path, caplog
    ):
        save(trained, tmp_path / "a.keras")
        other = model(optimizer="sgd")
        with caplog.at_level(logging.WARNING):
            assert not load_into(other, tmp_path / "a.keras")
        assert "a.keras holds 14 variables of another one's state, SGD has 2" in caplog.text
        assert equal(values(other)[: len(other.weights)], values(trained)[: len(other.weights)])
        assert int(other.optimizer.iterations) == 0

    @pytest.mark.parametrize("suffix", SUFFIXES)
    @pytest.mark.parametrize(
        "make_layers",
        [
            lambda: usual_layers(units=5),
            lambda: usual_layers(outputs=2),
            lambda: usual_layers(bias=False),
            lambda: usual_layers()[:-1],
            lambda: (*usual_layers(), keras.layers.Dense(1)),
            lambda: (*usual_layers()[:2], keras.layers.LayerNormalization(), keras.layers.Dense(1)),
        ],
        ids=["units", "last units", "no bias", "fewer layers", "more layers", "other layer"],
    )
    def test_another_architecture_raises_and_changes_nothing(
        self, trained, tmp_path, suffix, make_layers
    ):
        path = tmp_path / f"a{suffix}"
        save(trained, path)
        other = model(*make_layers())
        other.optimizer.build(other.trainable_variables)
        other.optimizer.iterations.assign(3)
        before = values(other)
        with pytest.raises(ValueError, match=r"must have the architecture .* its values are unch"):
            load_into(other, path)
        assert equal(values(other), before)

    def test_a_model_without_weights_is_refused_with_the_remedy(self, trained, tmp_path):
        save(trained, tmp_path / "a.keras")
        other = keras.Sequential([keras.layers.Dense(3)])
        with pytest.raises(ValueError, match=r"no weights yet.*`model\.build\(input_shape\)`"):
            load_into(other, tmp_path / "a.keras")

    @pytest.mark.parametrize(
        ("optimizer", "received"),
        [("sgd", "Received: SGD with 2 variables"), (None, "a model that is not compiled")],
    )
    def test_a_required_optimizer_that_does_not_fit_raises_and_changes_nothing(
        self, trained, tmp_path, optimizer, received
    ):
        save(trained, tmp_path / "a.keras")
        other = model(optimizer=optimizer)
        before = values(other)
        with pytest.raises(ValueError, match=f"holds 14 of its variables.*{received}"):
            load_into(other, tmp_path / "a.keras", require_optimizer=True)
        assert equal(values(other), before)

    def test_a_required_optimizer_that_was_not_saved_says_so(self, trained, tmp_path):
        save(model(optimizer=None), tmp_path / "a.weights.h5")
        with pytest.raises(ValueError, match=r"The file was saved without it; load the weights"):
            load_into(trained, tmp_path / "a.weights.h5", require_optimizer=True)

    def test_a_layer_that_stores_more_than_its_weights_is_accepted(self, tmp_path):
        one, other = (model(Counting(), optimizer=None) for _ in range(2))
        one.layers[0].note = 5
        one.layers[0].kernel.assign([2.0])
        save(one, tmp_path / "a.weights.h5")
        load_into(other, tmp_path / "a.weights.h5")
        assert other.layers[0].note == 5
        assert equal(values(other), values(one))

    def test_works_under_a_strategy_outside_its_scope(self, trained, tmp_path):
        save(trained, tmp_path / "a.keras")
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            other = model()
        assert load_into(other, tmp_path / "a.keras")
        assert equal(values(other), values(trained))
        for variable in [*other.weights, *other.optimizer.variables]:
            replicas = other.distribute_strategy.experimental_local_results(variable.value)
            assert len({replica.numpy().tobytes() for replica in replicas}) == 1


class Counting(keras.layers.Layer):
    """Stores a number of its own beside its one weight."""

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(1,), name="kernel")
        self.note = 0

    def call(self, inputs):
        return inputs * self.kernel

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["note"] = np.array(self.note)

    def load_own_variables(self, store):
        self.kernel.assign(store["0"])
        self.note = int(store["note"][()])


class TestRestoreBest:
    @pytest.fixture
    def candidates(self):
        """Three models that differ; the last has the lowest val_loss, the first the highest AUC."""
        return [model() for _ in range(3)]

    @pytest.fixture(params=["local", "memory"])
    def store(self, request, tmp_path, candidates):
        url = f"memory://{tmp_path.name}/run"
        made = CheckpointStore(tmp_path / "ckpt" if request.param == "local" else url)
        for step, one in enumerate(candidates, start=1):
            one.optimizer.build(one.trainable_variables)
            one.optimizer.iterations.assign(step)
            store_one(made, one, step)
        return made

    def test_loads_the_best_and_tells_which_it_was(self, store, candidates):
        other = model()
        assert restore_best(other, store.directory).step == 3
        assert equal(values(other), values(candidates[2]))
        assert restore_best(other, store.directory, monitor="val_auc").step == 1
        assert equal(values(other), values(candidates[0]))
        assert restore_best(other, store.directory, mode="max").step == 1

    def test_a_damaged_best_gives_way_to_the_next(self, tmp_path, candidates, caplog):
        store = CheckpointStore(tmp_path)
        records = [store_one(store, one, step) for step, one in enumerate(candidates, start=1)]
        path = tmp_path / "step-00000003.keras"
        path.write_bytes(path.read_bytes()[:-1] + b"X")
        other = model()
        with caplog.at_level(logging.WARNING):
            assert restore_best(other, tmp_path) == records[1]
        assert "step-00000003.keras is not what was written" in caplog.text
        assert equal(values(other)[:8], values(candidates[1])[:8])

    def test_what_is_stored_loads_with_plain_keras(self, tmp_path, trained):
        store = CheckpointStore(tmp_path)
        whole = store_one(store, trained, 1)
        weights = store_one(store, trained, 2, suffix=".weights.h5")
        loaded = keras.models.load_model(whole.path)
        assert equal(values(loaded), values(trained))
        other = model()
        other.optimizer.build(other.trainable_variables)
        other.load_weights(weights.path)
        assert equal(values(other), values(trained))

    def test_another_architecture_is_an_error_and_not_damage(self, tmp_path, trained):
        store = CheckpointStore(tmp_path)
        store_one(store, model(*usual_layers(units=5)), 1)
        store_one(store, model(*usual_layers(units=5)), 2)
        before = values(trained)
        with pytest.raises(ValueError, match=r"architecture that step-00000002\.keras was saved"):
            restore_best(trained, tmp_path)
        assert equal(values(trained), before)

    def test_an_empty_directory_is_an_error(self, tmp_path, trained):
        with pytest.raises(CheckpointError, match="There is no checkpoint in"):
            restore_best(trained, tmp_path)
