"""Data sets that start at any step."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.data import from_step


def numpy_batch(step):
    draw = np.random.default_rng([7, step])
    return draw.normal(size=(3, 2)).astype("float32"), draw.integers(9, size=3)


def tensorflow_batch(step):
    seed = tf.stack([tf.cast(step, tf.int32), 7])
    return tf.random.stateless_uniform((3, 2), seed), tf.fill([3], step)


def first(dataset, count):
    return [keras.tree.map_structure(np.asarray, batch) for batch in dataset.take(count)]


def assert_same(batches, expected):
    for batch, wanted in zip(batches, expected, strict=True):
        keras.tree.assert_same_structure(batch, wanted)
        for part, wanted_part in zip(
            keras.tree.flatten(batch), keras.tree.flatten(wanted), strict=True
        ):
            assert part.dtype == np.asarray(wanted_part).dtype
            np.testing.assert_array_equal(part, wanted_part)


@pytest.mark.parametrize("start", [0, 5])
def test_numpy_batches_are_those_of_their_numbers(start):
    expected = [numpy_batch(step) for step in range(start, start + 4)]
    assert_same(first(from_step(numpy_batch, start), 4), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_starting_later_equals_skipping(compiled):
    make = tensorflow_batch if compiled else numpy_batch
    whole = first(from_step(make, compiled=compiled), 9)
    assert_same(first(from_step(make, 6, compiled=compiled), 3), whole[6:])


def test_compiled_batches_get_the_number_as_a_tensor_and_keep_their_order():
    seen = []

    def make(step):
        seen.append(step)
        return step, tf.cast(step, tf.float32) * 2

    batches = first(from_step(make, 3, compiled=True), 20)
    assert [int(number) for number, _ in batches] == list(range(3, 23))
    assert [float(double) for _, double in batches] == [2.0 * n for n in range(3, 23)]
    (number,) = seen  # traced once
    assert (number.dtype, number.shape) == (tf.int64, ())


def test_functions_of_tensorflow_work_uncompiled_too():
    expected = [keras.tree.map_structure(np.asarray, tensorflow_batch(s)) for s in range(2, 5)]
    assert_same(first(from_step(tensorflow_batch, 2), 3), expected)


def test_python_numbers_are_integers_of_python():
    kinds = set()

    def make(step):
        kinds.add(type(step))
        return np.float32(step)

    assert [float(value) for value in first(from_step(make, 1), 3)] == [1.0, 2.0, 3.0]
    assert kinds == {int}


def test_nested_structures_and_all_dtypes_come_through():
    def make(step):
        inputs = {
            "image": np.full((2, 4, 4, 3), step, np.uint8),
            "parts": (np.ones((2, 1), np.float64) * step, np.array([True, False])),
            "word": np.array([b"a", b"bc"]),
        }
        return inputs, np.arange(2, dtype=np.int16), np.float32([0.5, 2.0])

    batches = first(from_step(make, 4), 2)
    for batch, step in zip(batches, (4, 5), strict=True):
        wanted = make(step)
        assert batch[0]["image"].dtype == np.uint8
        np.testing.assert_array_equal(batch[0]["image"], wanted[0]["image"])
        assert batch[0]["parts"][0].dtype == np.float64
        np.testing.assert_array_equal(batch[0]["parts"][0], wanted[0]["parts"][0])
        assert batch[0]["word"].tolist() == [b"a", b"bc"]
        assert batch[1].dtype == np.int16
        np.testing.assert_array_equal(batch[2], wanted[2])


def test_batches_may_differ_in_their_number_of_rows():
    sizes = [len(b) for b in first(from_step(lambda step: np.zeros((step + 1, 2))), 3)]
    assert sizes == [1, 2, 3]


@pytest.mark.parametrize("compiled", [False, True])
def test_says_that_it_is_endless_and_is(compiled):
    dataset = from_step(lambda step: step, compiled=compiled)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(list(itertools.islice(dataset, 300))) == 300


@pytest.mark.parametrize("compiled", [False, True])
def test_every_pass_begins_at_the_start_again(compiled):
    dataset = from_step(lambda step: step, 2, compiled=compiled)
    for _ in range(2):
        assert [int(value) for value in dataset.take(3)] == [2, 3, 4]


@pytest.mark.parametrize("start", [-1, 1.5, True, "3", None])
def test_refuses_a_start_that_is_no_count(start):
    with pytest.raises(ValueError, match=r"`start_step` must be .* Received: start_step="):
        from_step(numpy_batch, start)


def test_an_error_in_a_batch_names_what_went_wrong():
    def make(step):
        if step == 2:
            raise KeyError("no shard 17")
        return np.zeros(2)

    with pytest.raises(tf.errors.OpError, match="no shard 17"):
        first(from_step(make), 3)


def test_epochs_of_fit_go_on_in_the_data():
    """Six steps in two epochs equal six steps made by hand."""

    def model():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.layers[0].set_weights([np.ones((2, 1)), np.zeros(1)])
        return model

    def make(step):
        x = numpy_batch(step)[0]
        return x, x[:, :1]

    fitted, by_hand = model(), model()
    fitted.fit(from_step(make, 3), epochs=2, steps_per_epoch=3, verbose=0, shuffle=False)
    for step in range(3, 9):
        by_hand.train_on_batch(*make(step))
    for weight, expected in zip(fitted.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
