import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.data.evaluation_sources import (
    ArraySource,
    BatchSource,
    ExampleSource,
    PyDatasetSource,
)

X = np.arange(20, dtype="float32").reshape(10, 2)
Y = np.arange(10, dtype="int32")


class Batches(keras.utils.PyDataset):
    """Batches of given lengths and widths, cut from rows of zeros."""

    def __init__(self, shapes):
        super().__init__()
        self._shapes = shapes
        self.epochs = []

    def __len__(self):
        return len(self._shapes)

    def __getitem__(self, index):
        return np.full(self._shapes[index], index, "float64"), np.full(
            self._shapes[index][0], index
        )

    def on_epoch_begin(self):
        self.epochs.append("begin")

    def on_epoch_end(self):
        self.epochs.append("end")


class Endless(Batches):
    """Gives its only batch for ever."""

    num_batches = None

    def __getitem__(self, index):
        return super().__getitem__(0)


def read(source, rows):
    return [keras.tree.map_structure(np.asarray, batch) for batch in source.dataset(rows)]


@pytest.mark.parametrize("rows", [1, 3, 5, 10, 99])
def test_arrays_give_every_row_once_in_order_at_each_reading(rows):
    source = ArraySource((X, Y), name="val")

    for _ in range(2):
        batches = read(source, rows)
        assert [len(y) for _, y in batches] == [len(Y[at : at + rows]) for at in range(0, 10, rows)]
        np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), X)
        np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), Y)


def test_float64_arrays_become_keras_float_type_and_integers_stay():
    ((x, y),) = read(ArraySource((X.astype("float64"), Y.astype("int64")), name="val"), 10)

    assert (x.dtype, y.dtype) == ("float32", "int64")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([(X, Y)]), "read again at every evaluation"),
        ({1, 2}, "type set"),
        ((X, Y[:4]), r"same number of rows. Received: shapes \[\(10, 2\), \(4,\)\]"),
        ((X[:0], Y[:0]), "at least one example"),
        ((np.float32(1), np.float32(2)), "same number of rows"),
    ],
)
def test_arrays_that_cannot_be_read_are_refused_by_the_set_s_name(data, message):
    with pytest.raises(ValueError, match=message) as caught:
        ArraySource(data, name="clean")

    assert "'clean'" in str(caught.value)


def test_examples_are_batched():
    source = ExampleSource(tf.data.Dataset.range(7))

    assert [batch.tolist() for batch in read(source, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert (source.rows, source.joins) == (None, False)


def test_batches_come_as_they_are_and_the_first_tells_their_size():
    source = BatchSource(tf.data.Dataset.range(7).batch(3), name="val")

    assert [batch.tolist() for batch in read(source, 99)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert (source.rows, source.joins) == (3, True)


@pytest.mark.parametrize(
    ("shape", "joins"), [([None, 4], True), ([None], True), ([None, None], False), (None, False)]
)
def test_batches_can_be_joined_where_all_other_axes_are_known(shape, joins):
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([np.zeros((2, 4) if shape != [None] else 2, "float32")]),
        output_signature=tf.TensorSpec(shape, "float32"),
    )

    assert BatchSource(dataset, name="val").joins is joins


def test_an_empty_data_set_of_batches_is_refused():
    with pytest.raises(ValueError, match="'val' must hold at least one example"):
        BatchSource(tf.data.Dataset.range(0).batch(3), name="val")


@pytest.mark.parametrize(
    ("shapes", "joins"), [([(3, 2), (1, 2)], True), ([(3, 2), (3, 5)], False), ([(4, 2)], True)]
)
def test_a_py_dataset_gives_its_batches_in_order_and_says_when_a_pass_begins_and_ends(
    shapes, joins
):
    data = Batches(shapes)
    source = PyDatasetSource(data, name="val", steps=None)

    for _ in range(2):
        batches = read(source, 3)
        assert [x.shape for x, _ in batches] == shapes
        assert [set(y.tolist()) for _, y in batches] == [{index} for index in range(len(shapes))]
        assert {x.dtype for x, _ in batches} == {np.dtype("float32")}
    assert (source.rows, source.joins) == (shapes[0][0], joins)
    assert data.epochs == ["begin", "end"] * 2


@pytest.mark.parametrize(("steps", "rows", "batches"), [(2, 3, 2), (2, 4, 3), (2, 6, 4), (1, 1, 1)])
def test_with_steps_an_endless_py_dataset_gives_enough_for_them(steps, rows, batches):
    source = PyDatasetSource(Endless([(3, 2)]), name="val", steps=steps)

    assert len(read(source, rows)) == batches


def test_an_endless_py_dataset_without_steps_is_refused():
    with pytest.raises(ValueError, match=r"'val' is infinite.* Pass `steps`"):
        PyDatasetSource(Endless([(3, 2)]), name="val", steps=None)


@pytest.mark.parametrize("shapes", [[], [(0, 2)]])
def test_an_empty_py_dataset_is_refused(shapes):
    with pytest.raises(ValueError, match="'val' must hold at least one example"):
        PyDatasetSource(Batches(shapes), name="val", steps=None)
