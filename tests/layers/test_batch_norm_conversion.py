import keras
import numpy as np
import pytest

from tfx_tips.layers import GhostBatchNormalization, convert_batch_norm


def nested_model():
    keras.utils.set_random_seed(0)
    block = keras.Sequential(
        [
            keras.Input((6, 4)),
            keras.layers.TimeDistributed(keras.layers.BatchNormalization()),
            keras.layers.Dense(4),
        ],
        name="block",
    )
    inputs = keras.Input((6, 4))
    shared = keras.layers.BatchNormalization(momentum=0.9, epsilon=0.01, name="shared")
    x = shared(block(shared(inputs)))
    frozen = keras.layers.BatchNormalization(name="frozen", trainable=False)
    x = keras.layers.Dropout(0.5)(frozen(x))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in model.get_weights()])
    return model


def test_inference_is_equal_bit_for_bit_and_every_layer_is_exchanged(rng):
    model = nested_model()
    converted = convert_batch_norm(model, 8, replicas_per_group="all")
    x = rng.normal(size=(5, 6, 4)).astype("float32")

    np.testing.assert_array_equal(converted(x), model(x))
    block = converted.get_layer("block")
    found = [converted.get_layer("shared"), converted.get_layer("frozen"), block.layers[0].layer]
    for layer in found:
        assert type(layer) is GhostBatchNormalization
        assert layer.virtual_batch_size == 8
        assert layer.replicas_per_group == "all"
    assert (found[0].momentum, found[0].epsilon) == (0.9, 0.01)
    assert [layer.trainable for layer in found] == [True, False, True]
    assert len(converted.weights) == len(model.weights)


def test_original_stays_as_it_is():
    model = nested_model()
    before = model.get_weights()
    config = model.get_config()
    converted = convert_batch_norm(model)
    converted.set_weights([w + 1 for w in converted.get_weights()])

    assert model.get_config() == config
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


# Keras 3.10 takes a loaded functional model to expect a list of its one input, and says so.
@pytest.mark.filterwarnings("ignore:The structure of `inputs`:UserWarning")
def test_converted_model_trains_and_is_saved(rng, tmp_path):
    converted = convert_batch_norm(nested_model(), 4, statistics="subsample")
    converted.compile("sgd", "mse")
    x = rng.normal(size=(9, 6, 4)).astype("float32")
    converted.fit(x, x[..., :1], batch_size=8, verbose=0)
    converted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")

    assert loaded.get_layer("shared").statistics == "subsample"
    np.testing.assert_array_equal(loaded(x), converted(x))


def test_sequential_model_stays_sequential(rng):
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    converted = convert_batch_norm(model)

    assert isinstance(converted, keras.Sequential)
    assert type(converted.layers[0]) is GhostBatchNormalization


def test_named_arguments_win_over_the_layer_s_own():
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.5)])

    assert convert_batch_norm(model, momentum=0.7).layers[0].momentum == 0.7
    assert convert_batch_norm(model).layers[0].momentum == 0.5


def test_synchronized_layers_are_exchanged_too():
    layer = keras.layers.BatchNormalization(synchronized=True)
    converted = convert_batch_norm(keras.Sequential([keras.Input((3,)), layer]))

    assert converted.layers[0].replicas_per_group == "auto"


class OwnNorm(keras.layers.BatchNormalization):
    pass


class OwnBlock(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = {"norm": keras.layers.BatchNormalization(name="inside")}

    def call(self, inputs):
        return self.parts["norm"](inputs)


@pytest.mark.parametrize("make", [lambda: OwnNorm(name="inside"), OwnBlock])
def test_layers_that_cannot_be_exchanged_are_named(make):
    model = keras.Sequential([keras.Input((3,)), make()])
    with pytest.raises(ValueError, match="inside"):
        convert_batch_norm(model)


class OwnModel(keras.Model):
    def call(self, inputs):
        return inputs


def test_models_of_a_class_of_their_own_and_unbuilt_ones_are_refused():
    own = OwnModel()
    own.build((None, 3))
    for model in (own, keras.Sequential([keras.layers.BatchNormalization()])):
        with pytest.raises(ValueError, match="built Sequential or functional"):
            convert_batch_norm(model)


def test_batch_renormalization_is_refused_where_keras_has_it():
    try:
        layer = keras.layers.BatchNormalization(renorm=True, name="renormed")
    except (TypeError, ValueError):
        return  # Keras before 3.13 does not know it.
    with pytest.raises(ValueError, match="renormed"):
        convert_batch_norm(keras.Sequential([keras.Input((3,)), layer]))
