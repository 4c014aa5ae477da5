import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks import StepEvaluation
from tfx_tips.data.evaluation_set import evaluation_set

VECTOR = [(None, 4)]


def batches(evaluation):
    return [keras.tree.map_structure(np.asarray, batch) for batch in evaluation.dataset]


def sizes(evaluation):
    return [len(keras.tree.flatten(batch)[0]) for batch in evaluation.dataset]


def numbered(rows):
    """Rows whose content is their number, as x and y."""
    x = np.arange(rows, dtype="float32")[:, None] + np.zeros(4, "float32")
    return x, np.arange(rows, dtype="float32")


def numbered_dataset(rows):
    return tf.data.Dataset.from_tensor_slices(numbered(rows))


def row_numbers(evaluation):
    return np.concatenate([batch[1] for batch in batches(evaluation)]).tolist()


class Batches(keras.utils.PyDataset):
    """A PyDataset of numbered rows that notes how it is read."""

    def __init__(self, rows, batch, *, infinite=False, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = numbered(rows)
        self.batch, self.infinite = batch, infinite
        self.read, self.begun, self.ended = [], 0, 0

    @property
    def num_batches(self):
        return None if self.infinite else -(-len(self.y) // self.batch)

    def __getitem__(self, index):
        self.read.append(index)
        rows = np.arange(index * self.batch, (index + 1) * self.batch)
        rows = rows % len(self.y) if self.infinite else rows[rows < len(self.y)]
        return self.x[rows].astype("float64"), self.y[rows]

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


@pytest.mark.parametrize(
    "convert",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: (x.astype("float64"), y.astype("float64")),
        lambda x, y: (tf.constant(x), tf.constant(y)),
        lambda x, y: (x, y.astype("int64")),
    ],
    ids=["tuple", "list", "float64", "tensors", "integers"],
)
def test_arrays_come_in_order_and_in_batches(convert):
    evaluation = evaluation_set(convert(*numbered(10)), name="val", batch_size=4)
    assert sizes(evaluation) == [4, 4, 2]
    assert row_numbers(evaluation) == list(range(10))
    assert evaluation.dataset.element_spec[0].dtype == tf.float32
    assert int(evaluation.dataset.cardinality()) == 3


def test_arrays_may_be_nested_and_carry_sample_weights():
    x, y = numbered(5)
    data = ({"a": x, "b": x[:, :2]}, [y, y + 1], y + 2)
    (inputs, targets, weights), last = batches(evaluation_set(data, name="val", batch_size=3))
    assert inputs["a"].shape == (3, 4)
    assert inputs["b"].shape == (3, 2)
    np.testing.assert_array_equal(targets[1], [1, 2, 3])
    np.testing.assert_array_equal(weights, [2, 3, 4])
    np.testing.assert_array_equal(last[2], [5, 6])


def test_inputs_alone_are_accepted():
    x, _ = numbered(5)
    for data in (x, (x,), {"a": x}, tf.data.Dataset.from_tensor_slices(x).batch(5)):
        (batch,) = batches(evaluation_set(data, name="val", batch_size=5))
        assert len(batch) == 1
        np.testing.assert_array_equal(keras.tree.flatten(batch)[0], x)


def test_pandas_frames_are_accepted():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    ((x, y),) = batches(evaluation_set((frame, frame["a"]), name="val"))
    np.testing.assert_array_equal(x, [[1, 3], [2, 4]])
    np.testing.assert_array_equal(y, [1, 2])


def test_integers_and_strings_keep_their_type():
    data = (np.array(["a", "b"]), np.array([1, 2], "uint8"))
    spec = evaluation_set(data, name="val").dataset.element_spec
    assert [part.dtype for part in spec] == [tf.string, tf.uint8]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.zeros((3, 2)), np.zeros(2)), r"same number of rows.*\(3, 2\), \(2,\)"),
        ((np.zeros((0, 2)), np.zeros(0)), "at least one example"),
        ((np.zeros((3, 2)), 1.0), "same number of rows"),
        (([[1.0], [2.0]] * 100, [0, 1] * 100), "each part an array"),
        ((batch for batch in [1]), "type generator.*from_generator"),
        (iter([1]), "list_iterator"),
        ({1, 2}, "type set"),
    ],
)
def test_arrays_that_cannot_be_evaluated_are_refused(data, message):
    with pytest.raises(ValueError, match=message) as error:
        evaluation_set(data, name="clean")
    assert "'clean'" in str(error.value)
    assert len(str(error.value)) < 500


def test_the_batch_of_arrays_is_at_least_the_training_batch():
    assert sizes(evaluation_set(numbered(100), name="val"))[0] == 32
    assert sizes(evaluation_set(numbered(100), name="val", training_batch_size=50))[0] == 50
    assert sizes(evaluation_set(numbered(100), name="val", training_batch_size=8))[0] == 32
    explicit = evaluation_set(numbered(100), name="val", training_batch_size=50, batch_size=10)
    assert sizes(explicit) == [10] * 10


@pytest.mark.parametrize("drop_remainder", [False, True], ids=["unknown", "static"])
def test_smaller_batches_are_put_together(drop_remainder):
    dataset = numbered_dataset(20).batch(4, drop_remainder=drop_remainder)
    evaluation = evaluation_set(dataset, name="val", training_batch_size=8, input_shapes=VECTOR)
    assert sizes(evaluation) == [8, 8, 4]
    assert row_numbers(evaluation) == list(range(20))
    assert evaluation.batch_size == 8


def test_larger_batches_are_kept_and_an_explicit_size_wins():
    dataset = numbered_dataset(20).batch(10)
    kept = evaluation_set(dataset, name="val", training_batch_size=8, input_shapes=VECTOR)
    assert sizes(kept) == [10, 10]
    cut = evaluation_set(dataset, name="val", batch_size=3, input_shapes=VECTOR)
    assert sizes(cut) == [3] * 6 + [2]
    assert row_numbers(cut) == list(range(20))


def test_batches_of_different_lengths_are_not_put_together():
    def sequences():
        for length in (3, 5, 2):
            yield np.zeros((4, length), "float32"), np.zeros(4, "float32")

    dataset = tf.data.Dataset.from_generator(
        sequences,
        output_signature=(tf.TensorSpec((None, None)), tf.TensorSpec((None,))),
    )
    evaluation = evaluation_set(
        dataset, name="val", training_batch_size=8, input_shapes=[(None, None)]
    )
    assert [batch[0].shape for batch in batches(evaluation)] == [(4, 3), (4, 5), (4, 2)]


def slices(*structure):
    return tf.data.Dataset.from_tensor_slices(structure if len(structure) > 1 else structure[0])


def of_unknown_rank(dataset):
    def call(x, y):
        return tf.numpy_function(lambda *parts: parts, (x, y), (tf.float32, tf.float32))

    return dataset.map(call)


# Made in the tests: nothing may touch TensorFlow's devices while tests are collected.
ZEROS = np.zeros(6)
TABLE = {"age": ZEROS, "income": ZEROS}
MIXED = {"age": ZEROS, "words": np.zeros((6, 5))}
BATCHED = {
    "vectors": (lambda: numbered_dataset(6).batch(3), VECTOR),
    "vectors, static": (lambda: numbered_dataset(6).batch(3, drop_remainder=True), VECTOR),
    "scalars": (lambda: slices(ZEROS, ZEROS).batch(3), [(None, 1)]),
    "scalars, static": (lambda: slices(ZEROS, ZEROS).batch(3, True), [(None, 1)]),
    "a table of scalars": (lambda: slices(TABLE, ZEROS).batch(3), [(None, 1), (None, 1)]),
    "scalars and vectors": (lambda: slices(MIXED, ZEROS).batch(3), [(None, 1), (None, 5)]),
    "one channel left out": (lambda: slices(np.zeros((6, 5)), ZEROS).batch(3), [(None, 5, 1)]),
    "unknown rank": (lambda: of_unknown_rank(numbered_dataset(6).batch(3)), VECTOR),
    "no declared inputs": (lambda: numbered_dataset(6).batch(3), None),
}


@pytest.mark.parametrize("case", BATCHED)
def test_batched_data_sets_are_recognised(case):
    make, shapes = BATCHED[case]
    assert sizes(evaluation_set(make(), name="val", input_shapes=shapes)) == [3, 3]


EXAMPLES = {
    "vectors": (lambda: numbered_dataset(6), VECTOR),
    "vectors alone": (lambda: numbered_dataset(6).map(lambda x, y: x), VECTOR),
    "vectors as labels": (lambda: numbered_dataset(6).map(lambda x, y: (x, x)), VECTOR),
    "one feature": (lambda: slices(np.zeros((6, 1))), [(None, 1)]),
    "scalars": (lambda: slices(ZEROS), [(None, 1)]),
    "one channel": (lambda: slices(np.zeros((6, 5, 1)), ZEROS), [(None, 5, 1)]),
    "scalars and vectors": (lambda: slices(MIXED, ZEROS), [(None, 1), (None, 5)]),
    "scalar labels, no declared inputs": (lambda: numbered_dataset(6), None),
    "one-hot labels, no declared inputs": (
        lambda: numbered_dataset(6).map(lambda x, y: (x, x[:2])),
        None,
    ),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_single_examples_are_batched_or_refused(case):
    make, shapes = EXAMPLES[case]
    with pytest.raises(ValueError, match=r"'val' must be batched.*`batch_size=256`"):
        evaluation_set(make(), name="val", input_shapes=shapes)
    batched = evaluation_set(make(), name="val", input_shapes=shapes, batch_size=4)
    assert sizes(batched) == [4, 2]


def test_what_cannot_be_told_is_said():
    ambiguous = numbered_dataset(6).map(lambda x, y: (x, x))
    with pytest.raises(ValueError, match=r"declares no inputs.*leave out `batch_size`"):
        evaluation_set(ambiguous, name="val", batch_size=4)


def test_an_infinite_set_needs_steps():
    dataset = numbered_dataset(10).repeat().batch(4)
    with pytest.raises(ValueError, match=r"'val' is infinite.*Pass `steps`"):
        evaluation_set(dataset, name="val", input_shapes=VECTOR)
    with pytest.raises(ValueError, match=r"'val' is infinite.*Pass `steps`"):
        evaluation_set(numbered_dataset(10).repeat(), name="val", batch_size=4)
    with pytest.raises(ValueError, match=r"'val' is infinite.*Pass `steps`"):
        evaluation_set(Batches(10, 4, infinite=True), name="val")
    for data in (dataset, Batches(10, 4, infinite=True)):
        limited = evaluation_set(data, name="val", steps=3, input_shapes=VECTOR)
        assert row_numbers(limited) == [*range(10), 0, 1]


def test_steps_count_batches_after_rebatching():
    for data in (
        numbered_dataset(30).batch(4),
        numbered_dataset(30).repeat().batch(4),
        Batches(30, 4),
        Batches(30, 4, infinite=True),
        numbered(30),
    ):
        limited = evaluation_set(
            data, name="val", steps=2, training_batch_size=6, batch_size=6, input_shapes=VECTOR
        )
        assert row_numbers(limited) == list(range(12))


def test_an_empty_data_set_is_refused():
    for data in (numbered_dataset(10).take(0).batch(4), Batches(0, 4)):
        with pytest.raises(ValueError, match="'val' must hold at least one example"):
            evaluation_set(data, name="val", input_shapes=VECTOR)


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_sizes_must_be_positive_integers(value):
    for argument in ("batch_size", "steps"):
        with pytest.raises(ValueError, match=f"`{argument}` must be an integer of at least 1"):
            evaluation_set(numbered(10), name="val", **{argument: value})


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbered(11),
        lambda: numbered_dataset(11).batch(3),
        lambda: numbered_dataset(11).batch(4),
        lambda: numbered_dataset(11),
        # The first batch is the smallest.
        lambda: numbered_dataset(3).batch(3).concatenate(numbered_dataset(11).skip(3).batch(5)),
        lambda: Batches(11, 4),
    ],
    ids=["arrays", "smaller batches", "batches", "examples", "growing", "PyDataset"],
)
def test_padding_gives_one_static_shape_and_a_mask(make):
    evaluation = evaluation_set(make(), name="val", batch_size=4, pad=True, input_shapes=VECTOR)
    (x, y), mask = evaluation.dataset.element_spec
    assert (x.shape, y.shape, mask.shape) == ((4, 4), (4,), (4,))
    parts = batches(evaluation)
    np.testing.assert_array_equal([mask for _, mask in parts], [[1] * 4, [1] * 4, [1, 1, 1, 0]])
    np.testing.assert_array_equal([y for (_, y), _ in parts][-1], [8, 9, 10, 10])


def test_a_padded_batch_is_a_multiple_of_the_replicas():
    evaluation = evaluation_set(numbered(11), name="val", batch_size=5, pad=True, num_replicas=4)
    assert evaluation.batch_size == 8
    assert [mask.sum() for _, mask in batches(evaluation)] == [8, 3]


def test_batches_of_different_lengths_are_padded_one_by_one():
    def sequences():
        for rows, length in ((4, 3), (2, 5)):
            yield (np.ones((rows, length), "float32"),)

    dataset = tf.data.Dataset.from_generator(
        sequences, output_signature=(tf.TensorSpec((None, None)),)
    )
    evaluation = evaluation_set(dataset, name="val", pad=True, num_replicas=3)
    assert [x.shape for (x,), _ in batches(evaluation)] == [(6, 3), (6, 5)]
    assert [mask.sum() for _, mask in batches(evaluation)] == [4, 2]


@pytest.mark.parametrize("workers", [{"workers": 2}, {"workers": 2, "use_multiprocessing": True}])
def test_a_py_dataset_is_read_in_order_and_again(workers):
    data = Batches(10, 4, **workers)
    evaluation = evaluation_set(data, name="val")
    assert row_numbers(evaluation) == list(range(10)) == row_numbers(evaluation)
    assert (data.begun, data.ended) == (2, 2)
    assert evaluation.dataset.element_spec[0].dtype == tf.float32
    assert int(evaluation.dataset.cardinality()) == 3


def test_a_py_dataset_with_smaller_batches_is_rebatched_once_each_is_read():
    data = Batches(20, 4)
    evaluation = evaluation_set(data, name="val", training_batch_size=8)
    data.read.clear()
    assert sizes(evaluation) == [8, 8, 4]
    assert collections.Counter(data.read) == collections.Counter(range(5))


def test_a_py_dataset_may_give_dictionaries_and_lengths_that_differ():
    class Sequences(Batches):
        def __getitem__(self, index):
            return {"tokens": np.full((4, index + 1), index)}, np.zeros(4)

    evaluation = evaluation_set(Sequences(12, 4), name="val", training_batch_size=8)
    assert [x["tokens"].shape for x, _ in batches(evaluation)] == [(4, 1), (4, 2), (4, 3)]


class PlainBatches(Batches):
    """A PyDataset that does not tell its batch size."""


class ToldBatches(Batches):
    batch_size = 48


TRAINING = {
    "arrays": (lambda: (*numbered(96), 48), 48),
    "static batches": (lambda: (numbered_dataset(96).batch(48, True),), 48),
    "batches": (lambda: (numbered_dataset(96).shuffle(9).batch(48).prefetch(1),), 48),
    "batches that are mapped and repeated": (
        lambda: (numbered_dataset(96).batch(48).map(lambda x, y: (x, y)).repeat(2),),
        48,
    ),
    "batches of batches": (lambda: (numbered_dataset(96).batch(7).unbatch().batch(48),), 48),
    "batches cut otherwise": (lambda: (numbered_dataset(96).batch(48).rebatch(6),), 32),
    "PyDataset that tells": (lambda: (ToldBatches(96, 48),), 48),
    "PyDataset": (lambda: (PlainBatches(96, 48),), 32),
}


@pytest.mark.parametrize("case", TRAINING)
def test_an_evaluation_of_arrays_uses_the_training_batch_where_it_can_be_seen(case):
    make, size = TRAINING[case]
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, inputs):
            if inputs.shape[0]:
                seen.append(inputs.shape[0])
            return inputs

    model = keras.Sequential([keras.layers.Input((4,)), Seen(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    evaluation = StepEvaluation(numbered(96), every_steps=99)
    x, *rest = make()
    y, batch = rest or (None, None)
    options = {"batch_size": batch, "shuffle": False, "steps_per_epoch": 1, "verbose": 0}
    model.fit(x, y, callbacks=[evaluation], **options)
    assert seen[0] == size
